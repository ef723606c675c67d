# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet files of flat columns byte by byte, as other and older writers do and pyarrow can't.

Random per column: data pages of both versions, PLAIN and dictionary pages in one chunk, both names of the dictionary
encoding, Hadoop's LZ4, compressed pages of several members, INT96, decimals as integers, types without logical types,
no statistics or only a count of nulls, chunks without dictionary_page_offset, gaps between chunks.
"""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from typing import Any

import pyarrow as pa

from . import thrift
from .manifests import decimal_size
from .metrics import order
from .schema import Field, Primitive
from .table import File
from .thrift import Fields, Value, boolean, i32, i64, record, sequence

_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_BOOLEAN, _INT32, _INT64, _INT96, _FLOAT, _DOUBLE, _BYTES, _FIXED = range(8)
_UNCOMPRESSED, _SNAPPY, _GZIP, _BROTLI, _LZ4, _ZSTD, _LZ4_RAW = 0, 1, 2, 4, 5, 6, 7


def writable(fields: tuple[Field, ...]) -> bool:
    """Whether this module can write such columns."""
    return all(isinstance(f.type, Primitive) and f.type.base != "unknown" for f in fields)


def write_raw(file: File, seed: int) -> bytes:
    """A file's bytes; sets where its row groups begin."""
    r = random.Random(seed)
    out, groups, first = bytearray(b"PAR1"), [], 0
    columns = [_Column(r, f) for f in file.fields]
    file.starts = []
    for n in file.layout.groups:
        rows = file.rows[first : first + n]
        if n:
            file.starts.append(len(out))
        chunks = [c.chunk(out, [row.get(c.field.id) for row in rows]) for c in columns]
        total = sum(c.value[3].value[6].value for c in chunks)
        groups.append(record({1: sequence(chunks), 2: i64(total), 3: i64(n)}))
        first += n
    root = record({4: thrift.binary("schema"), 5: i32(len(columns))})
    footer: Fields = {
        1: i32(r.choice([1, 2])), 2: sequence([root, *(c.element(file.layout.ids) for c in columns)]),
        3: i64(len(file.rows)), 4: sequence(groups, thrift.STRUCT),
    }  # fmt: skip
    if r.random() < 0.8:
        footer[6] = thrift.binary(r.choice(["fuzz", "parquet-mr version 1.8.0 (build x)", "parquet-cpp version 1.3.0"]))
    if r.random() < 0.8:
        footer[7] = sequence([record({1: record({})}) for _ in columns])
    raw = thrift.write(footer)
    return bytes(out) + raw + struct.pack("<I", len(raw)) + b"PAR1"


