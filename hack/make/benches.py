#!/usr/bin/env python3
# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of test/bench/benches.toml, for make.

benches list: a line for each; benches needs NAME: what make builds before; benches run NAME: runs it.
"""

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

BENCHES = tomllib.loads(Path("test/bench/benches.toml").read_text())


def main(what: str, name: str = "") -> int:
    """Does what make asks for; returns the exit code."""
    if what == "list":
        print("make bench NAME=...  (BENCH='...' for more options; on idle cores)\n")
        for known, bench in BENCHES.items():
            text = textwrap.wrap(f"{bench['prints']} (about {bench['minutes']} min)", 88)
            print(f"  {known:8}", f"\n{'':11}".join(text))
        return 0
    if name not in BENCHES:
        print(f"bench: NAME={name}, want one of {' '.join(BENCHES)}", file=sys.stderr)
        return 2
    bench = BENCHES[name]
    if what == "needs":
        print(bench["needs"])
        return 0
    print(f"==> bench {name}: {bench['prints']} (about {bench['minutes']} min on idle cores)", flush=True)
    path = "python/src:test/bench:test/conformance:hack"
    return subprocess.call(["bash", "-euo", "pipefail", "-c", bench["run"]], env={**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
