# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""LengthsLoader: what loaders have in common whose steps depend on the lengths of rows."""

from __future__ import annotations

import os
from typing import Any, Final

from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.stop import Stop

_SHARE: Final = 8  # lengths that are read ahead get 1/8 of prefetch_bytes


class LengthsLoader(Loader):
    """A Loader that also reads the lengths of all rows, in the order of the epoch, and requests its rows by number."""

    _lengths: Merge | None = None  # of the current iteration

    def _rows_of(self, **options: Any) -> Loader:
        """A loader of the same rows with other options."""
        return Loader(self._cache, **options)

    def _read_lengths(self, column: str) -> Merge:
        """Reads the lengths of a column, row by row."""
        order, ahead = self._order, max(1, self._prefetch_bytes // _SHARE)
        own: dict[str, Any] = {"seed": order.seed, "shuffle": order.shuffle, "clump": order.clump}
        reader = self._rows_of(
            columns=[f"length({column})"], global_batch_size=1, tail="keep", prefetch_bytes=ahead, **own
        )
        reader.set_epoch(order.number)
        return reader.merge(Share(), ahead, ahead)

    def _takes(self, stop: Stop) -> bool:
        return True

    def _end(self) -> None:
        self._leave_parent()
        if self._lengths is not None:
            self._lengths.stop()
            self._lengths = None
        super()._end()

    def _leave_parent(self) -> None:
        if self._process != os.getpid():
            self._lengths = None  # its connections are the parent's
        super()._leave_parent()
