# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Conversion from Arrow to numpy: shares memory as documented in arrays.values, and never changes values silently."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kubeflow_datacache import ColumnError
from kubeflow_datacache.rows.arrays import DEFAULT, Policy, values
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import Gather, concatenate

NOON = dt.datetime(2026, 1, 2, 12, 0, 0)
DAY = NOON.date()
VECTORS = pa.list_(pa.int32())

SAME_MEMORY: list[tuple[pa.DataType, list[Any], Any]] = [
    (pa.int8(), [1, -2], np.array([1, -2], np.int8)),
    (pa.uint64(), [1, 2**64 - 1], np.array([1, 2**64 - 1], np.uint64)),
    (pa.float16(), [np.float16(1), np.float16(2)], np.array([1, 2], np.float16)),
    (pa.float64(), [1.5, 2.5], np.array([1.5, 2.5])),
    (pa.timestamp("us"), [NOON, NOON], np.array([NOON, NOON], "datetime64[us]")),
    (pa.timestamp("ns", "UTC"), [0, 1], np.array([0, 1], "datetime64[ns]")),
    (pa.duration("s"), [3, 4], np.array([3, 4], "timedelta64[s]")),
    (pa.date64(), [DAY, DAY], np.array([DAY, DAY], "datetime64[ms]")),
    (pa.time32("s"), [1, 2], np.array([1, 2], np.int32)),
    (pa.time64("us"), [1, 2], np.array([1, 2])),
    (pa.binary(3), [b"abc", b"xyz"], np.array([[97, 98, 99], [120, 121, 122]], np.uint8)),
    (VECTORS, [[1, 2, 3], [4, 5, 6]], np.array([[1, 2, 3], [4, 5, 6]], np.int32)),
    (pa.large_list(pa.float32()), [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]], np.float32)),
    (pa.list_(pa.int64(), 2), [[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
    (pa.list_(pa.binary(2)), [[b"ab"], [b"cd"]], np.array([[[97, 98]], [[99, 100]]], np.uint8)),
    (pa.list_(pa.list_(pa.int8(), 2), 1), [[[1, 2]], [[3, 4]]], np.array([[[1, 2]], [[3, 4]]], np.int8)),
    (pa.list_(pa.list_(pa.int8(), 2)), [[[1, 2]], [[3, 4]]], np.array([[[1, 2]], [[3, 4]]], np.int8)),
    (pa.uuid(), [b"a" * 16, b"b" * 16], np.array([[97] * 16, [98] * 16], np.uint8)),
]


@pytest.mark.parametrize(
    ("type_", "items", "want"), SAME_MEMORY, ids=lambda v: str(v) if isinstance(v, pa.DataType) else ""
)
def test_views_of_the_same_memory(type_: pa.DataType, items: list[Any], want: Any) -> None:
    whole = pa.array([items[0], *items, items[0]], type_)
    got = values_of(whole[1:3])
    assert isinstance(got, np.ndarray)
    assert got.dtype == want.dtype
    assert np.array_equal(got, want)
    assert not got.flags.writeable
    assert _within(got, whole), "copied"


def values_of(array: pa.Array, policy: Policy = DEFAULT) -> Any:
    """Converts a column "age" to numpy."""
    return values(array, pa.field("age", array.type), policy)


def _within(view: Any, array: pa.Array) -> bool:
    address = view.ctypes.data
    return any(b is not None and b.address <= address < b.address + b.size for b in array.buffers())


@pytest.mark.parametrize(
    ("array", "want"),
    [
        (pa.array([True, False, True]), np.array([True, False, True])),
        (pa.array([DAY, DAY]), np.array([DAY, DAY], "datetime64[D]")),
        (pa.array([1.0, None]), np.array([1.0, np.nan])),
        (pa.array([NOON, None]), np.array([NOON, "NaT"], "datetime64[us]")),
        (pa.array([DAY, None]), np.array([DAY, "NaT"], "datetime64[D]")),
        (pa.array([], pa.int32()), np.array([], np.int32)),
        (pa.array([], pa.binary(3)), np.empty((0, 3), np.uint8)),
        (pa.array([], pa.list_(pa.int64(), 3)), np.empty((0, 3), np.int64)),
        (pa.array([], VECTORS), np.empty((0, 0), np.int32)),
        (pa.array([], pa.list_(pa.list_(pa.int8(), 2), 3)), np.empty((0, 3, 2), np.int8)),
        (pa.array([], pa.list_(pa.list_(pa.int8(), 2))), np.empty((0, 0, 2), np.int8)),
        (pa.array([[[1.0, None]]], pa.list_(pa.list_(pa.float32(), 2), 1)), np.array([[[1, np.nan]]], np.float32)),
        (pa.array([], pa.list_(pa.binary(2))), np.empty((0, 0, 2), np.uint8)),
        (pa.array([[1.0, None], [2.0, 3.0]]), np.array([[1, np.nan], [2, 3]])),
    ],
)
def test_copies(array: pa.Array, want: Any) -> None:
    got = values_of(array)
    assert isinstance(got, np.ndarray)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert np.array_equal(got, want, equal_nan=want.dtype.kind in "fM")


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", "bc"]),
        pa.array([b"a"]),
        pa.array([Decimal("1.5")]),
        pa.array([{"x": 1}]),
        pa.array([["a"]]),
        pa.array([[Decimal("1.5")]]),
    ],
    ids=lambda a: str(a.type),
)
def test_what_stays_arrow(array: pa.Array) -> None:
    for policy in (Policy(), Policy(null="zero"), Policy("arrow", "arrow")):
        assert values_of(array, policy) is array


