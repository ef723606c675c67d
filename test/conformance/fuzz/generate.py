# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws a table from a seed."""

from __future__ import annotations

import random

from . import evolve, values
from .files import Files
from .schema import Schema
from .table import Snapshot, Spec, Table

NAMES = ["id", "a", "b c", "Größe", "UPPER", "select", 'quo"te', "x-y", "data", "_1"]


class Generator:
    """A table in the making."""

    def __init__(self, r: random.Random, without: frozenset[str] = frozenset()) -> None:
        self.r, self.without = r, without
        version = r.choice([1, 2, 2, 2, 3, 3])
        self._last_id = 0
        names = r.sample(NAMES, r.randint(1, 6))
        fields = tuple(values.random_field(r, name, self.new_id, version) for name in names)
        self.table = Table(version, [Schema(0, fields)], [Spec(0)])
        self.table.mapping = r.random() < 0.2
        self.last_partition = 999
        if r.random() < 0.5:
            self.table.specs[0] = Spec(0, evolve.partition_fields(self))
        self._time = 1_700_000_000_000
        self._remember_names()
        self._style()

    def new_id(self) -> int:
        """A new field id."""
        self._last_id += 1
        return self._last_id

    def has(self, dimension: str, probability: float) -> bool:
        """Whether the table has something of a dimension, which known defects may switch off."""
        return self.r.random() < probability and dimension not in self.without

    def _style(self) -> None:
        r, style = self.r, self.table.style
        style["scheme"] = r.choice(["file://", "file:", ""]) if self.has("file: URIs", 0.5) else "file://"
        style["old times"] = self.has("old times", 0.3)
        style["plain days"] = self.has("days as int", 0.2)
        style["references"] = r.random() < 0.5
        style["old keys only"] = r.random() < 0.3  # of format v1: no lists of schemas, specs and sort orders
        style["few fields"] = r.random() < 0.2
        style["no summaries"] = r.random() < 0.2
        style["no schema ids"] = r.random() < 0.1
        style["totals"] = r.random() < 0.7
        style["gzip"] = r.random() < 0.1
        style["runs"] = r.random() < 0.3
        style["refs"] = r.random() < 0.5
        style["minus one"] = r.random() < 0.5
        style["list codec"] = r.choice(["null", "deflate", "zstandard"])
        style["list block"] = r.choice([1, 2, 1000])
        if r.random() < 0.3:
            self.table.properties["read.split.target-size"] = r.choice(["1", "1000", "134217728"])

    def _remember_names(self) -> None:
        for f in evolve.all_fields(self.table.schema):
            names = self.table.names.setdefault(f.id, [])
            if f.name not in names:
                names.append(f.name)

    def draw(self) -> Table:
        """Draws the table's history."""
        for _ in range(self.r.choice([0, 1, 1, 2, 3, 4, 5, 7])):
            step = self.r.random()
            if step < 0.12:
                evolve.change_schema(self)
                self._remember_names()
            elif step < 0.18:
                evolve.change_spec(self)
            else:
                self._commit()
                if self.r.random() < 0.2:
                    self._ref()
        return self.table

    def _ref(self) -> None:
        snapshot = self.r.choice(self.table.snapshots)
        name = self.r.choice(["tag", "branch", "old/tag", "Ast ü"])
        self.table.refs[name] = (self.r.choice(["tag", "branch"]), snapshot.id)

    def _base(self) -> tuple[str, Snapshot | None]:
        """The branch to commit to, and its snapshot."""
        branches = [name for name, (kind, _) in self.table.refs.items() if kind == "branch"]
        if branches and self.r.random() < 0.3:
            name = self.r.choice(branches)
            return name, self.table.snapshot(self.table.refs[name][1])
        current = self.table.current
        return "main", None if current is None else self.table.snapshot(current)

    def _commit(self) -> None:
        branch, base = self._base()
        table, r = self.table, self.r
        sequence = 0 if table.version == 1 else max((s.sequence for s in table.snapshots), default=0) + 1
        identifier = r.randrange(1, 2**62)
        name = f"metadata/snap-{identifier}.avro"
        self._time += r.choice([1, 1000, 86_400_000])
        new = Snapshot(
            identifier, base.id if base else None, sequence, self._time, table.schema, [], "append", name,
        )  # fmt: skip
        Files(self, new, list(base.manifests) if base else []).change()
        if table.version == 3:
            self._assign_rows(new)
        table.snapshots.append(new)
        if branch == "main":
            table.current = identifier
            table.log.append((self._time, identifier))
        else:
            table.refs[branch] = ("branch", identifier)

    def _assign_rows(self, new: Snapshot) -> None:
        """Assigns row ids (specification, row lineage). Some snapshots are from before the table was upgraded to v3."""
        if not any(s.first_row is not None for s in self.table.snapshots) and self.r.random() < 0.3:
            return
        new.first_row = self.table.next_row
        for manifest in new.manifests:
            if manifest.deletes or manifest.first_row is not None:
                continue
            manifest.first_row = self.table.next_row
            unset = [e.file for e in manifest.entries if e.status != "deleted" and e.file.first_row is None]
            self.table.next_row += sum(len(f.rows) for f in unset)
        new.added_rows = self.table.next_row - new.first_row


def draw(seed: int, without: frozenset[str] = frozenset()) -> tuple[Table, random.Random]:
    """The table of a seed, and the random numbers that follow."""
    r = random.Random(seed)
    return Generator(r, without).draw(), r
