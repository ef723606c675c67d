# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Batch: one rank's rows of one step."""

from __future__ import annotations

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


class Batch:
    """One rank's rows of one step: a view, made without a copy. May be kept for any time.

    A batch, and any array or tensor of a large column, keeps in memory the whole message (up to 4 MiB) or merged block
    (up to 16 MiB) that it is a view of; copy what you keep of many batches. Columns that are small compared with the
    others, together up to an eighth of a message, have memory of their own: keeping labels keeps only the labels of
    nearby steps.

    epoch, step: the batch's position. rows: the number of rows; ranks' shares of a step differ by at most one, and some
    are empty if the world is larger than the batch. data: the transform's result; None without a transform.
    """

    __slots__ = ("_block", "_held", "_index", "_origin", "data", "rows", "step")

    def __init__(self, origin: tuple[Epoch, Share], block: StepBlock, index: int, step: int) -> None:
        self.step = step
        self.rows = block.size
        self.data: Any = None
        self._held: int | None = None
        self._origin, self._block, self._index = origin, block, index

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, column: str) -> pa.Array:
        """A column of arrow(). Raises KeyError for an unknown name."""
        return self.arrow()[column]

    def __repr__(self) -> str:
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the batch's position, and its columns or the type of the transform's result."""
        shown = [("epoch", f"{self.epoch:,}"), ("step", f"{self.step:,}"), ("rows", f"{self.rows:,}")]
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
    def held_bytes(self) -> int:
        """Estimated memory of the batch: that of its rows, or of the transform's result."""
        return self._block.step_bytes if self._held is None else self._held

    def set_data(self, data: Any) -> None:
        """Stores the transform's result and releases the rows from the cache."""
        self.data, self._held, self._block = data, memory_of(data), self._block.without_rows

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._origin[0].number

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Boolean mask, shape (rows,): False for the repeated rows with which tail "pad" fills the last step."""
        order, share = self._origin
        return order.valid(order.span(self.step, share))

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Row indices in the dataset, shape (rows,); in a mixture, in the dataset of each row's part. Computed on each
        access."""
        return self._located[1]

    @property
    def source(self) -> npt.NDArray[np.int16]:
        """In a mixture, the part of each row, counted from 0 in the order of mix(); otherwise zeros. Shape (rows,);
        computed on each access."""
        return self._located[0]

    @property
    def mixed(self) -> bool:
        """Whether the rows are of a mixture."""
        return isinstance(self._origin[0], Mix)

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

        datetime64 and timedelta64 become int64 in their unit; the loader's option null applies to their nulls. device:
        copies the tensors to that torch device. non_blocking: as in torch.Tensor.to; only copies from pinned memory are
        asynchronous. Requires torch.
        """
        try:
            columns = self._block.torch(self._index) if self.data is None else self._transformed().torch(0)
        except ModuleNotFoundError as error:
            raise missing_extra(error, "torch", "Batch.torch()") from error
        if device is None:
            return columns
        return {
            name: column if isinstance(column, pa.Array) else column.to(device, non_blocking=non_blocking)
            for name, column in columns.items()
        }

    def has_columns_of(self, other: Batch) -> bool:
        """Whether the rows from the cache have the same columns as the other batch's; mixtures by batch may differ."""
        return self._block is other._block or self._block.rows.schema == other._block.rows.schema

    def follows(self, earlier: Batch) -> bool:
        """Whether these rows directly follow the earlier batch's in memory; False after a transform."""
        return self._block is earlier._block and self._index == earlier._index + 1 and self.data is earlier.data is None

    def following_rows(self, count: int) -> pa.RecordBatch:
        """The rows of this batch and the following ones, `count` batches in total; never a copy."""
        return self._block.arrow(self._index, count)

    def _transformed(self) -> StepBlock:
        rows = self.arrow()
        return StepBlock(range(self.step, self.step + 1), rows.num_rows, rows, self._block.policy)
