# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Values for the tables: every Iceberg type, with edge cases and nulls."""

# pyright: reportCallIssue=false
# pyiceberg's models take positional arguments in a way that type checkers can not see.

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyiceberg.types as ice

Make = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Kind:
    """An Iceberg type, the Arrow type in which the cache serves it, and a generator of its values."""

    name: str
    iceberg: ice.IcebergType
    arrow: pa.DataType
    make: Make
    edges: tuple[Any, ...] = ()

    def column(self, r: random.Random, rows: int, nulls: float) -> pa.Array:
        """`rows` values, edge cases first; about a fraction `nulls` of them are null."""
        values = [
            v if r.random() >= nulls else None for v in [*self.edges, *(self.make(r) for _ in range(rows))][:rows]
        ]
        return array(values, self.arrow)


def array(values: list[Any], of: pa.DataType) -> pa.Array:
    """Like pa.array, but also accepts timestamps as integers."""
    if isinstance(of, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(of, pa.array(values, of.storage_type))
    return pa.array(values, of)


_EPOCH = dt.datetime(1970, 1, 1)
_WIDE = Context(prec=60)  # Python's default precision is 28 digits
_WORDS = ["", "a", "snow", "Grüße", "日本語", "🙂🙂", "null", "NULL", "x'y\"z", "tab\there", "\u0000nul", "zz" * 40]


def _decimal(precision: int, scale: int) -> Kind:
    top = 10**precision - 1

    def make(r: random.Random) -> Decimal:
        return Decimal(r.randint(-top, top)).scaleb(-scale, _WIDE)

    edges = tuple(Decimal(v).scaleb(-scale, _WIDE) for v in (0, 1, -1, top, -top))
    return Kind(
        f"decimal{precision}_{scale}", ice.DecimalType(precision, scale), pa.decimal128(precision, scale), make, edges
    )


LONGS = (0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.5, -2.25, float("inf"), float("-inf"), 2.0**-149, 3.4e38)

FLAT: tuple[Kind, ...] = (
    Kind("boolean", ice.BooleanType(), pa.bool_(), lambda r: r.random() < 0.5, (True, False)),
    Kind("int", ice.IntegerType(), pa.int32(), lambda r: r.randint(-(2**31), 2**31 - 1), (0, -(2**31), 2**31 - 1)),
    Kind("long", ice.LongType(), pa.int64(), lambda r: r.randint(-(2**63), 2**63 - 1), LONGS),
    Kind("float", ice.FloatType(), pa.float32(), lambda r: float(r.randint(-(2**20), 2**20)) / 8, FLOATS),
    Kind("double", ice.DoubleType(), pa.float64(), lambda r: r.gauss(0, 1e6), (*FLOATS, 1e308, 5e-324)),
    _decimal(9, 2),
    _decimal(18, 6),
    _decimal(38, 10),
    Kind("date", ice.DateType(), pa.date32(), lambda r: dt.date(1, 1, 1) + dt.timedelta(r.randrange(3_652_000)),
         (dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31))),
    Kind("time", ice.TimeType(), pa.time64("us"),
         lambda r: dt.time(r.randrange(24), r.randrange(60), r.randrange(60), r.randrange(10**6)),
         (dt.time(0), dt.time(23, 59, 59, 999_999))),
    Kind("timestamp", ice.TimestampType(), pa.timestamp("us"),
         lambda r: _EPOCH + dt.timedelta(microseconds=r.randint(-(10**15), 10**16)),
         (_EPOCH, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2262, 4, 12))),
    Kind("timestamptz", ice.TimestamptzType(), pa.timestamp("us", "UTC"),
         lambda r: (_EPOCH + dt.timedelta(microseconds=r.randint(-(10**15), 10**16))).replace(tzinfo=dt.UTC),
         (_EPOCH.replace(tzinfo=dt.UTC),)),
    Kind("string", ice.StringType(), pa.string(), lambda r: r.choice(_WORDS) + str(r.randrange(50)), tuple(_WORDS)),
    Kind("binary", ice.BinaryType(), pa.binary(), lambda r: r.randbytes(r.randrange(40)),
         (b"", b"\x00", b"\xff" * 300)),
    Kind("fixed", ice.FixedType(5), pa.binary(5), lambda r: r.randbytes(5), (bytes(5), b"\xff" * 5)),
    Kind("uuid", ice.UUIDType(), pa.uuid(), lambda r: r.randbytes(16), (bytes(16), b"\xff" * 16)),
)  # fmt: skip


def maybe(r: random.Random, make: Make, nulls: float = 0.2) -> Any:
    """A value, or null with probability `nulls`."""
    return None if r.random() < nulls else make(r)


def some(r: random.Random, make: Make, most: int = 4) -> list[Any]:
    """A short list, sometimes empty."""
    return [make(r) for _ in range(r.randrange(most + 1))]


def nested(ids: Callable[[], int]) -> tuple[Kind, ...]:
    """The nested types. ids() returns new field ids, which nested Iceberg types need."""
    text, number = FLAT[12].make, lambda r: r.randint(-9, 9)
    point = ice.StructType(
        ice.NestedField(ids(), "x", ice.IntegerType(), required=False),
        ice.NestedField(ids(), "label", ice.StringType(), required=False),
    )
    arrow_point = pa.struct([("x", pa.int32()), ("label", pa.string())])

    def make_point(r: random.Random) -> dict[str, Any]:
        return {"x": maybe(r, number), "label": maybe(r, text)}

    def make_map(r: random.Random) -> list[tuple[str, Any]]:
        return [(f"k{i}", maybe(r, number)) for i in range(r.randrange(4))]

    def listed(name: str, element: ice.IcebergType, arrow: pa.DataType, make: Make) -> Kind:
        of = ice.ListType(ids(), element, element_required=False)
        return Kind(name, of, _list(arrow), lambda r: some(r, lambda q: maybe(q, make)), ([], [None]))

    ints = listed("list_int", ice.IntegerType(), pa.int32(), number)
    points = listed("list_struct", point, arrow_point, make_point)
    return (
        ints,
        listed("list_string", ice.StringType(), pa.string(), text),
        points,
        listed("list_list", ints.iceberg, ints.arrow, ints.make),
        Kind("struct", point, arrow_point, make_point, ({"x": None, "label": None},)),
        Kind(
            "struct_deep",
            ice.StructType(
                ice.NestedField(ids(), "inner", point, required=False),
                ice.NestedField(ids(), "many", points.iceberg, required=False),
                ice.NestedField(ids(), "price", ice.DecimalType(12, 2), required=False),
            ),
            pa.struct([("inner", arrow_point), ("many", points.arrow), ("price", pa.decimal128(12, 2))]),
            lambda r: {
                "inner": maybe(r, make_point),
                "many": maybe(r, points.make),
                "price": maybe(r, lambda q: Decimal(q.randint(-999, 999)).scaleb(-2)),
            },
        ),
        Kind(
            "map_int",
            ice.MapType(ids(), ice.StringType(), ids(), ice.IntegerType(), value_required=False),
            pa.map_(pa.string(), pa.int32()),
            make_map,
            ([],),
        ),
        Kind(
            "map_struct",
            ice.MapType(ids(), ice.StringType(), ids(), point, value_required=False),
            pa.map_(pa.string(), arrow_point),
            lambda r: [(f"k{i}", maybe(r, make_point)) for i in range(r.randrange(3))],
        ),
    )


def _list(element: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", element))
