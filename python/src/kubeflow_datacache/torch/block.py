# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several steps at once: what costs DataLoader a message is then cheap, however small a step is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.gather import detach_small
from kubeflow_datacache.rows.slab import Slab
from kubeflow_datacache.torch.batch import item_of
from kubeflow_datacache.torch.dataset import Stream, StreamingDataset
from kubeflow_datacache.torch.memory import read_rows, write_rows
from kubeflow_datacache.watch.stats import Stats

_SECONDS: Final = 0.01  # so long a ready batch waits for others of its block


class Step(NamedTuple):
    """One step: its number, rows and Arrow bytes, and what the training code gets for it."""

    step: int
    rows: int
    nbytes: int
    item: Any


@dataclass(frozen=True)
class Report:
    """Who made a block, the loader's state as it was then, its numbers, and what it does with nulls."""

    share: Share
    worker: int
    state: Mapping[str, Any]
    stats: Stats
    policy: Policy


class Block:
    """Consecutive steps of one worker. Pickled, it is one piece of shared memory; the other side has views of it.

    What a transform made of a step travels by itself instead: a mapping in one piece (TensorBatch), any other as torch
    sends it.
    """

    def __init__(self, report: Report, batches: list[Batch], memory: Tensor | None = None) -> None:
        self.report = report
        self._batches, self._memory = batches, memory
        self._steps: list[Step] | None = None

    @classmethod
    def of_rows(cls, report: Report, steps: range, rows: int, memory: Tensor) -> Block:
        """A block out of memory: `rows` rows of each of the steps."""
        rows_in = read_rows(memory)
        if not memory.is_pinned():  # else small columns would not be
            rows_in = detach_small(rows_in)
        slab, origin = Slab(steps, rows, rows_in, report.policy), (order_of(report.state), report.share)
        return cls(report, [Batch(origin, slab, index, step) for index, step in enumerate(steps)], memory)

    @classmethod
    def of_steps(cls, report: Report, steps: list[Step]) -> Block:
        """A block whose steps are made already."""
        block = cls(report, [])
        block._steps = steps
        return block

    def steps(self) -> list[Step]:
        """The steps, in order."""
        if self._steps is not None:
            return self._steps
        pads = self.report.state["tail"] == "pad"
        return [Step(batch.step, batch.rows, batch.nbytes, item_of(batch, pads=pads)) for batch in self._batches]

    def pin_memory(self) -> Block:
        """The block in page-locked memory: DataLoader's pin_memory thread calls it."""
        if self._memory is not None:
            batches = self._batches
            return Block.of_rows(self.report, _range(batches), batches[0].rows, self._memory.pin_memory())
        return Block.of_steps(self.report, [step._replace(item=pin_memory(step.item)) for step in self.steps()])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._steps is not None or self._batches[0].data is not None:
            return Block.of_steps, (self.report, self.steps())
        memory = write_rows(_whole([batch.arrow() for batch in self._batches]))
        return Block.of_rows, (self.report, _range(self._batches), self._batches[0].rows, memory)


class Blocks(IterableDataset[Block]):
    """A dataset in blocks of about so many bytes; a batch that others don't follow within 10 ms waits no longer."""

    def __init__(self, dataset: StreamingDataset, block_bytes: int) -> None:
        self._dataset, self._block_bytes = dataset, block_bytes

    def __iter__(self) -> Iterator[Block]:
        stream = Stream(self._dataset)
        batches = iter(stream.loader)
        held: list[Batch] = []
        size, begun = 0, 0.0
        while (batch := next(batches, None)) is not None:
            if held and batch.rows != held[0].rows:
                yield _block(stream, held)
                held, size = [], 0
            if not held:
                begun = time.monotonic()
            held.append(batch)
            size += batch.nbytes
            if size >= self._block_bytes or time.monotonic() - begun > _SECONDS:
                yield _block(stream, held)
                held, size = [], 0
        if held:
            yield _block(stream, held)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch: for code that looks for it at loader.dataset."""
        self._dataset.set_epoch(epoch)


def order_of(state: Mapping[str, Any]) -> Epoch:
    """The epoch that a loader's state stands in."""
    return Epoch(
        rows=state["rows"],
        seed=state["seed"],
        number=state["epoch"],
        shuffle=state["shuffle"],
        clump=state["clump"],
        global_batch=state["global_batch_size"],
        tail=state["tail"],
    )


def _block(stream: Stream, batches: list[Batch]) -> Block:
    loader = stream.loader
    return Block(Report(stream.share, stream.worker, loader.state_dict(), loader.stats(), loader.policy), batches)


def _range(batches: list[Batch]) -> range:
    stride = batches[1].step - batches[0].step if len(batches) > 1 else 1
    return range(batches[0].step, batches[-1].step + 1, stride)


def _whole(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1 or not parts[0].num_rows:
        return parts[0]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