HOLES = [
    pa.array([1, None]),
    pa.array([True, None]),
    pa.array([1, None], pa.time32("s")),
    pa.array([b"abc", None], pa.binary(3)),
    pa.array([[1, None]]),
    pa.array([[1, None]], pa.list_(pa.int8(), 2)),
    pa.array([[[1, None]]], pa.list_(pa.list_(pa.int8(), 2), 1)),
    pa.array([b"a" * 16, None], pa.uuid()),
]


@pytest.mark.parametrize("array", HOLES, ids=lambda a: str(a.type))
def test_nulls_that_numpy_cannot_hold(array: pa.Array) -> None:
    with pytest.raises(ColumnError, match=r"column 'age' .* has 1 nulls.*fill_null"):
        values_of(array)
    for hole in range(len(array)):
        zeroed = values_of(array[hole : hole + 1], Policy(null="zero"))
        assert isinstance(zeroed, np.ndarray)
        assert zeroed.dtype == values_of(array[:0]).dtype
        if not array[hole].is_valid:
            assert not zeroed.any()
    assert isinstance(values_of(array, Policy(null="arrow")), pa.Array)
    assert isinstance(values_of(array[:0], Policy(null="arrow")), pa.Array), "also where there is no null"


def test_nulls_of_dates_are_never_numbers_in_silence() -> None:
    torch = pytest.importorskip("torch")
    for column in (pa.array([NOON, None]), pa.array([DAY, None]), pa.array([3, None], pa.duration("s"))):
        rows = pa.record_batch({"c": column})
        with pytest.raises(ColumnError, match=r"'c'.*has nulls"):
            StepBlock(range(1), 2, rows).torch(0)
        assert StepBlock(range(1), 2, rows, Policy(null="zero")).torch(0)["c"].tolist()[1] == 0
        assert StepBlock(range(2), 1, rows).torch(0)["c"].dtype == torch.int64, "the step without one"
        assert isinstance(StepBlock(range(1), 2, rows, Policy(null="arrow")).torch(0)["c"], pa.Array)


@pytest.mark.parametrize("array", [pa.array([[1, 2], [3]]), pa.array([[1, 2], [3]], pa.large_list(pa.int32()))])
def test_lists_of_different_lengths(array: pa.Array) -> None:
    with pytest.raises(ColumnError, match=r"'age'.*different lengths.*ragged=\"arrow\""):
        values_of(array)
    for part in (array, array[:1], array[:0]):
        assert values_of(part, Policy(ragged="arrow")) is part
    with pytest.raises(ColumnError, match="1 null lists"):
        values_of(pa.array([[1, 2], None]))