class _Column:
    """A column of a file: its physical type, and how its chunks are written."""

    def __init__(self, r: random.Random, field: Field) -> None:
        assert isinstance(field.type, Primitive)
        self.r, self.field, self.type = r, field, field.type
        self.physical, self.length = self._physical()
        self.codec = r.choice([_UNCOMPRESSED, _SNAPPY, _GZIP, _BROTLI, _LZ4, _ZSTD, _LZ4_RAW])
        self.pages = r.choice([1, 2])  # version of data pages
        self.bare = r.random() < 0.2  # without a logical type where none is needed
        self.checked = r.random() < 0.3  # with checksums: on all pages of a chunk, or on none
        self.statistics = r.choice(["all", "all", "nulls", "none"])

    def _physical(self) -> tuple[int, int]:
        t = self.type
        if t.base == "decimal":
            precision = t.parameters[0]
            choices = [(_FIXED, decimal_size(precision))]
            choices += [(_INT64, 0)] if precision <= 18 else []
            choices += [(_INT32, 0)] if precision <= 9 else []
            return self.r.choice(choices)
        if t.base in ("timestamp", "timestamptz") and self.r.random() < 0.2:
            return _INT96, 0
        simple = {
            "boolean": _BOOLEAN, "int": _INT32, "date": _INT32, "float": _FLOAT, "double": _DOUBLE, "string": _BYTES,
            "binary": _BYTES, "fixed": _FIXED, "uuid": _FIXED,
        }  # fmt: skip
        length = 16 if t.base == "uuid" else t.parameters[0] if t.base == "fixed" else 0
        return simple.get(t.base, _INT64), length

    def element(self, ids: bool) -> Value:
        """The column in the footer's schema."""
        out: Fields = {
            1: i32(self.physical), 3: i32(0 if self.field.required else 1), 4: thrift.binary(self.field.name),
        }  # fmt: skip
        if self.length:
            out[2] = i32(self.length)
        if ids:
            out[9] = i32(self.field.id)
        base = self.type.base
        if self.physical != _INT96 and not (self.bare and base in ("string", "uuid", "int", "long")):
            converted = {"string": 0, "decimal": 5, "date": 6, "time": 8, "timestamptz": 10}.get(base)
            if converted is not None:
                out[6] = i32(converted)
            if base == "decimal":
                out[7], out[8] = i32(self.type.parameters[1]), i32(self.type.parameters[0])
            elif base not in ("string", "date", "timestamptz") or self.r.random() < 0.5:
                self._logical(out)
        return record(out)

    def _logical(self, out: Fields) -> None:
        base = self.type.base
        unit = record({3 if base.endswith("_ns") else 2: record({})})
        kinds: dict[str, tuple[int, Fields]] = {
            "string": (1, {}), "date": (6, {}), "uuid": (14, {}),
            "time": (7, {1: boolean(False), 2: unit}),
        }  # fmt: skip
        if base.startswith("timestamp"):
            kinds[base] = (8, {1: boolean(base.startswith("timestamptz")), 2: unit})
        if base in kinds:
            number, fields = kinds[base]
            out[10] = record({number: record(fields)})

    def chunk(self, out: bytearray, values: list[Any]) -> Value:
        """Appends a column chunk; returns its description."""
        out += bytes(self.r.choice([0, 0, 3, 100]))
        start = len(out)
        known = [v for v in values if v is not None]
        dictionary: list[Any] | None = None
        if self.physical != _BOOLEAN and self.r.random() < 0.5:
            dictionary = list({repr(v): v for v in known}.values())
        name = self.r.choice([_PLAIN_DICTIONARY, _RLE_DICTIONARY])
        sizes = [0, 0]  # uncompressed and compressed, with headers
        encodings = {_RLE}
        if dictionary is not None:
            raw = b"".join(self.plain(v) for v in dictionary)
            encoding = _PLAIN_DICTIONARY if name == _PLAIN_DICTIONARY else _PLAIN
            inner = {1: i32(len(dictionary)), 2: i32(encoding)}
            self._page(out, sizes, 2, (7, inner), b"", raw)
        data_at = len(out)
        at, fallback = 0, False
        while at < len(values) or (at == 0 and not values):
            n = self.r.choice([1, 7, 100, 100])
            part = values[at : at + n]
            fallback = fallback or dictionary is None or self.r.random() < 0.1
            encodings.add(self._data_page(out, sizes, part, None if fallback else dictionary, name))
            at += len(part)
            if not values:
                break
        meta: Fields = {
            1: i32(self.physical), 2: sequence([i32(e) for e in sorted(encodings)]),
            3: sequence([thrift.binary(self.field.name)]), 4: i32(self.codec), 5: i64(len(values)), 6: i64(sizes[0]),
            7: i64(sizes[1]), 9: i64(data_at),
        }  # fmt: skip
        if dictionary is not None and self.r.random() < 0.3:
            meta[9] = i64(start)  # old writers: the first page, whatever it is
        elif dictionary is not None:
            meta[11] = i64(start)
        self._statistics(meta, values, known)
        return record({2: i64(start), 3: record(meta)})

    def _statistics(self, meta: Fields, values: list[Any], known: list[Any]) -> None:
        if self.statistics == "none":
            return
        statistics = {3: i64(len(values) - len(known))}
        known = [v for v in known if v == v]
        if self.statistics == "all" and known and self.physical != _INT96 and self.type.base != "decimal":
            least = min(known, key=lambda v: order(self.type, v))
            most = max(known, key=lambda v: order(self.type, v))
            if isinstance(least, float):  # zeros of both signs are one value in statistics
                least, most = (-0.0 if least == 0 else least), (0.0 if most == 0 else most)
            statistics |= {5: thrift.binary(self.statistic(most)), 6: thrift.binary(self.statistic(least))}
        meta[12] = record(statistics)

    def statistic(self, v: Any) -> bytes:
        """A value in statistics."""
        if self.physical == _BOOLEAN:
            return bytes([v])
        return self.plain(v)[4:] if self.physical == _BYTES else self.plain(v)

    def plain(self, v: Any) -> bytes:
        """A value in PLAIN encoding, except of a boolean."""
        match self.physical:
            case 1:
                return struct.pack("<i", v)
            case 2:
                return struct.pack("<q", v)
            case 3:
                days, micros = divmod(v, 86_400_000_000)
                return struct.pack("<qi", micros * 1000, days + 2440588)
            case 4:
                return struct.pack("<f", v)
            case 5:
                return struct.pack("<d", v)
            case 6:
                raw = v.encode() if isinstance(v, str) else v
                return struct.pack("<I", len(raw)) + raw
        return v.to_bytes(self.length, "big", signed=True) if self.type.base == "decimal" else v

    def _data_page(
        self, out: bytearray, sizes: list[int], part: list[Any], dictionary: list[Any] | None, name: int
    ) -> int:
        """Appends a data page; returns its encoding."""
        known = [v for v in part if v is not None]
        levels = b"" if self.field.required else hybrid(self.r, [int(v is not None) for v in part], 1)
        if dictionary is not None:
            encoding, places = name, {repr(v): i for i, v in enumerate(dictionary)}
            width = max(len(dictionary) - 1, 0).bit_length()
            raw = bytes([width]) + hybrid(self.r, [places[repr(v)] for v in known], width)
        elif self.physical == _BOOLEAN and self.pages == 2 and self.r.random() < 0.5:
            encoding, bits = _RLE, hybrid(self.r, [int(v) for v in known], 1)
            raw = struct.pack("<I", len(bits)) + bits
        elif self.physical == _BOOLEAN:
            encoding, raw = _PLAIN, packed([int(v) for v in known], 1)
        else:
            encoding, raw = _PLAIN, b"".join(self.plain(v) for v in known)
        if self.pages == 1:
            prefixed = b"" if self.field.required else struct.pack("<I", len(levels)) + levels
            inner = {1: i32(len(part)), 2: i32(encoding), 3: i32(_RLE), 4: i32(_RLE)}
            self._page(out, sizes, 0, (5, inner), b"", prefixed + raw)
            return encoding
        inner = {
            1: i32(len(part)), 2: i32(len(part) - len(known)), 3: i32(len(part)), 4: i32(encoding),
            5: i32(len(levels)), 6: i32(0),
        }  # fmt: skip
        self._page(out, sizes, 3, (8, inner), levels, raw)
        return encoding

    def _page(
        self, out: bytearray, sizes: list[int], kind: int, inner: tuple[int, Fields], levels: bytes, raw: bytes
    ) -> None:
        number, fields = inner
        body = compress(self.r, raw, self.codec)
        if kind == 3 and (self.codec == _UNCOMPRESSED or self.r.random() < 0.2):
            body, fields[7] = raw, boolean(False)
        body = levels + body
        header: Fields = {
            1: i32(kind), 2: i32(len(levels) + len(raw)), 3: i32(len(body)), number: record(fields),
        }  # fmt: skip
        if self.checked:
            crc = zlib.crc32(body)
            header[4] = i32(crc - (1 << 32) if crc >> 31 else crc)
        head = thrift.write(header)
        out += head + body
        sizes[0] += len(head) + len(levels) + len(raw)
        sizes[1] += len(head) + len(body)


