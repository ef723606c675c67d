# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts a Dataset of Ray into a cache, from its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockAccessor

from kubeflow_datacache.puts import Keep, Mode, Published, Put

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache


class CacheDatasink(ray.data.Datasink):  # pyright: ignore[reportMissingTypeArgument]  # of receipts
    """Sends what each write task gets as one part of a put, and publishes them at the end, with `published` as result.

    parts: more than there are write tasks; a task that Ray runs again sends its part again. If a task fails for good,
    nothing of the put stays.
    """

    published: Published

    def __init__(
        self, cache: DataCache, name: str, *, parts: int, mode: Mode = "create", keep: Keep | None = None
    ) -> None:
        self._begin = (cache, name, parts, mode, keep)
        self._put: Put | None = None

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Begins the put."""
        cache, name, parts, mode, keep = self._begin
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"put {name!r}: the Dataset has no columns: make it of dicts, tables or frames")
        self._put = Put.begin(cache, name, schema, parts=parts, mode=mode, keep=keep)

    def write(self, blocks: Iterable[Any], ctx: Any) -> str:
        """Sends a part and returns its receipt."""
        assert self._put is not None, "on_write_start was not called"
        whole = list(blocks)  # of the object store, so that they can be sent again

        def tables() -> Iterator[pa.Table]:
            return (BlockAccessor.for_block(block).to_arrow() for block in whole)

        return self._put.send(ctx.task_idx, tables)

    def on_write_complete(self, write_result: Any) -> None:
        """Publishes the parts."""
        assert self._put is not None, "on_write_start was not called"
        self.published = self._put.publish(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        """Gives the put up."""
        if self._put is not None:
            self._put.abort()


def put(
    cache: DataCache, name: str, dataset: ray.data.Dataset, *, mode: Mode = "create", keep: Keep | None = None
) -> Published:
    """Puts a Dataset of Ray as a dataset of the cache, from Ray's tasks, each block as one part.

    Workers need this package, and a way to the data nodes. The Dataset is computed first, into Ray's object store. Rows
    are in its order.
    """
    computed = dataset.materialize()
    sink = CacheDatasink(cache, name, parts=max(1, computed.num_blocks()), mode=mode, keep=keep)
    computed.write_datasink(sink)
    return sink.published
