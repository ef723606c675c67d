# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random changes of a table's schema and partition spec."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import values
from .schema import Field, Primitive, Schema, Struct, change, every_field
from .table import PartitionField, Spec
from .transforms import transforms_of

if TYPE_CHECKING:
    from .generate import Generator


def all_fields(schema: Schema) -> list[Field]:
    """All fields, nested ones too."""
    return list(every_field(schema.fields))


def change_schema(g: Generator) -> None:
    """Adds a schema that differs in one thing from the current one."""
    table, r = g.table, g.r
    how = r.choice([_add, _add, _drop, _rename, _promote, _reorder, _optional])
    fields = how(g, table.schema.fields)
    if fields and fields != table.schema.fields:
        table.schemas.append(Schema(len(table.schemas), fields))


def _sources(g: Generator) -> set[int]:
    """The ids of fields that partition fields need, and of the structs that contain them."""
    needed = {p.source for spec in g.table.specs for p in spec.fields}
    found = set()
    for within, f in g.table.schema.leaves():
        if f.id in needed:
            found |= {f.id, *(w.id for w in within)}
    return found


def _fresh_name(g: Generator, used: set[str]) -> str:
    """A name for a new field; with a name mapping one that no file has."""
    old = [n for names in g.table.names.values() for n in names]
    if not g.table.mapping and old and g.r.random() < 0.4:
        name = g.r.choice(old)
        if name not in used and name not in ("element", "key", "value"):
            return name
    return f"new{len(g.table.schemas)}"


def _add(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    r = g.r
    structs = [f for f in every_field(fields) if isinstance(f.type, Struct)]
    if structs and r.random() < 0.4:
        parent = r.choice(structs)
        assert isinstance(parent.type, Struct)
        kids = parent.type.fields
        new = _new_field(g, {f.name for f in kids})
        return change(fields, replace(parent, type=Struct((*kids, new))))
    new = _new_field(g, {f.name for f in fields})
    at = r.randint(0, len(fields))
    return (*fields[:at], new, *fields[at:])


def _new_field(g: Generator, used: set[str]) -> Field:
    f = values.random_field(g.r, _fresh_name(g, used), g.new_id, g.table.version)
    f = replace(f, required=False)
    if g.table.version == 3 and isinstance(f.type, Primitive) and g.has("initial defaults", 0.6):
        f = replace(f, default=values.primitive(g.r, f.type), required=g.r.random() < 0.3)
    return f


def _drop(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    kept = _sources(g)
    able = [f for f in fields if f.id not in kept]
    gone = g.r.choice(able) if able else None
    return tuple(f for f in fields if f is not gone)


def _rename(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    f = g.r.choice(fields)
    return change(fields, replace(f, name=_fresh_name(g, {other.name for other in fields})))


def _promote(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    wider = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(20, 2)", "decimal(18, 6)": "decimal(30, 6)"}
    if g.table.version == 3 and g.has("dates to timestamps", 0.8):
        wider["date"] = "timestamp"
    sources = _sources(g)
    able = [f for f in every_field(fields) if isinstance(f.type, Primitive) and f.type.name in wider]
    able = [f for f in able if f.type != Primitive("date") or (f.id not in sources and f.default is None)]
    if not able:
        return fields
    f = g.r.choice(able)
    assert isinstance(f.type, Primitive)
    return change(fields, replace(f, type=Primitive(wider[f.type.name])))


def _reorder(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    return tuple(g.r.sample(fields, len(fields)))


def _optional(g: Generator, fields: tuple[Field, ...]) -> tuple[Field, ...]:
    able = [f for f in every_field(fields) if f.required and f.name != "key"]
    return change(fields, replace(g.r.choice(able), required=False)) if able else fields


def partition_fields(g: Generator) -> tuple[PartitionField, ...]:
    """Partition fields of a new spec."""
    leaves = [f for _, f in g.table.schema.leaves() if isinstance(f.type, Primitive) and f.type.base != "unknown"]
    out: list[PartitionField] = []
    for f in g.r.sample(leaves, min(len(leaves), g.r.choice([1, 1, 2]))):
        assert isinstance(f.type, Primitive)
        transform = g.r.choice(transforms_of(f.type))
        if transform == "void" and g.r.random() < 0.8:
            transform = "identity"
        g.last_partition += 1
        name = f.name if transform == "identity" else f"{f.name}_{transform.partition('[')[0]}"
        if name in {p.name for p in out}:
            name += "_2"
        out.append(PartitionField(g.last_partition, name, f.id, transform, f.type))
    return tuple(out)


def change_spec(g: Generator) -> None:
    """Adds a partition spec: in format v1 with the fields of the last one, void if they are gone."""
    table, r = g.table, g.r
    kept = ()
    if table.version == 1:
        kept = tuple(p if r.random() < 0.5 else replace(p, transform="void") for p in table.specs[-1].fields)
    elif r.random() < 0.3:
        kept = table.specs[-1].fields
    new = () if r.random() < 0.3 else partition_fields(g)
    have = {(p.source, p.transform) for p in kept}
    new = tuple(p for p in new if (p.source, p.transform) not in have)
    have = {p.name for p in kept}
    new = tuple(replace(p, name=p.name + f"_{p.id}" if p.name in have else p.name) for p in new)
    table.specs.append(Spec(len(table.specs), (*kept, *new)))
