# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batch: one rank's rows of one step."""

# The functions below belong to the class, but not to what its users see.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.extras import missing_extra, needs
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.mix import Mix
from kubeflow_datacache.rows.arrays import Array
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.size import memory_of
from kubeflow_datacache.rows.tensors import cast_tensors, with_tensors


class Batch(Mapping[str, Any]):
    """One rank's rows of one step: a view, made without a copy. May be kept for any time.

    A mapping from names to columns: Arrow arrays, or what the transform returned as columns.

    A batch, and any array or tensor of a large column, keeps in memory the whole message (up to 4 MiB) or merged block
    (up to 16 MiB) that it is a view of; copy what you keep of many batches. Columns that are small compared with the
    others, together up to an eighth of a message, have memory of their own: keeping labels keeps only the labels of
    nearby steps.

    epoch, step: the batch's position. num_rows: the number of rows; ranks' shares of a step differ by at most one, and
    some are empty if the world is larger than the batch. data: the transform's result; None without a transform.
    """

    __slots__ = ("_block", "_held", "_index", "_origin", "_weight", "data", "num_rows", "step")

    def __init__(self, origin: tuple[Epoch, Share], block: StepBlock, index: int, step: int) -> None:
        self.step = step
        self.num_rows = block.size
        self.data: Any = None
        self._held: int | None = None
        self._origin, self._block, self._index = origin, block, index

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, column: str) -> Any:
        """A column. Raises KeyError for an unknown name."""
        return self.data[column] if isinstance(self.data, Mapping) else self.arrow()[column]

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType] - Mapping compares contents and has none

    def __repr__(self) -> str:
        return f"Batch(epoch={self.epoch}, step={self.step}, num_rows={self.num_rows})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the batch's position, and its columns or the type of the transform's result."""
        shown = [("epoch", f"{self.epoch:,}"), ("step", f"{self.step:,}"), ("rows", f"{self.num_rows:,}")]
        if self.data is None or isinstance(self.data, pa.RecordBatch):
            shown += [(f"column {field.name}", str(field.type)) for field in self.schema]
        else:
            shown.append(("data", type(self.data).__name__))
        return html_table("Batch", shown)

    @property
    def nbytes(self) -> int:
        """Arrow bytes of the rows as received from the cache, averaged over neighbouring steps."""
        return self._block.step_bytes

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._origin[0].number

    @property
    def weight(self) -> float:
        """What to multiply the sum of the losses of the valid rows by: world size / valid rows of the step over all
        ranks. The mean over ranks, which frameworks take of gradients, is then the mean over the rows of the step."""
        given: float | None = getattr(self, "_weight", None)
        return self._own_weight() if given is None else given

    @weight.setter
    def weight(self, weight: float) -> None:
        self._weight = weight

    def _own_weight(self) -> float:
        order, share = self._origin
        return share.world / min(order.global_batch, order.rows - self.step * order.global_batch)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Boolean mask, shape (num_rows,): False for the repeated rows with which tail "pad" fills the last step."""
        order, share = self._origin
        return order.valid(order.span(self.step, share))

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Row indices in the dataset, shape (num_rows,); in a mixture, in the dataset of each row's part. Computed on
        each access."""
        return self._located[1]

    @property
    def source(self) -> npt.NDArray[np.int16]:
        """In a mixture, the part of each row, counted from 0 in the order of mix(); otherwise zeros. Shape (num_rows,);
        computed on each access."""
        return self._located[0]

    @property
    def _located(self) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int64]]:
        order, share = self._origin
        return order.locate(order.rows_of(range(self.step, self.step + 1), share))

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns of arrow()."""
        return self.arrow().schema

    def to_pandas(self, **options: Any) -> Any:
        """Converts the rows to a pandas.DataFrame; options are those of pyarrow.RecordBatch.to_pandas. Requires pandas.

        All columns are copied by default, as pandas keeps those of one type together. split_blocks=True makes numbers
        and times without nulls read-only views of Arrow's memory: frame.copy() before single values are assigned to.
        types_mapper=pandas.ArrowDtype copies nothing. zero_copy_only=True makes a copy an error, but not for strings.
        """
        with needs("notebook", "Batch.to_pandas()"):
            return self.arrow().to_pandas(**options)

    def arrow(self) -> pa.RecordBatch:
        """The rows as an Arrow record batch, after the transform; never a copy."""
        if self.data is None:
            return self._block.arrow(self._index)
        if isinstance(self.data, pa.RecordBatch):
            return self.data
        raise ColumnError(f"the transform gave {type(self.data).__name__}, no Arrow record batch: use batch.data")

    def numpy(self) -> dict[str, Array | pa.Array]:
        """Columns by name: numpy arrays whose first dimension is the row, or Arrow arrays for types that numpy lacks.

        Read-only views of Arrow's memory except for bool and date32; arrays.values has a table of types. A column's
        type never depends on its data: the loader's options null and ragged say what happens to nulls and to lists of
        different lengths; the default is ColumnError.
        """
        return self._block.numpy(self._index) if self.data is None else self._transformed().numpy(0)

    def torch(self, *, device: Any = None, non_blocking: bool = False) -> dict[str, Any]:
        """Columns by name: CPU tensors that share memory with numpy()'s arrays, or Arrow arrays for other types.

        Of columns that a transform made, numpy arrays of numbers become tensors, and others stay as they are.

        datetime64 and timedelta64 become int64 in their unit; the loader's option null applies to their nulls. device:
        copies the tensors to that torch device; the loader's option cast converts them there. non_blocking: as in
        torch.Tensor.to; only copies from pinned memory are asynchronous. Requires torch.
        """
        columns, casts = tensors_of(self), self._block.policy.cast
        if device is not None:
            columns = {
                name: column.to(device, non_blocking=non_blocking) if hasattr(column, "to") else column
                for name, column in columns.items()
            }
        return cast_tensors(columns, casts) if casts else columns

    @property
    def _columns(self) -> Sequence[str]:
        return list(self.data) if isinstance(self.data, Mapping) else self.schema.names

    def _transformed(self) -> StepBlock:
        rows = self.arrow()
        return StepBlock(range(self.step, self.step + 1), rows.num_rows, rows, self._block.policy)


def tensors_of(batch: Batch) -> dict[str, Any]:
    """What Batch.torch() returns, without the loader's option cast."""
    try:
        if batch.data is None:
            return batch._block.torch(batch._index)
        return with_tensors(batch.data) if isinstance(batch.data, Mapping) else batch._transformed().torch(0)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "torch", "Batch.torch()") from error


def set_data(batch: Batch, data: Any) -> None:
    """Stores the transform's result and releases the rows from the cache."""
    batch.data, batch._held, batch._block = data, memory_of(data), batch._block.without_rows


def held_bytes(batch: Batch) -> int:
    """Estimated memory of the batch: that of its rows, or of the transform's result."""
    return batch.nbytes if batch._held is None else batch._held


def is_mixed(batch: Batch) -> bool:
    """Whether the rows are of a mixture."""
    return isinstance(batch._origin[0], Mix)


def same_columns(one: Batch, other: Batch) -> bool:
    """Whether the rows from the cache have the same columns; mixtures by batch may differ."""
    return one._block is other._block or one._block.rows.schema == other._block.rows.schema


def follows(batch: Batch, earlier: Batch) -> bool:
    """Whether the rows directly follow the earlier batch's in memory; False after a transform."""
    together = batch._block is earlier._block and batch._index == earlier._index + 1
    return together and batch.data is earlier.data is None


def following_rows(batch: Batch, count: int) -> pa.RecordBatch:
    """The rows of the batch and the following ones, `count` batches in total; never a copy."""
    return batch._block.arrow(batch._index, count)
