# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Divides a CPU profile of our server into parts of its work."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

REST = "the rest"
# A sample belongs to the first part with a pattern that matches one of its functions. Functions include their package,
# as in "…/cacheserver/rows.populate".
_PARTS = {
    "system call writev": r"internal/poll\.\(\*FD\)\.Writev$",
    "files read": r"/decode\.readFull$|internal/poll\.\(\*FD\)\.(Read|Pread)$",
    "first touch of the chunks' memory": r"/rows\.populate",
    "codec (zstd)": r"/compress/(zstd|huff0|fse)\.|/parquet/compress\.Decode$",
    "checksums": r"/xxh3\.|hash/crc32\.",
    "garbage collector, allocation": r"runtime\.(gc[A-Z]|mallocgc|bgsweep|bgscavenge)",
    "dictionary indices to values": r"/decode\.(lookup|gather)\b",
    "levels": r"/decode\.\(\*(Column\)\.(follow|take)|levels|lists|validity)\b",
    "pages to batches": r"/cacheserver/source/parquet/decode\.",
    "batches to chunks": r"/rows\.\(\*Builder\)",
    "rows fetched ahead": r"/rows\.prefetch\b",
    "rows out of strips": r"/rows\.unpack\b",
    "rows to messages": r"/cacheserver/rows\.",
    "order of the epoch": r"/cacheserver/epoch\.",
    "HTTP/2": r"/cacheserver/transport/h2\.|/net/http2\b",
}
_COMPILED = {part: re.compile(pattern) for part, pattern in _PARTS.items()}
PARTS = [*_PARTS, REST]

# A sample in the output of `go tool pprof -traces -unit=ms`: its time precedes the innermost function; one function per
# line.
_SAMPLE = re.compile(r"^\s*([\d.]+)ms\s{2,}(\S.*)$")


def shares(profile: Path) -> dict[str, float]:
    """The fraction of the profile's time in each part."""
    command = ["go", "tool", "pprof", "-traces", "-unit=ms", str(profile)]
    traces = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    times: dict[str, float] = {}
    for block in re.split(r"^-+\+-+$", traces, flags=re.MULTILINE)[1:]:
        lines = block.strip("\n").splitlines()
        if lines and (first := _SAMPLE.match(lines[0])):
            name = part([first[2], *lines[1:]])
            times[name] = times.get(name, 0.0) + float(first[1])
    whole = sum(times.values())
    return {name: time / whole for name, time in times.items()}


def part(functions: Iterable[str]) -> str:
    """The part to which a sample belongs."""
    names = [re.sub(r"( \(inline\))?$", "", f.strip()).replace("[...]", "") for f in functions]
    for name, pattern in _COMPILED.items():
        if any(pattern.search(f) for f in names):
            return name
    return REST
