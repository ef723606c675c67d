# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes deletion vectors: Puffin files with Roaring bitmaps (Puffin and Roaring specifications)."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict

from .schema import Field, Primitive
from .table import File

POSITION_FIELDS = (
    Field(2147483546, "file_path", Primitive("string"), required=True),
    Field(2147483545, "pos", Primitive("long"), required=True),
)

_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"


def write_puffin(vectors: list[File], uri: str, runs: bool) -> bytes:
    """A Puffin file with some deletion vectors; sets their offset and length."""
    out, blobs = bytearray(_MAGIC), []
    for file in vectors:
        blob = vector_blob([position for _, position in file.positions], runs)
        file.offset, file.length = len(out), len(blob)
        assert file.target is not None
        blobs.append({
            "type": "deletion-vector-v1", "fields": [2147483545], "snapshot-id": -1, "sequence-number": -1,
            "offset": file.offset, "length": file.length,
            "properties": {
                "referenced-data-file": f"{uri}/{file.target.path}", "cardinality": str(len(file.positions)),
            },
        })  # fmt: skip
        out += blob
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": "fuzz"}}).encode()
    return bytes(out + _MAGIC + payload + struct.pack("<i", len(payload)) + bytes(4) + _MAGIC)


def vector_blob(positions: list[int], runs: bool = False) -> bytes:
    """A deletion vector: length, magic, bitmap, checksum."""
    high: dict[int, list[int]] = defaultdict(list)
    for p in sorted(set(positions)):
        high[p >> 32].append(p & 0xFFFFFFFF)
    bitmap = struct.pack("<q", len(high))
    for key, low in high.items():
        bitmap += struct.pack("<I", key) + roaring(low, runs)
    body = _VECTOR_MAGIC + bitmap
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def roaring(values: list[int], runs: bool) -> bytes:
    """A 32-bit Roaring bitmap in the portable format, its containers as runs or not."""
    containers: dict[int, list[int]] = defaultdict(list)
    for v in values:
        containers[v >> 16].append(v & 0xFFFF)
    bodies = [_runs(c) if runs else _plain(c) for c in containers.values()]
    count = len(containers)
    if runs:
        head = struct.pack("<I", (count - 1) << 16 | 12347) + b"\xff" * ((count + 7) // 8)
    else:
        head = struct.pack("<II", 12346, count)
    for key, c in containers.items():
        head += struct.pack("<HH", key, len(c) - 1)
    if not runs or count >= 4:
        at = len(head) + 4 * count
        for body in bodies:
            head += struct.pack("<I", at)
            at += len(body)
    return head + b"".join(bodies)


def _plain(values: list[int]) -> bytes:
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    bits = bytearray(8192)
    for v in values:
        bits[v >> 3] |= 1 << (v & 7)
    return bytes(bits)


def _runs(values: list[int]) -> bytes:
    runs: list[list[int]] = []
    for v in values:
        if runs and runs[-1][0] + runs[-1][1] + 1 == v:
            runs[-1][1] += 1
        else:
            runs.append([v, 0])
    return struct.pack("<H", len(runs)) + b"".join(struct.pack("<HH", *run) for run in runs)
