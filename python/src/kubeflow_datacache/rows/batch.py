# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank's rows of one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.extras import missing
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows import size
from kubeflow_datacache.rows.arrays import Array
from kubeflow_datacache.rows.slab import Slab
from kubeflow_datacache.watch.html import as_table


class Batch:
    """One rank's rows of one step: a view, made without a copy. Keep it as long as you like.

    A batch, and any array or tensor of a large column, keeps the message (up to 4 MiB) or merged block (up to 16 MiB)
    in memory that it is a view of; copy what you keep of many. Columns that are small beside the others, together up to
    an eighth of a message, are in memory of their own: labels may be kept, and keep only labels of nearby steps.

    epoch, step: where it stands. rows: how many rows it has; ranks' shares of a step differ by at most one, and some
    are empty where the world is larger than the batch. data: what the transform gave; None without one.
    """

    __slots__ = ("_held", "_index", "_origin", "_slab", "data", "rows", "step")

    def __init__(self, origin: tuple[Epoch, Share], slab: Slab, index: int, step: int) -> None:
        self.step = step
        self.rows = slab.size
        self.data: Any = None
        self._held: int | None = None
        self._origin, self._slab, self._index = origin, slab, index

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, column: str) -> pa.Array:
        """A column of arrow(); KeyError for a name that is not there."""
        return self.arrow()[column]

    def __repr__(self) -> str:
        return f"Batch(epoch={self.epoch}, step={self.step}, rows={self.rows})"

    def _repr_html_(self) -> str:
        """What notebooks show: where the batch stands, and its columns, or what the transform gave."""
        shown = [("epoch", f"{self.epoch:,}"), ("step", f"{self.step:,}"), ("rows", f"{self.rows:,}")]
        if self.data is None or isinstance(self.data, pa.RecordBatch):
            shown += [(f"column {field.name}", str(field.type)) for field in self.schema]
        else:
            shown.append(("data", type(self.data).__name__))
        return as_table("Batch", shown)

    @property
    def nbytes(self) -> int:
        """Arrow bytes of the rows as they came from the cache, the mean over some steps."""
        return self._slab.step_bytes

    @property
    def held(self) -> int:
        """Bytes that the batch holds, about: those of its rows, or of what the transform gave."""
        return self._slab.step_bytes if self._held is None else self._held

    def receive(self, data: Any) -> None:
        """Takes what the transform gave, and lets go of the rows that came from the cache."""
        self.data, self._held, self._slab = data, size.held(data), self._slab.spent

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self._origin[0].number

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows count, (rows,): all, except that tail "pad" fills the last step with rows given before."""
        order, share = self._origin
        return order.valid(order.span(self.step, share))

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """The rows' indices in the dataset, (rows,); computed anew each time."""
        order, share = self._origin
        return order.rows_of(range(self.step, self.step + 1), share)

    @property
    def schema(self) -> pa.Schema:
        """The columns of arrow(): names and types."""
        return self.arrow().schema

    def to_pandas(self, **options: Any) -> Any:
        """The rows as a pandas.DataFrame; options are those of pyarrow.RecordBatch.to_pandas. Needs pandas.

        One column of numbers without nulls is a view of Arrow's memory; columns of one type that pandas keeps together,
        strings, lists, bools, times and what has nulls are copied (zero_copy_only=True makes a copy an error).
        """
        return self.arrow().to_pandas(**options)

    def arrow(self) -> pa.RecordBatch:
        """The rows as an Arrow record batch (after the transform); never a copy."""
        if self.data is None:
            return self._slab.arrow(self._index)
        if isinstance(self.data, pa.RecordBatch):
            return self.data
        raise ColumnError(f"the transform gave {type(self.data).__name__}, no Arrow record batch: use batch.data")

    def numpy(self) -> dict[str, Array | pa.Array]:
        """Columns by name: numpy arrays with the rows first where the type allows, else Arrow arrays.

        Read-only views of Arrow's memory except for bool and date32; arrays.values has the table of types. What a
        column is never depends on its data: nulls and lists of different lengths are as the loader's null and ragged
        say, by default a ColumnError.
        """
        return self._slab.numpy(self._index) if self.data is None else self._transformed().numpy(0)

    def torch(self, *, device: Any = None, non_blocking: bool = False) -> dict[str, Any]:
        """Columns by name: CPU tensors where numpy() has numbers (the same memory), else Arrow arrays.

        datetime64 and timedelta64 come as int64 in their unit, with nulls as the loader's null says. device: copies the
        tensors to that torch device; non_blocking is torch.Tensor.to's, and only pinned memory is copied without
        waiting. Needs torch.
        """
        try:
            columns = self._slab.torch(self._index) if self.data is None else self._transformed().torch(0)
        except ModuleNotFoundError as error:
            raise missing(error, "torch", "Batch.torch()") from error
        if device is None:
            return columns
        return {
            name: column if isinstance(column, pa.Array) else column.to(device, non_blocking=non_blocking)
            for name, column in columns.items()
        }

    def follows(self, earlier: Batch) -> bool:
        """Whether these rows lie right behind the earlier batch's in memory; False after a transform."""
        return self._slab is earlier._slab and self._index == earlier._index + 1 and self.data is earlier.data is None

    def run(self, count: int) -> pa.RecordBatch:
        """The rows of this batch and of those that follow it, count batches in all; never a copy."""
        return self._slab.arrow(self._index, count)

    def _transformed(self) -> Slab:
        rows = self.arrow()
        return Slab(range(self.step, self.step + 1), rows.num_rows, rows, self._slab.policy)
