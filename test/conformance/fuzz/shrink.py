# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes a failing case smaller: a simpler read, fewer snapshots, files and columns; and describes it."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from . import run
from .cache import Wrong
from .run import Case
from .schema import Schema

_MOST = 60  # caches to start


def shrink(case: Case, server: Path) -> Case:
    """A smaller case that fails alike."""
    kind = _failure(case, server)
    tried = 0
    smaller = True
    while smaller and kind:
        smaller = False
        for change in _changes(case):
            if tried == _MOST:
                return case
            tried += 1
            candidate = copy.deepcopy(case)
            change(candidate)
            if _failure(candidate, server) == kind:
                case, smaller = candidate, True
                break
    return case


def _failure(case: Case, server: Path) -> str:
    """The kind of a case's failure, "" if it does not fail."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-shrink-"))
    try:
        run.check(case, server, folder)
    except Wrong as wrong:
        return str(wrong).split(":")[0]
    except Exception as error:
        return type(error).__name__
    finally:
        shutil.rmtree(folder)
    return ""


def _changes(case: Case) -> Iterator[Callable[[Case], None]]:
    """Changes that make a case smaller."""
    read = case.read
    if read.nodes > 1:
        yield lambda c: setattr(c.read, "nodes", 1)
    if read.asked or read.asked_columns:
        yield _without_request
    if case.damage:
        return  # it names files, and entries by their number
    if read.columns and not read.asked_columns:
        yield _without_columns
    for s in case.table.snapshots:
        if s is not read.snapshot and s.id != case.table.current:
            yield lambda c, i=s.id: _drop_snapshot(c, i)
    for path in {f.path for f in case.table.files()}:
        yield lambda c, p=path: _drop_file(c, p)
    sources = {p.source for spec in case.table.specs for p in spec.fields}
    for f in case.table.schema.fields:
        if f.id not in sources and len(read.schema.fields) > 1:
            yield lambda c, i=f.id: _drop_column(c, i)


def _without_request(c: Case) -> None:
    c.read.asked, c.read.asked_columns = None, ()


def _without_columns(c: Case) -> None:
    at = c.read.flags.index("--columns")
    del c.read.flags[at : at + 2]
    c.read.columns = ()


def _drop_snapshot(c: Case, identifier: int) -> None:
    table = c.table
    table.snapshots = [s for s in table.snapshots if s.id != identifier]
    table.log = [entry for entry in table.log if entry[1] != identifier]
    table.refs = {name: ref for name, ref in table.refs.items() if ref[1] != identifier}


def _drop_file(c: Case, path: str) -> None:
    for s in c.table.snapshots:
        for m in s.manifests:
            m.entries = [
                e for e in m.entries if e.file.path != path and not (e.file.target and e.file.target.path == path)
            ]
            for e in m.entries:
                e.file.positions = [p for p in e.file.positions if p[0].path != path]
        s.manifests = [m for m in s.manifests if m.entries]


def _drop_column(c: Case, identifier: int) -> None:
    def without(schema: Schema) -> Schema:
        return replace(schema, fields=tuple(f for f in schema.fields if f.id != identifier))

    c.table.schemas = [without(s) for s in c.table.schemas]
    c.read.schema = without(c.read.schema)
    for s in c.table.snapshots:
        s.schema = without(s.schema)
        for m in s.manifests:
            m.schema = without(m.schema)
    for file in c.table.files():
        file.fields = tuple(f for f in file.fields if f.id != identifier)


def describe(case: Case) -> str:
    """The case in some lines."""
    table, read = case.table, case.read
    out = [f"format v{table.version}, {table.style}, {table.properties}"]
    if case.damage:
        out.append(f"damage: {case.damage.name}")
    out += [f"schema {s.id}: {f}" for s in table.schemas for f in s.fields]
    out += [f"spec {s.id}: {p}" for s in table.specs for p in s.fields]
    for s in table.snapshots:
        out.append(f"snapshot {s.id}{' (current)' if s.id == table.current else ''}: {s.operation}")
        for m in s.manifests:
            for e in m.entries:
                f = e.file
                out.append(f"  {e.status} {f.content} {f.path}: sequence {e.sequence}, partition {f.partition}")
                if len(f.rows) < 5 and f.content in ("data", "equality"):
                    out += [f"    {row}" for row in f.rows]
                if f.positions:
                    out.append(f"    {[(target.path, p) for target, p in f.positions[:10]]}")
    asked = read.asked.text if read.asked else ""
    return "\n".join([*out, f"read: {read.flags} on {read.nodes} nodes; then filter {asked!r} {read.asked_columns}"])
