# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Damages tables: their bytes, manifests and metadata; footers.py damages Parquet's footers and page headers.

A Damage knows what a cache may do then: always refuse the table; "exact" also allows the rows of the undamaged table;
"alive" allows any rows, for damage that no reader can notice: the server must not crash, hang or take too much memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import footers
from .avro import SYNC
from .manifests import Tamper
from .table import File, Manifest, Snapshot, Table

Claim = Literal["exact", "alive"]


@dataclass(frozen=True)
class Damage:
    """A way to damage a table."""

    name: str
    claim: Claim
    tamper: Tamper


def random_damage(r: random.Random, table: Table, snapshot: Snapshot | None, without: frozenset[str]) -> Damage | None:
    """Damage to something that a read of a snapshot needs, of no kind in `without`, if there is any."""
    if snapshot is None or not snapshot.manifests:
        return None
    damage = _damage(r, table, snapshot)
    return None if damage is None or damage.name.split(":")[0] in without else damage


def _damage(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    makers: list[Callable[[random.Random, Table, Snapshot], Damage | None]] = [
        _cut, _flip, _flip_checked, _swap, _entry, _entry, _listed, _vector, _metadata, _footer, _footer, _no_rows,
    ]  # fmt: skip
    return r.choice(makers)(r, table, snapshot)


def _live(snapshot: Snapshot, *contents: str) -> list[File]:
    entries = [e for m in snapshot.manifests for e in m.entries if e.status != "deleted"]
    return [e.file for e in entries if e.file.content in contents]


def _path(r: random.Random, snapshot: Snapshot) -> str:
    """A file of the snapshot."""
    files = [f.path for f in _live(snapshot, "data", "positions", "equality", "vector")]
    return r.choice([*files, *(m.path for m in snapshot.manifests), snapshot.list_path, "metadata/"])


def _on_bytes(path: str, change: Callable[[bytes], bytes | None]) -> Tamper:
    def tamper(kind: str, at: str, value: Any) -> Any:
        return change(value) if kind == "bytes" and (at == path or (path == "metadata/" and "fuzz" in at)) else value

    return tamper


def _cut(r: random.Random, table: Table, snapshot: Snapshot) -> Damage:
    """A file that is missing, empty, cut off, or longer."""
    path, how, part = _path(r, snapshot), r.randrange(6), r.random()

    def change(content: bytes) -> bytes | None:
        match how:
            case 0:
                return None
            case 1:
                return b""
            case 2:
                return content + b"\0" * 10
            case 3:
                return content + content
            case 4 if path.endswith(".avro") and table.style.get("totals"):
                at = content.rfind(SYNC, 0, -16)  # where the last block begins
                return content[: at + 16]
        return content[: int(len(content) * part)] if how == 5 else content[:-1]

    # Avro has neither a length nor a checksum: a file that is longer by whole blocks is another valid file.
    alive = how == 3 and path.endswith(".avro")
    name = "cut at a block's border" if how == 4 and path.endswith(".avro") else f"cut {how}"
    return Damage(f"{name}: {path}", "alive" if alive else "exact", _on_bytes(path, change))


def _flip(r: random.Random, table: Table, snapshot: Snapshot) -> Damage:
    """Some changed bytes, anywhere."""
    path, parts = _path(r, snapshot), [(r.random(), r.randrange(1, 256)) for _ in range(r.choice([1, 1, 3, 20]))]

    def change(content: bytes) -> bytes:
        out = bytearray(content)
        for at, bits in parts:
            out[int(at * len(out))] ^= bits
        return bytes(out)

    return Damage(f"flip: {path}", "alive", _on_bytes(path, change))


def _flip_checked(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A changed byte where a checksum covers it: in a deletion vector, or in a page."""
    part, bits = r.random(), r.randrange(1, 256)
    checked = [f for f in _live(snapshot, "data", "positions", "equality") if f.rows or f.positions]
    checked = [f for f in checked if f.layout.options["write_page_checksum"] and f.layout.raw is None]
    files = [*checked, *_live(snapshot, "vector")]
    if not files:
        return None
    file = r.choice(files)

    def change(content: bytes) -> bytes:
        places = [(file.offset, file.offset + file.length)]
        if file.content != "vector":
            places = [(end, end + header[3].value) for _, end, header in footers.pages(content)]
        at = [i for start, end in places for i in range(start, end)]
        if not at:
            return content
        chosen = at[int(part * len(at))]
        return content[:chosen] + bytes([content[chosen] ^ bits]) + content[chosen + 1 :]

    return Damage(f"flip under a checksum: {file.path}", "exact", _on_bytes(file.path, change))


def _swap(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """The content of one file in another's place."""
    files = _live(snapshot, "data", "positions", "equality", "vector")
    if len(files) < 2:
        return None
    one, other = r.sample(files, 2)
    # Nothing tells files of as many rows and the same columns apart.
    alike = len(one.rows) == len(other.rows) and one.content == other.content and one.content != "vector"
    kept: dict[str, bytes] = {}

    def tamper(kind: str, path: str, value: Any) -> Any:
        if kind == "bytes":
            kept[path] = value
            if path == one.path and other.path in kept:
                return kept[other.path]
            if path == other.path and one.path in kept:
                return kept[one.path]
        return value

    return Damage(f"swap: {one.path} and {other.path}", "alive" if alike else "exact", tamper)


def _pick(r: random.Random, snapshot: Snapshot, wanted: Callable[[File], bool]) -> tuple[Manifest, int] | None:
    found = [
        (m, i) for m in snapshot.manifests for i, e in enumerate(m.entries) if e.status != "deleted" and wanted(e.file)
    ]
    return r.choice(found) if found else None


def _on_entry(manifest: Manifest, index: int, change: Callable[[dict[str, Any], list[dict[str, Any]]], None]) -> Tamper:
    def tamper(kind: str, path: str, value: Any) -> Any:
        if kind == "entries" and path == manifest.path:
            change(value[index], value)
        return value

    return tamper


def _entry(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A manifest entry that says something else."""
    picked = _pick(r, snapshot, lambda f: f.content != "vector")
    if picked is None:
        return None
    manifest, index = picked
    file = manifest.entries[index].file
    count, size = len(file.rows) or len(file.positions), r.choice([0, -1, 1, 2**40])

    def data(name: str, value: Any) -> Callable[[dict[str, Any], list[dict[str, Any]]], None]:
        return lambda record, _: record["data_file"].update({name: value})

    def twice(record: dict[str, Any], records: list[dict[str, Any]]) -> None:
        records.append(record)

    changes: list[tuple[str, Callable[[dict[str, Any], list[dict[str, Any]]], None]]] = [
        ("record_count", data("record_count", r.choice([0, count + 1, max(count - 1, 0), -1, 2**40]))),
        ("file_size_in_bytes", data("file_size_in_bytes", size)),
        ("file_path", data("file_path", f"{table.uri or ''}/data/nowhere.parquet")),
        ("file_path of a scheme", data("file_path", r.choice(["", "gopher://x/y", "data/a.parquet", "/"]))),
        ("file_format", data("file_format", r.choice(["ORC", "AVRO", "PUFFIN", "", "Lance"]))),
        ("key_metadata", data("key_metadata", b"key")),
        ("split_offsets", data("split_offsets", r.choice([[0], [-1], [2**40], [5, 4], list(range(4, 2000))]))),
        ("twice", twice),
        ("status", lambda record, _: record.update({"status": r.choice([3, -1, 99])})),
    ]
    if table.version > 1:
        changes += [
            ("content", data("content", 3)),
            ("negative content", data("content", -1)),
        ]
    if file.content == "equality":
        changes = [("equality_ids", data("equality_ids", r.choice([None, [], [999], [0], [-1]])))]
    if table.style.get("few fields"):
        changes = [c for c in changes if c[0] != "key_metadata"]
    name, change = r.choice(changes)
    return Damage(f"{name}: {file.path}", "exact", _on_entry(manifest, index, change))


def _no_rows(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A file of which manifest and footer say that it has no rows, but not its row groups."""
    picked = _pick(r, snapshot, lambda f: f.content != "vector")
    if picked is None:
        return None
    manifest, index = picked
    file = manifest.entries[index].file

    def tamper(kind: str, path: str, value: Any) -> Any:
        if kind == "entries" and path == manifest.path:
            value[index]["data_file"].update({"record_count": 0})
        return footers.without_rows(value) if kind == "bytes" and path == file.path else value

    return Damage(f"no rows: {file.path}", "exact", tamper)


def _vector(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A deletion vector of which its manifest says something else."""
    picked = _pick(r, snapshot, lambda f: f.content == "vector")
    if picked is None:
        return None
    manifest, index = picked
    file = manifest.entries[index].file
    others = [f for f in _live(snapshot, "data") if file.target and f.path != file.target.path]
    other = r.choice(others).path if others else "data/nowhere.parquet"
    name, value = r.choice([
        ("content_offset", 0), ("content_offset", -1), ("content_offset", 2**40), ("content_offset", None),
        ("content_size_in_bytes", 1), ("content_size_in_bytes", -1), ("content_size_in_bytes", 2**33),
        ("content_size_in_bytes", None), ("record_count", len(file.positions) + 1), ("referenced_data_file", None),
        ("referenced_data_file", "other"), ("file_format", "PARQUET"), ("file_size_in_bytes", 3),
    ])  # fmt: skip

    def change(record: dict[str, Any], _: list[dict[str, Any]]) -> None:
        record["data_file"][name] = f"{table.uri}/{other}" if value == "other" else value

    # A vector that its manifest gives to another file is that file's, as far as a reader can tell from the manifest.
    claim: Claim = "alive" if value == "other" or name == "file_size_in_bytes" else "exact"
    return Damage(f"vector {name}: {value} of {file.path}", claim, _on_entry(manifest, index, change))


def _listed(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A manifest list that says something else of a manifest."""
    index = r.randrange(len(snapshot.manifests))
    changes: list[tuple[str, dict[str, Any]]] = [
        ("manifest_path", {"manifest_path": r.choice(["", "nowhere.avro", f"{table.uri}/metadata"])}),
        ("manifest_length", {"manifest_length": r.choice([0, -1, 1, 2**40])}),
        ("partition_spec_id", {"partition_spec_id": r.choice([77, -1])}),
        ("twice", {}),
    ]
    if table.version > 1:
        changes += [("content", {"content": 7})]
    name, change = r.choice(changes)

    def tamper(kind: str, path: str, value: Any) -> Any:
        if kind == "manifests" and path == snapshot.list_path:
            value[index].update(change)
            return [*value, value[index]] if name == "twice" else value
        return value

    return Damage(f"list {name}: {change} of manifest {index}", "exact", tamper)


def _metadata(r: random.Random, table: Table, snapshot: Snapshot) -> Damage:
    """Metadata in which something is missing or of another kind."""
    depth, how = r.randint(1, 6), r.randrange(4)
    seed = r.getrandbits(64)

    def tamper(kind: str, path: str, value: Any) -> Any:
        if kind != "metadata":
            return value
        own, at = random.Random(seed), value
        for _ in range(depth):
            key = own.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or _ == depth - 1:
                if how == 0:
                    del at[key]
                else:
                    at[key] = own.choice([None, -1, 2**63, 1.5, "x", [], {}, True, [[[]]], {"a": 1}])
                break
            at = at[key]
        return value

    return Damage(f"metadata: {depth} {how} {seed}", "alive", tamper)


def _footer(r: random.Random, table: Table, snapshot: Snapshot) -> Damage | None:
    """A Parquet file whose footer or page headers say something else."""
    files = [f for f in _live(snapshot, "data", "positions", "equality") if f.layout.groups]
    if not files:
        return None
    file = r.choice(files)
    name, claim, change = footers.random_change(r)
    return Damage(f"footer {name}: {file.path}", claim, _on_bytes(file.path, change))