def packed(values: list[int], width: int) -> bytes:
    """Values packed bit by bit, the lowest bit first."""
    bits = sum(v << (i * width) for i, v in enumerate(values))
    return bits.to_bytes((len(values) * width + 7) // 8, "little")


def hybrid(r: random.Random, values: list[int], width: int) -> bytes:
    """Values as random runs of Parquet's hybrid of run lengths and bit packing."""
    out, at = b"", 0
    while at < len(values):
        same = next((i for i in range(at, len(values)) if values[i] != values[at]), len(values)) - at
        if r.random() < 0.5:
            n = r.randint(1, same)
            out += thrift.varint(n << 1) + values[at].to_bytes((width + 7) // 8, "little")
        else:
            n = min(8 * r.randint(1, 3), len(values) - at)
            n = n if at + n == len(values) else n // 8 * 8
            groups = (n + 7) // 8
            part = values[at : at + n] + [0] * (groups * 8 - n)
            out += thrift.varint(groups << 1 | 1) + packed(part, width)
        at += n
    return out


def compress(r: random.Random, raw: bytes, codec: int) -> bytes:
    """A page's bytes in a codec, at times in several members."""
    names = {_SNAPPY: "snappy", _GZIP: "gzip", _BROTLI: "brotli", _ZSTD: "zstd", _LZ4: "lz4_raw", _LZ4_RAW: "lz4_raw"}
    if codec == _UNCOMPRESSED:
        return raw

    def one(part: bytes) -> bytes:
        if codec == _GZIP:
            return gzip.compress(part)
        return pa.Codec(names[codec]).compress(part, asbytes=True) if part or codec != _LZ4 else b""

    def framed(part: bytes) -> bytes:  # Hadoop's LZ4: lengths before and after compression, then the block
        body = one(part)
        return struct.pack(">II", len(part), len(body)) + body

    members = framed if codec == _LZ4 else one
    if codec in (_GZIP, _ZSTD, _LZ4) and len(raw) > 1 and r.random() < 0.2:
        cut = r.randrange(1, len(raw))
        return members(raw[:cut]) + members(raw[cut:])
    return members(raw)