def test_fields_without_nulls_are_numpy_whatever_the_policy() -> None:
    field = pa.field("age", pa.int32(), nullable=False)
    assert isinstance(values(pa.array([1], pa.int32()), field, Policy(null="arrow")), np.ndarray)


def test_a_policy_is_checked_as_it_is_made() -> None:
    with pytest.raises(ValueError, match="null = 'nan': want one of error, arrow, zero"):
        Policy(null="nan")  # pyright: ignore[reportArgumentType]


def test_one_null_breaks_no_other_step() -> None:
    pytest.importorskip("torch")
    rows = pa.record_batch({"c": pa.array([None if i == 40 else i for i in range(64)])})
    block = StepBlock(range(64), 1, rows)
    for step in range(64):
        if step == 40:
            with pytest.raises(ColumnError):
                block.torch(step)
        else:
            assert block.torch(step)["c"].tolist() == [step]


def test_a_steps_form_does_not_depend_on_its_neighbours() -> None:
    rows = pa.record_batch({"v": pa.array([[1, 2], [3, 4], [5], [6, 7]]), "i": pa.array([1, 2, 3, None])})
    block = StepBlock(range(2), 2, rows)
    first = block.numpy(0)
    assert first["v"].tolist() == [[1, 2], [3, 4]]
    assert first["i"].tolist() == [1, 2]
    with pytest.raises(ColumnError, match="'v'"):
        block.numpy(1)


COLUMNS: dict[str, Any] = {
    "int": lambda i: i,
    "null": lambda i: None if i % 3 else i,
    "bool": lambda i: i % 2 == 0,
    "text": lambda i: f"row {i}" * (i % 4),
    "bytes": lambda i: None if i % 5 == 0 else bytes(i % 7),
    "day": lambda i: dt.date.fromordinal(700_000 + i),
    "decimal": lambda i: Decimal(i) / 4,
    "even": lambda i: [i, i + 1],
    "ragged": lambda i: list(range(i % 4)),
    "holes": lambda i: [i, None],
    "struct": lambda i: {"a": i, "b": str(i)},
    "none": lambda i: [],
    "grid": lambda i: [[i, i + 1], [i + 2, i + 3]],
    "grid holes": lambda i: [[i, None], [1, 2]] if i % 3 else [None, [1, 2]],
    "uuid": lambda i: bytes([i]) * 16,
    "uuid holes": lambda i: bytes([i]) * 16 if i % 3 else None,
    "page": lambda i: f"row {i} " * 700,
    "image": lambda i: bytes([i]) * (i % 3 * 5000),
    "long holes": lambda i: None if i % 5 == 0 else "x" * 4000,
}
TYPES = {
    "decimal": pa.decimal128(12, 2),
    "none": pa.list_(pa.int8()),
    "even": pa.list_(pa.int16()),
    "grid": pa.list_(pa.list_(pa.int32(), 2), 2),
    "grid holes": pa.list_(pa.list_(pa.int32(), 2), 2),
    "uuid": pa.uuid(),
    "uuid holes": pa.uuid(),
    "image": pa.large_binary(),
}


def test_gather_is_take(rng: random.Random) -> None:
    for _ in range(150):
        total = rng.randint(0, 60)
        rows = pa.record_batch({n: pa.array([f(i) for i in range(total)], TYPES.get(n)) for n, f in COLUMNS.items()})
        cuts = sorted(rng.randint(0, total) for _ in range(rng.randint(0, 4)))
        parts = [rows.slice(lo, hi - lo) for lo, hi in zip([0, *cuts], [*cuts, total], strict=True)]
        places = np.array(rng.sample(range(total), total), np.intp)
        got = Gather(parts, places).batch()
        got.validate(full=True)
        want = rows.take(pa.array(np.argsort(places)))
        assert got.equals(want)
        assert concatenate(parts, rows.schema).equals(rows)
