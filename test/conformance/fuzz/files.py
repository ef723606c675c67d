# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random changes of a table's files: appends, deletes, rewrites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import oracle, values
from .schema import LAST_UPDATED, ROW_ID, Field, Primitive, Struct
from .table import Entry, File, Layout, Manifest, Metrics, Mode, Row, Snapshot, Spec
from .transforms import apply

if TYPE_CHECKING:
    from .generate import Generator

CODECS = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


class Files:
    """One commit: the manifests of the snapshot before it become those of a new one."""

    def __init__(self, g: Generator, new: Snapshot, manifests: list[Manifest]) -> None:
        self.g, self.r, self.table, self.new = g, g.r, g.table, new
        self.manifests = manifests

    def change(self) -> None:
        """Makes one change."""
        live = self.live("data")
        steps: list[tuple[float, Callable[[], None]]] = [(4, self.append)]
        if live:
            steps += [(1, self.remove), (1, self.rewrite_manifests), (0.7, self.compact)]
            if self.table.version > 1:
                steps += [(2.5, self.delete_positions), (2, self.delete_equal)]
        (step,) = self.r.choices([s for _, s in steps], [w for w, _ in steps])
        step()
        self.r.shuffle(self.manifests)
        self.new.manifests = self.manifests

    def live(self, *contents: str) -> list[Entry]:
        """The live entries of some contents."""
        return [e for m in self.manifests for e in m.entries if e.status != "deleted" and e.file.content in contents]

    # Data files.

    def append(self) -> None:
        """Adds data files."""
        self.new.operation = "append"
        spec = self.table.specs[-1]
        self.add([self.data_file(spec) for _ in range(self.r.choice([1, 1, 2, 3]))])

    def add(self, files: list[File], sequence: int | None = None) -> None:
        """Adds entries of files in new manifests, one for each spec and content."""
        by: dict[tuple[int, bool], list[Entry]] = defaultdict(list)
        own = self.new.sequence
        for f in files:
            entry = Entry("added", f, own if sequence is None else sequence, own, self.new.id, sequence is None)
            by[f.spec.id, f.content != "data"].append(entry)
        for (_, deletes), entries in by.items():
            self.manifests.append(self.manifest(entries, deletes))

    def manifest(self, entries: list[Entry], deletes: bool) -> Manifest:
        """A new manifest."""
        return Manifest(
            self.name("metadata", "-m0.avro"), entries[0].file.spec, self.table.schema, entries, self.new.sequence,
            self.new.id, deletes, codec=self.r.choice(["null", "deflate", "zstandard"]), block=self.r.choice([1, 1000]),
        )  # fmt: skip

    def name(self, folder: str, suffix: str) -> str:
        """A new path."""
        odd = self.r.choice(["", "", "", "a b/", "x=1/", "p%20q/", "ü=ä%2F/", "h#h?q/", "plus+/"])
        return f"{folder}/{odd if folder == 'data' else ''}{self.r.randrange(16**8):08x}{suffix}"

    def data_file(self, spec: Spec) -> File:
        """A data file of random rows, all of one partition."""
        fields = self._file_fields(spec)
        pools, partition = self._partition(spec)
        n = self.r.choice([0, 1, 2, 3, 5, 10, 10, 20, 40, 150])
        rows = [self._row(self.table.schema.fields, pools) for _ in range(n)]
        rows = [self._held(fields, row) for row in rows]
        return File(
            self.name("data", ".parquet"), "data", spec, partition, fields, rows, self.layout(n), self.metrics()
        )

    def _file_fields(self, spec: Spec) -> tuple[Field, ...]:
        """The columns that a file has: some leave out those that have a value anyway."""
        identity = {p.source for p in spec.fields if p.transform == "identity"}
        needed = {p.source for p in spec.fields} - identity
        fields = self.table.schema.fields
        if self.r.random() < 0.15:
            fields = tuple(f for f in fields if f.id not in identity or self.r.random() < 0.3)
        if self.r.random() < 0.15:
            fields = tuple(f for f in fields if self._needed(f, needed) or self.r.random() < 0.7)
        if self.r.random() < 0.15:
            fields = tuple(self.r.sample(fields, len(fields)))
        return fields or self.table.schema.fields

    def _needed(self, f: Field, sources: set[int]) -> bool:
        return (f.required and f.default is None) or f.id in sources or any(_holds(f, i) for i in sources)

    def _held(self, fields: tuple[Field, ...], row: Row) -> Row:
        return {f.id: row[f.id] for f in fields}

    def _partition(self, spec: Spec) -> tuple[dict[int, list[Any]], tuple[Any, ...]]:
        """Values for the source columns that lie in one partition, and the partition."""
        pools: dict[int, list[Any]] = {}
        required = {f.id: f.required for _, f in self.table.schema.leaves()}
        types = {f.id: f.type for _, f in self.table.schema.leaves()}
        partition = []
        for source in {p.source for p in spec.fields}:
            mine = [p for p in spec.fields if p.source == source]
            t = types.get(source)
            if not isinstance(t, Primitive):  # the column was dropped
                pools[source] = [None]
                continue
            candidates = [self._moderate(t) for _ in range(25)]
            if not required[source] and self.r.random() < 0.15:
                candidates = [None]
            first = candidates[0]
            pools[source] = [v for v in candidates if all(self._same(p.transform, t, v, first) for p in mine)]
        for p in spec.fields:
            t = types.get(p.source)
            partition.append(
                apply(p.transform, t, pools[p.source][0], self.table.style["old times"])
                if isinstance(t, Primitive)
                else None
            )
        return pools, tuple(partition)

    def _same(self, transform: str, t: Primitive, a: Any, b: Any) -> bool:
        old = self.table.style["old times"]
        return oracle.key(apply(transform, t, a, old)) == oracle.key(apply(transform, t, b, old))

    def _moderate(self, t: Primitive) -> Any:
        """A value of a partition's source column: few different ones, none that transforms overflow."""
        v = values.primitive(self.r, t)
        if t.base in ("int", "long", "decimal"):
            return v % 40 - 20
        return v

    def _row(self, fields: tuple[Field, ...], pools: dict[int, list[Any]]) -> Row:
        return {f.id: self._cell(f, pools) for f in fields}

    def _cell(self, f: Field, pools: dict[int, list[Any]]) -> Any:
        if f.id in pools:
            return self.r.choice(pools[f.id])
        if isinstance(f.type, Struct) and any(_holds(f, i) for i in pools):
            inside = {i: pool for i, pool in pools.items() if _holds(f, i)}
            if all(pool == [None] for pool in inside.values()) and not f.required and self.r.random() < 0.3:
                return None
            return {kid.id: self._cell(kid, pools) for kid in f.type.fields}
        return values.value(self.r, f)

    def layout(self, rows: int) -> Layout:
        """How to write a file of so many rows."""
        r = self.r
        groups: list[int] = []
        most = r.choice([1, 3, 7, 1000, 1000, 1000]) if rows < 50 else r.choice([13, 64, 1000])
        while sum(groups) < rows:
            groups.append(min(most, rows - sum(groups)))
        if r.random() < 0.05:
            groups.insert(r.randint(0, len(groups)), 0)
        # If pages are tiny, pyarrow begins a column with a page without values. arrow-go, which reads nested columns,
        # takes that for the column's end: such tables are refused.
        flat = all(isinstance(f.type, Primitive) for f in self.table.schema.fields)
        options = {
            "compression": r.choice(CODECS),
            "data_page_version": r.choice(["1.0", "2.0"]),
            "use_dictionary": r.random() < 0.7,
            "write_statistics": r.random() < 0.85,
            "write_page_index": r.random() < 0.3,
            "write_page_checksum": r.random() < 0.3,
            "data_page_size": r.choice([1 if flat else 1000, 1000, 1 << 20]),
            "dictionary_pagesize_limit": r.choice([1, 50, 1 << 20]),
            "store_schema": r.random() < 0.5,
            "write_batch_size": r.choice([1, 10, 1024]),
        }
        raw = r.getrandbits(32) if self.g.has("raw files", 0.3) else None
        return Layout(groups, ids=not (self.table.mapping and r.random() < 0.5), options=options, raw=raw)

    def metrics(self, every: bool = False) -> Metrics:
        """What to say of a file's columns, all of them or some."""
        r = self.r
        only = None
        if not every and r.random() < 0.2:
            only = frozenset(f.id for _, f in self.table.schema.leaves() if r.random() < 0.5)
        mode: Mode = r.choice(["none", "counts", "truncate", "truncate", "full", "full", "full"])
        return Metrics(mode, r.choice([1, 2, 16]), r.random() < 0.2, only, r.random() < 0.7)

    # Deletes.

    def groups(self) -> list[list[Entry]]:
        """The live data files by partition."""
        by: dict[Any, list[Entry]] = defaultdict(list)
        for e in self.live("data"):
            by[e.file.spec.id, oracle.key(e.file.partition)].append(e)
        return list(by.values())

    def delete_positions(self) -> None:
        """Deletes rows by position, with delete files or deletion vectors."""
        self.new.operation = "delete"
        if self.table.version == 3 and (self.r.random() < 0.8 or self.live("vector")):
            self._delete_by_vectors()
            return
        files = []
        for group in self.r.sample(self.groups(), min(len(self.groups()), self.r.choice([1, 1, 2]))):
            at = sorted(
                {(e.file.path, p): (e.file, p) for e in group for p in self._some(len(e.file.rows))}.items(),
                key=lambda item: (item[0][0].encode(), item[0][1]),
            )
            positions = [target for _, target in at]
            f = group[0].file
            layout = self.layout(len(positions))
            layout.ids = self.r.random() < 0.9
            files.append(
                File(self.name("data", "-deletes.parquet"), "positions", f.spec, f.partition, (), [{}] * len(positions),
                     layout, self.metrics(every=True), positions=positions)
            )  # fmt: skip
        self.add(files)

    def _some(self, rows: int) -> list[int]:
        how = self.r.random()
        if how < 0.1:
            return list(range(rows))
        return [i for i in range(rows) if self.r.random() < how / 2]

    def _delete_by_vectors(self) -> None:
        """Replaces the vectors of some files; a vector holds all deletes of its file by position."""
        live = self.live("data")
        path, files = self.name("data", ".puffin"), []
        deletes = self.live("positions", "vector")
        for e in self.r.sample(live, min(len(live), self.r.choice([1, 2, 3]))):
            mine = [d for d in deletes if oracle.applies(d, e)]
            gone = {p for d in mine for target, p in d.file.positions if target.path == e.file.path}
            gone |= set(self._some(len(e.file.rows)))
            if not gone:
                continue
            self.drop([d.file for d in mine if d.file.content == "vector"])
            positions = [(e.file, p) for p in sorted(gone)]
            files.append(
                File(path, "vector", e.file.spec, e.file.partition, (), [], Layout([]), Metrics("none"), target=e.file,
                     positions=positions)
            )  # fmt: skip
        if files:
            self.add(files)

    def delete_equal(self) -> None:
        """Deletes rows that equal given ones."""
        self.new.operation = "delete"
        schema = self.table.schema
        leaves = [(w, f) for w, f in schema.leaves() if f.type != Primitive("unknown")]
        if not leaves:
            return
        chosen = self.r.sample(leaves, min(len(leaves), self.r.choice([1, 1, 2])))
        ids = [f.id for _, f in chosen]
        spec = self.table.specs[-1]
        if not self.table.specs[0].fields and self.r.random() < 0.3:
            spec = self.table.specs[0]  # deletes in all partitions
        group = self.r.choice(self.groups())
        partition: tuple[Any, ...] = ()
        if spec.fields:
            mine = [g for g in self.groups() if g[0].file.spec.id == spec.id]
            if not mine:
                return
            group = self.r.choice(mine)
            partition = group[0].file.partition
        fields = tuple(kept for f in schema.fields if (kept := _only(f, ids)))
        deleted = [(row, e.file) for e in group for row in e.file.rows if self.r.random() < 0.2]
        rows = [oracle.project(fields, row, file) for row, file in deleted]
        rows += [{f.id: values.value(self.r, f) for f in fields} for _ in range(self.r.choice([0, 1, 3]))]
        layout = self.layout(len(rows))
        file = File(
            self.name("data", "-equality.parquet"), "equality", spec, partition, fields, rows, layout, self.metrics(),
            equality=tuple(ids),
        )  # fmt: skip
        self.add([file])

    # Rewrites.

    def drop(self, files: list[File]) -> None:
        """Removes files: the manifests that contain them are written anew, with the others as existing."""
        gone = {id(f) for f in files}
        for at, m in enumerate(self.manifests):
            if not any(id(e.file) in gone and e.status != "deleted" for e in m.entries):
                continue
            self._resolve(m)
            entries = []
            for e in m.entries:
                if e.status == "deleted":
                    continue
                removed = id(e.file) in gone
                snapshot = self.new.id if removed else e.snapshot
                status = "deleted" if removed else "existing"
                entries.append(Entry(status, e.file, e.sequence, e.file_sequence, snapshot, inherits=False))
            self.manifests[at] = self.manifest(entries, m.deletes)
            self.manifests[at].schema, self.manifests[at].first_row = m.schema, m.first_row

    def _resolve(self, m: Manifest) -> None:
        """Gives a manifest's files the row ids that they inherit."""
        if m.first_row is None:
            return
        row = m.first_row
        for e in m.entries:
            if e.status != "deleted" and e.file.first_row is None:
                e.file.first_row = row
                row += len(e.file.rows)

    def remove(self) -> None:
        """Removes data files."""
        self.new.operation = "delete"
        live = self.live("data")
        self.drop([e.file for e in self.r.sample(live, self.r.choice([1, len(live)]))])

    def rewrite_manifests(self) -> None:
        """Merges manifests."""
        self.new.operation = "replace"
        chosen = self.r.choice(self.manifests)
        alike = [m for m in self.manifests if m.spec.id == chosen.spec.id and m.deletes == chosen.deletes]
        entries = []
        for m in alike:
            self._resolve(m)
            entries += [
                Entry("existing", e.file, e.sequence, e.file_sequence, e.snapshot, inherits=False)
                for e in m.entries
                if e.status != "deleted"
            ]
        kept = [m for m in self.manifests if m not in alike]
        self.manifests = kept + ([self.manifest(entries, chosen.deletes)] if entries else [])

    def compact(self) -> None:
        """Rewrites the files of a partition as one, with the sequence number of the newest or a new one."""
        self.new.operation = "replace"
        group = self.r.choice(self.groups())
        deletes = self.live("positions", "vector", "equality")
        schema = self.table.schema
        stores = self.table.version == 3 and self.g.has("stored row ids", 0.5)
        firsts = {id(e): first for m in self.manifests if not m.deletes for e, first in oracle.first_rows(m)}
        rows = []
        for e in group:
            for position, row in oracle.remaining(self.table, e, deletes):
                try:
                    kept = oracle.project(schema.fields, row, e.file)
                except oracle.Refused:
                    return
                if stores:
                    kept |= oracle.lineage(row, e, firsts[id(e)], position)
                rows.append(kept)
        fields = (*schema.fields, ROW_ID, LAST_UPDATED) if stores else schema.fields
        f = group[0].file
        new = File(
            self.name("data", "-compacted.parquet"), "data", f.spec, f.partition, fields, rows,
            self.layout(len(rows)), self.metrics(),
        )  # fmt: skip
        self.drop([e.file for e in group])
        keeps = self.table.version > 1 and self.r.random() < 0.5
        self.add([new], max(e.sequence for e in group) if keeps else None)


def _holds(f: Field, identifier: int) -> bool:
    return isinstance(f.type, Struct) and any(k.id == identifier or _holds(k, identifier) for k in f.type.fields)


def _only(f: Field, ids: list[int]) -> Field | None:
    """A field reduced to those of some ids."""
    if f.id in ids:
        return f
    if isinstance(f.type, Struct):
        kids = tuple(kept for kid in f.type.fields if (kept := _only(kid, ids)))
        if kids:
            return Field(f.id, f.name, Struct(kids), f.required)
    return None
