# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts Arrow arrays to numpy arrays, sharing memory if the type allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as kind

from kubeflow_datacache.errors import ColumnError

Array = npt.NDArray[Any]
Null = Literal["error", "arrow", "zero"]
Ragged = Literal["error", "arrow"]
_OFFSET: Final = np.dtype(np.int32)
_LARGE_OFFSET: Final = np.dtype(np.int64)
_LARGE: Final = {type_.id for type_ in (pa.large_list(pa.null()), pa.large_string(), pa.large_binary())}


@dataclass(frozen=True)
class Policy:
    """How to convert columns with values that numpy and torch cannot represent. A column's type never depends on its
    data.

    null: "error" raises ColumnError for a batch that contains a null; "zero" replaces nulls by zeros; "arrow" leaves
    every nullable column as an Arrow array in every batch, except floats, whose nulls become NaN. ragged: "error"
    converts lists to tensors, and raises ColumnError if their lengths differ; "arrow" leaves every list column as an
    Arrow array, except fixed_size_list. cast: dtypes by column in which torch() returns tensors.
    """

    null: Null = "error"
    ragged: Ragged = "error"
    cast: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        for name, value, words in (("null", self.null, get_args(Null)), ("ragged", self.ragged, get_args(Ragged))):
            if value not in words:
                raise ValueError(f"{name} = {value!r}: want one of {', '.join(words)}")


DEFAULT: Final = Policy()


def is_fixed_width(type_: pa.DataType) -> bool:
    """Whether values of the type are stored in one buffer with a fixed number of bytes each."""
    return (
        kind.is_integer(type_)
        or kind.is_floating(type_)
        or kind.is_temporal(type_)
        or kind.is_decimal(type_)
        or kind.is_fixed_size_binary(type_)
    ) and not kind.is_interval(type_)


def is_fixed_width_list(type_: pa.DataType) -> bool:
    """Whether the type is a list (of any of the three kinds) of fixed-width values, or of fixed-size lists of these."""
    lists = kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_)
    return lists and is_fixed_width(leaf_type(type_.value_type))


