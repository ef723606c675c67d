# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Permutation: rows by position in an order of one's own."""

from __future__ import annotations

import copy
import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kubeflow_datacache.arguments import check_callable, check_int, column_names
from kubeflow_datacache.client import Client
from kubeflow_datacache.errors import StateError
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.order.epoch import Epoch
from kubeflow_datacache.order.feistel import LIMIT
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.rows.indexing import is_row, rows_of
from kubeflow_datacache.table import Table

RowIndices = npt.NDArray[np.int64]
_FILE: Final = b"kubeflow_datacache.Permutation"  # key of the metadata of a saved file
_VERSION: Final = 1
_SAMPLES = Callable[[pa.RecordBatch], Any]


class Permutation:
    """Rows of a cache in an order of one's own: filtered, split, shuffled, or by a list of row numbers.

        train = cache.permutation().filter("label >= 1").split(Split(of=10, start=0, stop=9)).shuffle(seed=7)
        train[[0, 1, 2]]

    Immutable: each method returns a new one, and its arguments count positions of the one it was called on. filter and
    split come before shuffle and order. Connects when the number of rows, or a row, is first needed; a shuffled order
    takes no memory. Works with torch.utils.data.DataLoader as Table does. Close it, or close the cache. Picklable.
    """

    def __init__(
        self,
        rows: Client,
        *,
        columns: Sequence[str] | None = None,
        transform: _SAMPLES | None = None,
    ) -> None:
        self._source, self._columns, self._transform = rows, columns, transform
        self._order: RowIndices | None = None  # the row at each position before the shuffle; None: in their order
        self._shuffled: tuple[int, int, int] | None = None  # seed, clump and epoch
        self._opened: Table | None = None

    def __repr__(self) -> str:
        return f"Permutation({', '.join(f'{name}: {value}' for name, value in self._shown())})"

    def _repr_html_(self) -> str:
        return html_table("Permutation", self._shown())

    def filter(self, condition: str) -> Self:
        """Only the rows for which a condition is true as well; see DataCache.select. Asks the cache, which may refuse
        it."""
        self._unordered("filter")
        source = self._source.select(filter=condition)
        _ = source.dataset  # the cache accepts the condition, or says why not
        return self._with(_source=source)

    def split(self, split: Split) -> Self:
        """Only the rows of a split."""
        self._unordered("split")
        return self._with(_source=self._source.select(split=split))

    def shuffle(self, seed: int, *, clump: int = 1, epoch: int = 0) -> Self:
        """In the shuffled order of a loader's epoch with this seed and clump. Replaces an earlier shuffle."""
        seed, epoch = check_int("seed", seed, 0, 1 << 64), check_int("epoch", epoch, 0, 1 << 64)
        return self._with(_shuffled=(seed, check_int("clump", clump, 1, LIMIT), epoch))

    def order(self, positions: slice | Iterable[SupportsIndex]) -> Self:
        """The rows at these positions, in that order. Slices, masks, negative numbers and duplicates work as in numpy.

        Keeps 8 bytes for each row. Raises IndexError for positions outside.
        """
        return self._with(_order=self._rows_at(rows_of(positions, len(self))), _shuffled=None)

    def select(self, columns: Sequence[str]) -> Self:
        """With these columns only, in this order."""
        return self._with(_columns=column_names(columns))

    def table(self, *, columns: Sequence[str] | None = None, transform: _SAMPLES | None = None) -> Self:
        """With other columns and another transform, where they are given; as DataCache.table does, for
        TableDataset."""
        own = self if columns is None else self.select(columns)
        return own if transform is None else own.transform(transform)

    def transform(self, function: _SAMPLES | None) -> Self:
        """With a function of the record batch of the rows; __getitems__ returns its result. None: the batch itself."""
        return self._with(_transform=check_callable(function))

    def __len__(self) -> int:
        return len(self._table) if self._order is None else len(self._order)

    def __getitem__(self, index: SupportsIndex | slice | Iterable[SupportsIndex]) -> Any:
        """One row: the transform's result, or without a transform a dict of Python values; several as __getitems__."""
        if is_row(index):
            position = rows_of([operator.index(index)], len(self))  # pyright: ignore[reportArgumentType] - is_row
            return self._table[int(self._rows_at(position)[0])]
        return self.__getitems__(index)  # pyright: ignore[reportArgumentType] - is_row

    def __getitems__(self, positions: slice | Iterable[SupportsIndex]) -> Any:
        """The rows at these positions, in that order, as one record batch, or as the transform's result."""
        return self._table.__getitems__(self._rows_at(rows_of(positions, len(self))))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def close(self) -> None:
        """Closes the connections to the data nodes. Using the permutation again opens new ones."""
        if self._opened is not None:
            self._opened.close()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the selection, the order and the columns, but neither values nor the transform, to an Arrow file."""
        state = {
            "version": _VERSION,
            "dataset": asdict(self._source.dataset),
            "columns": self._columns,
            "ordered": self._order is not None,
            "shuffle": self._shuffled,
        }
        rows = pa.record_batch({"row": pa.array([] if self._order is None else self._order, pa.int64())})
        rows = rows.replace_schema_metadata({_FILE: json.dumps(state).encode()})
        part = Path(f"{os.fspath(path)}.part")
        with pa.ipc.new_file(str(part), rows.schema) as writer:
            writer.write_batch(rows)
        part.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], cache: Client, *, transform: _SAMPLES | None = None) -> Self:
        """Reads a file that save() wrote. cache: a DataCache of the same table and snapshot.

        Raises StateError if the file is no saved permutation, or the cache serves other rows.
        """
        with pa.ipc.open_file(str(path)) as reader:
            saved = json.loads((reader.schema.metadata or {}).get(_FILE, b"{}"))
            if saved.get("version") != _VERSION:
                raise StateError(f"{os.fspath(path)}: no permutation that this release of kubeflow-datacache saved")
            rows = reader.read_all().column("row").to_numpy()
        then, split = saved["dataset"], saved["dataset"]["split"]
        source = cache.select(filter=then["row_filter"] or None, split=Split(**split) if split else None)
        now = asdict(source.dataset)
        for name in now:
            if now[name] != then.get(name):
                raise StateError(
                    f"{os.fspath(path)}: {name} = {then.get(name)!r}, but the cache at {cache.endpoint} has"
                    f" {now[name]!r}: its row numbers mean nothing there. Make the permutation anew"
                )
        own = cls(source, columns=saved["columns"], transform=transform)
        shuffled = None if saved["shuffle"] is None else tuple(saved["shuffle"])
        return own._with(_order=rows if saved["ordered"] else None, _shuffled=shuffled)

    @property
    def _table(self) -> Table:
        if self._opened is None:
            self._opened = Table(self._source, columns=self._columns, transform=self._transform)
        return self._opened

    def _rows_at(self, positions: RowIndices) -> RowIndices:
        """The rows of the source at positions."""
        if self._shuffled is not None:
            seed, clump, number = self._shuffled
            order = Epoch(rows=len(self), seed=seed, clump=clump, number=number, global_batch=1)
            positions = order.rows_at(positions.astype(np.uint64)).view(np.int64)
        return positions if self._order is None else self._order[positions]

    def _with(self, **changed: Any) -> Self:
        """A copy with other attributes."""
        other = copy.copy(self)
        other.__dict__.update(changed, _opened=None)
        return other

    def _unordered(self, method: str) -> None:
        """Raises ValueError if there is an order already, whose positions would change."""
        if self._order is not None or self._shuffled is not None:
            raise ValueError(f"{method} after shuffle or order: call it before them")

    def _shown(self) -> list[tuple[str, str]]:
        shown = [("rows", repr(self._source))]
        if self._order is not None:
            shown.append(("order", f"{len(self._order)} positions"))
        if self._shuffled is not None:
            shown.append(("shuffle", "seed {}, clump {}, epoch {}".format(*self._shuffled)))
        if self._columns is not None:
            shown.append(("columns", ", ".join(self._columns)))
        return shown
