# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random reads of a table: which snapshot, columns, rows and nodes, and the rows that the model expects."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime

from . import oracle
from .conditions import Condition, random_condition
from .schema import LAST_UPDATED, ROW_ID, Field, Schema
from .table import Row, Snapshot, Table


@dataclass
class Read:
    """What a cache is started with, and what is asked of it."""

    flags: list[str]
    nodes: int
    snapshot: Snapshot | None
    schema: Schema
    columns: tuple[str, ...] = ()
    where: Condition | None = None
    asked: Condition | None = None  # filter of a client's request
    asked_columns: tuple[str, ...] = ()

    def fields(self) -> tuple[Field, ...]:
        """The served columns."""
        if self.columns:
            return tuple(f for f in self.schema.fields if f.name in self.columns)
        return tuple(f for f in self.schema.fields if f not in (ROW_ID, LAST_UPDATED))

    def rows(self, table: Table) -> list[Row]:
        """The served rows, in order, with the columns of the whole schema."""
        all_rows = oracle.rows(table, self.snapshot, self.schema)
        return [row for row in all_rows if self.where is None or self.where.of(row) is True]


def random_read(r: random.Random, table: Table, without: frozenset[str]) -> Read:
    """A read of some snapshot."""
    read = _pick_snapshot(r, table)
    if table.version == 3 and read.snapshot and "row lineage" not in without and r.random() < 0.5:
        read.schema = Schema(read.schema.id, (*read.schema.fields, ROW_ID, LAST_UPDATED))
    try:
        rows = oracle.rows(table, read.snapshot, read.schema)
    except oracle.Refused:
        rows = []
    names = [f.name for f in read.schema.fields]
    if r.random() < 0.3:
        read.columns = tuple(r.sample(names, r.randint(1, len(names))))
        read.flags += ["--columns", ",".join(_csv(n) for n in read.columns)]
    if r.random() < 0.5:
        sources = frozenset(p.source for spec in table.specs for p in spec.fields)
        read.where = random_condition(r, read.schema, rows, sources)
        if read.where and "\0" in read.where.text:  # which no flag can have
            read.where = None
        if read.where:
            read.flags += ["--filter", read.where.text]
    fields = read.fields()
    if r.random() < 0.5:
        read.asked = random_condition(r, Schema(0, fields), rows)
    if r.random() < 0.3:
        read.asked_columns = tuple(r.sample([f.name for f in fields], r.randint(1, len(fields))))
    return read


def _csv(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set('," ') else name


def _pick_snapshot(r: random.Random, table: Table) -> Read:
    """The current snapshot, or one by its id, by a ref, or by a time."""
    nodes = r.choice([1, 1, 2, 3])
    current = None if table.current is None else table.snapshot(table.current)
    how = r.random()
    if how < 0.12 and table.snapshots:
        s = r.choice(table.snapshots)
        return Read(["--snapshot-id", str(s.id)], nodes, s, _schema_of(table, s))
    if how < 0.25 and table.refs:
        name = r.choice(sorted(table.refs))
        kind, identifier = table.refs[name]
        s = table.snapshot(identifier)
        schema = table.schema if kind == "branch" else _schema_of(table, s)
        return Read(["--ref", name], nodes, s, schema)
    if how < 0.35 and table.log:
        at, identifier = r.choice(table.log)
        until = min((t for t, _ in table.log if t > at), default=at + 10**6)
        at = r.randrange(at, until)
        time = datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at % 1000:03}Z"
        s = table.snapshot(identifier)
        return Read(["--as-of", time], nodes, s, _schema_of(table, s))
    return Read([], nodes, current, table.schema)


def _schema_of(table: Table, s: Snapshot) -> Schema:
    return table.schema if table.style.get("no schema ids") else s.schema