def storage(type_: pa.DataType) -> pa.DataType:
    """The type in which values of an extension type are stored; other types stay the same."""
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def leaf_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values within fixed-size lists."""
    while kind.is_fixed_size_list(type_):
        type_ = type_.value_type
    return type_


def leaves(array: pa.Array) -> tuple[tuple[int, ...], pa.Array] | None:
    """The shape and the values of fixed-size lists within each other, without a copy; None if a list is null.

    Of an array of any other type, the array itself.
    """
    shape: tuple[int, ...] = ()
    while kind.is_fixed_size_list(array.type):
        if (alike := equal_length_lists(array)) is None:
            return None
        shape, array = (*shape, alike[0]), alike[1]
    return shape, array


def is_binary_like(type_: pa.DataType) -> bool:
    """Whether the type is a string or binary type of variable length with one data buffer."""
    return kind.is_string(type_) or kind.is_large_string(type_) or kind.is_binary(type_) or kind.is_large_binary(type_)


def raw_values(array: pa.Array, dtype: np.dtype[Any]) -> Array | None:
    """The values of a fixed-width array, viewed as a dtype without a copy (one or several items per value); None for
    nulls."""
    if array.null_count:
        return None
    width = array.type.byte_width
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array) * width // dtype.itemsize, array.offset * width)


def equal_length_lists(array: pa.Array) -> tuple[int, pa.Array] | None:
    """The length of each list and the concatenated values, without a copy.

    None if the lists differ in length, one is null, or there are none. The values equal array.flatten(), which is
    avoided because it releases the GIL.
    """
    if array.null_count:
        return None
    rows, type_ = len(array), array.type
    if kind.is_fixed_size_list(type_):
        size = type_.list_size
        return size, array.values.slice(array.offset * size, rows * size)
    if not rows:
        return None
    ends = offsets(array)
    first, size = int(ends[0]), int(ends[1] - ends[0])
    if np.bitwise_or.reduce(ends[1:] - ends[:-1] ^ size):  # few numpy calls, as this runs for each part of a merge
        return None
    return size, array.values.slice(first, rows * size)


def offsets(array: pa.Array) -> Array:
    """The len(array) + 1 offsets of a list, string or binary array, without a copy."""
    dtype = _LARGE_OFFSET if array.type.id in _LARGE else _OFFSET
    if len(array) == 0:  # Arrow may omit the offsets of an empty array
        return np.zeros(1, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize)


def stays_arrow(field: pa.Field, policy: Policy) -> bool:
    """Whether a column stays an Arrow array in every batch. Depends on its type and the policy, never on its data."""
    type_, nullable = storage(field.type), field.nullable
    if is_fixed_width_list(type_) and not kind.is_decimal(leaf_type(type_.value_type)):
        if policy.ragged == "arrow" and not kind.is_fixed_size_list(type_):
            return True
        return policy.null == "arrow" and (nullable or _may_have_null_items(type_))
    if not (kind.is_boolean(type_) or is_fixed_width(type_)) or kind.is_decimal(type_):
        return True
    return policy.null == "arrow" and nullable and not kind.is_floating(type_)


def _may_have_null_items(type_: pa.DataType) -> bool:
    """Whether a list may have null items other than floats."""
    item = type_.value_field
    if kind.is_fixed_size_list(item.type):
        return item.nullable or _may_have_null_items(item.type)
    return item.nullable and not kind.is_floating(item.type)


def values(array: pa.Array, field: pa.Field, policy: Policy) -> Array | pa.Array:
    """Converts an Arrow column to numpy; the first dimension is the row. Returns read-only views unless noted below.

    | Arrow | numpy |
    |---|---|
    | int8..int64, uint8..uint64, float16..float64 | the same dtype, (rows,) |
    | bool | bool, (rows,), copied |
    | timestamp, duration | datetime64 / timedelta64 of the unit, (rows,); time zones dropped, values are UTC |
    | date32, date64 | datetime64[D], copied / datetime64[ms] |
    | time32, time64 | int32 / int64 in the unit |
    | fixed_size_binary(w), uuid | uint8, (rows, w) |
    | fixed_size_list of the above, and within each other | (rows, length), (rows, length, w), (rows, length, length) |
    | fixed_shape_tensor | (rows, *shape), with its permutation |
    | list and large_list of the above, by Policy.ragged | the same; (0, 0) without rows |
    | everything else: strings, binary, decimals, structs, maps, other lists | stays an Arrow array |

    Nulls become NaN in floats and NaT in dates, timestamps and durations, with a copy; other nulls follow Policy.null.
    Raises ColumnError for data that the numpy form cannot represent. Null lists are possible only in Arrow arrays.
    """
    if stays_arrow(field, policy):
        return array
    if isinstance(array, pa.FixedShapeTensorArray):
        return _tensors(array, field, policy)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    type_ = array.type
    if not is_fixed_width_list(type_):
        return _filled(array, field.name, policy) if array.null_count else _view(array)
    if not len(array) and not kind.is_fixed_size_list(type_):
        items = values(array.values[:0], type_.value_field, DEFAULT)
        return items.reshape(0, 0, *items.shape[1:])
    if array.null_count:
        raise ColumnError(
            f"column {field.name!r} ({type_}) has {array.null_count} null lists, which are no row of a tensor: fill"
            ' them in a transform, or use null="arrow"'
        )
    alike = equal_length_lists(array)
    if alike is None:
        raise ColumnError(
            f"column {field.name!r} ({type_}) has lists of different lengths, which make no tensor: cut or pad them in"
            ' a transform, use ragged="arrow" for an Arrow array in every batch, or leave the column out with columns='
        )
    size, laid = alike
    items = values(laid, type_.value_field.with_name(field.name), policy)
    return items.reshape(len(array), size, *items.shape[1:])


def _tensors(array: pa.FixedShapeTensorArray, field: pa.Field, policy: Policy) -> Array:
    """The tensors in the order of their dimensions, which are stored in that of the permutation."""
    stored = values(array.storage, field.with_type(array.type.storage_type), policy)
    tensors = stored.reshape(len(array), *array.type.shape)
    places = array.type.permutation
    return tensors if places is None else tensors.transpose(0, *(1 + place for place in places))


def _view(array: pa.Array) -> Array:
    """Converts a fixed-width or bool array without nulls."""
    type_, rows = array.type, len(array)
    if kind.is_boolean(type_):
        return array.to_numpy(zero_copy_only=False)
    if kind.is_date32(type_):
        return array.view(pa.int32()).to_numpy().astype("datetime64[D]")
    if kind.is_date64(type_):
        return array.view(pa.int64()).to_numpy().view("datetime64[ms]")
    if kind.is_timestamp(type_):
        return array.view(pa.int64()).to_numpy().view(f"datetime64[{type_.unit}]")
    if kind.is_duration(type_):
        return array.view(pa.int64()).to_numpy().view(f"timedelta64[{type_.unit}]")
    if kind.is_time(type_):
        return array.view(pa.int32() if type_.bit_width == 32 else pa.int64()).to_numpy()
    if kind.is_fixed_size_binary(type_):
        width = type_.byte_width
        if rows == 0:
            return np.empty((0, width), np.uint8)
        flat = np.frombuffer(array.buffers()[1], np.uint8, rows * width, array.offset * width)
        flat.flags.writeable = False  # like Arrow's own views
        return flat.reshape(rows, width)
    return array.to_numpy()


def _filled(array: pa.Array, name: str, policy: Policy) -> Array:
    """Converts a fixed-width or bool array with nulls."""
    type_ = array.type
    if kind.is_floating(type_):
        return array.to_numpy(zero_copy_only=False)
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if policy.null == "zero":
        return _zeroed(array, nulls)
    if kind.is_timestamp(type_) or kind.is_duration(type_) or kind.is_date(type_):
        stored = pa.int32() if kind.is_date32(type_) else pa.int64()
        out = _view(array.view(stored).fill_null(0).view(type_)).copy()
        out[nulls] = "NaT"
        return out
    raise ColumnError(
        f"column {name!r} ({type_}) has {array.null_count} nulls, and numpy's {type_} has no null: fill them in a"
        ' transform (pyarrow.compute.fill_null), use null="zero" or null="arrow", or take the batch with arrow()'
    )


def _zeroed(array: pa.Array, nulls: Array) -> Array:
    """Converts a fixed-width or bool array, with nulls replaced by zeros or zero bytes."""
    validity, *buffers = array.buffers()
    del validity
    out = _view(pa.Array.from_buffers(array.type, len(array), [None, *buffers], offset=array.offset)).copy()
    out[nulls] = np.zeros((), out.dtype)
    return out
