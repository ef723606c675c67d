# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loaders whose steps are divided among ranks by the lengths of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Unpack, cast

import numpy as np
import numpy.typing as npt
import pyarrow.types as kind

from kubeflow_datacache.client import Client, Source
from kubeflow_datacache.errors import ColumnError, DataCacheError
from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.lengths import LengthsLoader
from kubeflow_datacache.options import LoaderOptions
from kubeflow_datacache.order.balance import balance
from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.packed import BalancedStep, RankSteps
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.block import StepBlock

_WITH_LENGTHS: Final = (
    kind.is_list, kind.is_large_list, kind.is_string, kind.is_large_string, kind.is_binary, kind.is_large_binary,
    kind.is_map,
)  # fmt: skip
_WORKERS: Final = ("worker", "workers")


class BalancedBatch(Batch):
    """One rank's rows of one step; ranks have as much work, and not as many rows."""

    __slots__ = ("_rows",)

    def __init__(self, origin: tuple[Epoch, Share], rows: RowIndices, block: StepBlock, index: int, step: int) -> None:
        super().__init__(origin, block, index, step)
        self._rows = rows

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Boolean mask, shape (num_rows,): all True."""
        return np.ones(self.num_rows, np.bool_)

    @property
    def _located(self) -> tuple[npt.NDArray[np.int16], RowIndices]:
        return self._origin[0].locate(self._rows)


class BalancedLoader(LengthsLoader):
    """A Loader whose ranks have as much work in each step, by the lengths of a column of lists or text. Create it with
    DataCache.loader(balance=...).

    The steps, and the states, are those of a Loader. A rank's rows of a step depend on the lengths, and their number
    too. transform, tail="pad", order=2 and workers are not for it.
    """

    def __init__(self, cache: Source, balance: str, **options: Unpack[LoaderOptions]) -> None:
        _check(balance, options)
        self._column = balance
        super().__init__(cache, **options)
        self._cache.check_columns([balance])
        stored = cast("Client", self._cache).described.schema.field(balance).type
        if not any(holds(stored) for holds in _WITH_LENGTHS):
            raise ColumnError(f"balance: column {balance!r} is {stored}: want a column of lists or text")

    def _steps_of(self, lengths: Merge, share: Share, first: int) -> Iterator[BalancedStep]:
        """The rank's rows of each step from one on."""
        order, known = self._order, np.empty(0, np.int64)
        blocks = lengths.blocks(first * order.global_batch)
        for step in range(first, order.steps):
            size = order.size(step)
            while len(known) < size:
                if (block := next(blocks, None)) is None:
                    raise DataCacheError("the loader was closed while it read")
                known = np.concatenate([known, block.rows.column(0).to_numpy().astype(np.int64)])
            own = balance(known[:size], share.world)[share.rank]
            known = known[size:]
            positions = np.array(own, np.uint64) + np.uint64(step * order.global_batch)
            yield BalancedStep(order.rows_at(positions).view(np.int64))

    def _rank_steps(self, share: Share) -> RankSteps[BalancedStep]:
        lengths = self._lengths = self._read_lengths(self._column)
        return RankSteps(lambda first, _: self._steps_of(lengths, share, first), self._step)

    def _batch(self, origin: tuple[Epoch, Share], own: BalancedStep, *place: Any) -> BalancedBatch:
        return BalancedBatch(origin, own.rows, *place)

    def _reader_options(self) -> dict[str, Any]:
        own = super()._reader_options()
        return {name: own[name] for name in own if name not in _WORKERS} | {"balance": self._column}


def _check(column: Any, options: LoaderOptions) -> None:
    """Raises TypeError or ValueError, naming the parameter."""
    if not isinstance(column, str) or not column:
        raise TypeError(f'balance = {column!r}: want the name of a column of lists or text, such as "input_ids"')
    for name in ("transform", "transform_threads", "transform_processes", *_WORKERS):
        if options.get(name):
            raise ValueError(f"{name} with balance: leave it out, and apply it to the batches")
    if options.get("tail") == "pad":
        raise ValueError('tail = "pad" with balance: give "drop" or "keep"; ranks have other numbers of rows anyway')
    if options.get("order") == 2:
        raise ValueError("order = 2 with balance: give 1, as a rank reads rows of the whole table")
