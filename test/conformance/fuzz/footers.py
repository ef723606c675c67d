# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damages footers and page headers of Parquet files (parquet.thrift)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

from . import thrift
from .thrift import Fields, Value

# Numbers of fields in parquet.thrift.
SCHEMA, NUM_ROWS, GROUPS = 2, 3, 4  # FileMetaData
COLUMNS, BYTES, ROWS = 1, 2, 3  # RowGroup
METADATA = 3  # ColumnChunk
CODEC, VALUES, UNCOMPRESSED, COMPRESSED, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE = 4, 5, 6, 7, 9, 10, 11
KIND, REPETITION, NAME, CHILDREN, CONVERTED, FIELD_ID = 1, 3, 4, 5, 6, 9  # SchemaElement

DATA_PAGE_V2 = 3  # PageType
CODECS = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"]

Claim = Literal["exact", "alive"]
Change = Callable[[bytes], bytes]


def random_change(r: random.Random) -> tuple[str, Claim, Change]:
    """A change of a Parquet file, and what a cache may do then."""
    seed = r.getrandbits(64)
    numbers = [0, 1, -1, 2**31 - 1, -(2**31), 2**40, -(2**62)]
    makers: list[tuple[str, Claim, Callable[[random.Random, Fields], None]]] = [
        ("rows of the file", "exact", lambda q, f: _add(f[NUM_ROWS], q.choice([1, -1, 2**40]))),
        ("rows of a row group", "exact", lambda q, f: _add(_group(q, f)[ROWS], q.choice([1, -1, 2**40]))),
        ("values of a column", "exact", lambda q, f: _add(_column(q, f)[VALUES], q.choice([1, -1, 2**40]))),
        ("codec", "exact", lambda q, f: _set(_column(q, f)[CODEC], q.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 99]))),
        ("compressed size", "exact", lambda q, f: _add(_column(q, f)[COMPRESSED], q.choice([1, -1, *numbers]))),
        ("uncompressed size", "exact", lambda q, f: _add(_column(q, f)[UNCOMPRESSED], q.choice([1, -1, *numbers]))),
        ("data page offset", "exact", lambda q, f: _add(_column(q, f)[DATA_PAGE], q.choice([1, -1, *numbers]))),
        ("a row group less", "exact", lambda q, f: f[GROUPS].value.remove(q.choice(f[GROUPS].value))),
        ("a row group twice", "exact", lambda q, f: f[GROUPS].value.append(q.choice(f[GROUPS].value))),
        ("a column less", "exact", _drop_column),
        ("physical type", "alive", lambda q, f: _set(_element(q, f)[KIND], q.randrange(-1, 9))),
        ("repetition", "alive", lambda q, f: _set(_element(q, f)[REPETITION], q.randrange(-1, 4))),
        ("children", "alive", lambda q, f: _set(f[SCHEMA].value[0].value[CHILDREN], q.choice(numbers))),
        ("any number", "alive", lambda q, f: _any_number(q, thrift.record(f), q.choice(numbers))),
    ]
    name, claim, change = r.choice(makers)

    def apply(content: bytes) -> bytes:
        footer = thrift.footer(content)
        try:
            change(random.Random(seed), footer)
        except (IndexError, KeyError):
            return content  # the file has nothing of the kind
        return thrift.with_footer(content, footer)

    if r.random() < 0.3:
        return "page header", "alive", lambda content: _page_header(random.Random(seed), content)
    return name, claim, apply


def _add(to: Value, n: int) -> None:
    to.value += n


def _set(to: Value, n: int) -> None:
    to.value = n


def _group(r: random.Random, footer: Fields) -> Fields:
    return r.choice(footer[GROUPS].value).value


def _column(r: random.Random, footer: Fields) -> Fields:
    return r.choice(_group(r, footer)[COLUMNS].value).value[METADATA].value


def _element(r: random.Random, footer: Fields) -> Fields:
    return r.choice([e.value for e in footer[SCHEMA].value if KIND in e.value])


def _drop_column(r: random.Random, footer: Fields) -> None:
    columns = _group(r, footer)[COLUMNS].value
    columns.remove(r.choice(columns))


def _any_number(r: random.Random, of: Value, n: int) -> None:
    """Sets some number of the footer."""
    found: list[Value] = []

    def walk(v: Value) -> None:
        if v.type in (thrift.I16, thrift.I32, thrift.I64):
            found.append(v)
        elif v.type == thrift.STRUCT:
            for inner in v.value.values():
                walk(inner)
        elif v.type == thrift.LIST:
            for inner in v.value:
                walk(inner)

    walk(of)
    chosen = r.choice(found)
    chosen.value = n if chosen.type == thrift.I64 else max(min(n, 2**31 - 1), -(2**31))


def pages(content: bytes) -> list[tuple[int, int, Fields]]:
    """Start and end of each page header of a file, and the header."""
    out = []
    for group in thrift.footer(content)[GROUPS].value:
        for column in group.value[COLUMNS].value:
            meta = column.value[METADATA].value
            places = [meta[i].value for i in (DATA_PAGE, DICTIONARY_PAGE) if i in meta and meta[i].value > 0]
            if not places:  # a column chunk without pages
                continue
            at = min(places)
            end = at + meta[COMPRESSED].value
            while at < end:
                reader = thrift.Reader(content, at)
                header = reader.struct()
                out.append((at, reader.at, header))
                at = reader.at + header[3].value
    return out


def codecs_of(content: bytes) -> set[str]:
    """The codecs of a file's columns."""
    columns = [c for g in thrift.footer(content)[GROUPS].value for c in g.value[COLUMNS].value]
    return {CODECS[c.value[METADATA].value[CODEC].value] for c in columns}


def without_rows(content: bytes) -> bytes:
    """A file whose footer says that it has no rows, but not its row groups."""
    footer = thrift.footer(content)
    footer[NUM_ROWS].value = 0
    return thrift.with_footer(content, footer)


def _page_header(r: random.Random, content: bytes) -> bytes:
    """Changes a number in a page header, if it takes as many bytes as before."""
    found = pages(content)
    if not found:
        return content
    start, end, header = r.choice(found)
    _any_number(r, thrift.record(header), r.choice([0, 1, 2, 3, 63, 1000, 2**20, 2**31 - 1, -1]))
    raw = thrift.write(header)
    return content[:start] + raw + content[end:] if len(raw) == end - start else content
