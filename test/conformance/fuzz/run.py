# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Starts a cache of a table and compares what it serves with the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from client import Client

from . import arrow, oracle
from .cache import Cache, Wrong
from .corrupt import Damage, random_damage
from .generate import draw
from .reads import Read, random_read
from .schema import Field
from .table import Row, Table
from .write import write


@dataclass
class Case:
    """A table of a seed and a read of it."""

    seed: int
    table: Table
    read: Read
    damage: Damage | None = None


def case(seed: int, without: frozenset[str]) -> Case:
    """The case of a seed."""
    table, r = draw(seed, without)
    read = random_read(r, table, without)
    damage = random_damage(r, table, read.snapshot, without) if r.random() < 0.4 else None
    return Case(seed, table, read, damage)


def check(c: Case, server: Path, folder: Path) -> None:
    """Writes the table, reads it and compares. Raises Wrong if something differs."""
    damage = c.damage
    metadata = write(c.table, folder, damage.tamper) if damage else write(c.table, folder)
    try:
        want = c.read.rows(c.table)
    except oracle.Refused as reason:
        want = str(reason)
    flags = ["--metadata", f"{c.table.style['scheme']}{metadata}", *c.read.flags]
    with Cache(server, folder / "cache", flags, c.read.nodes) as cache:
        refused = cache.refusal()
        if refused and (damage or isinstance(want, str)):
            return
        if refused:
            raise Wrong(f"refused: {refused}")
        if isinstance(want, str):
            raise Wrong(f"served, although {want}")
        with cache.client() as client:
            try:
                compare(client, c.read, want)
            except Wrong as wrong:
                if damage is None:
                    raise
                if damage.claim == "exact":
                    raise Wrong(f"{damage.name}: {wrong}") from wrong


def refusal(c: Case, server: Path, folder: Path) -> str:
    """Writes the table; returns why a cache refuses it, "" if it serves it."""
    metadata = write(c.table, folder, c.damage.tamper) if c.damage else write(c.table, folder)
    with Cache(server, folder / "cache", ["--metadata", str(metadata), *c.read.flags], c.read.nodes) as cache:
        return cache.refusal()


def compare(client: Client, read: Read, want: list[Row]) -> None:
    """Compares all rows, and those of a request with a filter."""
    fields = read.fields()
    same_rows("all rows", client.table(), fields, want)
    if read.asked or read.asked_columns:
        request: dict[str, Any] = {"kind": "shard", "index": 0, "total": 1}
        if read.asked:
            request["filter"] = read.asked.text
            want = [row for row in want if read.asked.of(row) is True]
        if read.asked_columns:
            request["columns"] = list(read.asked_columns)
            fields = tuple(next(f for f in fields if f.name == name) for name in read.asked_columns)
        same_rows(f"request {request}", client.read(client.command(**request)), fields, want)


def same_rows(what: str, got: pa.Table, fields: tuple[Field, ...], want: list[Row]) -> None:
    """Compares columns, types and rows in order."""
    schema = pa.schema([arrow.arrow_field(f) for f in fields])
    if not got.schema.equals(schema):
        raise Wrong(f"{what}: schema\n{got.schema}\nfor\n{schema}")
    columns = []
    for f in fields:
        chunks = got.column(f.name).chunks
        columns.append([v for chunk in chunks for v in arrow.from_arrow(f.type, chunk)])
    if got.num_rows != len(want):
        raise Wrong(f"{what}: {got.num_rows} rows for {len(want)}")
    for i, row in enumerate(want):
        for f, column in zip(fields, columns, strict=True):
            if not arrow.same(f.type, column[i], row[f.id]):
                raise Wrong(f"{what}: row {i}, column {f.name!r} is {column[i]!r} for {row[f.id]!r}")
