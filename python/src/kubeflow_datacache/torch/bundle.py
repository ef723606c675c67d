# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Several steps in one message from a DataLoader worker, so that small steps do not each pay for a message."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.gather import detach_small
from kubeflow_datacache.rows.slab import Slab
from kubeflow_datacache.torch.batch import item_of
from kubeflow_datacache.torch.dataset import Stream, StreamingDataset
from kubeflow_datacache.torch.segments import Received, SegmentPool, Sent, read
from kubeflow_datacache.watch.stats import Stats

_SECONDS: Final = 0.01  # so long a ready batch waits for others of its bundle


class Step(NamedTuple):
    """One step: its number, rows and Arrow bytes, and what the training code gets for it."""

    step: int
    rows: int
    nbytes: int
    item: Any


@dataclass(frozen=True)
class Report:
    """Who made a bundle, the loader's state as it was then, its numbers, and what it does with nulls."""

    share: Share
    worker: int
    state: Mapping[str, Any]
    stats: Stats
    policy: Policy


class Part(NamedTuple):
    """Consecutive steps in one record batch, so many rows each."""

    steps: range
    rows: int


class Bundle:
    """Consecutive steps of one worker. Pickled, their rows are in a segment of the pool; the receiver has views of it.

    What a transform made of a step is sent by itself instead: a mapping in one piece (TensorBatch), any other as torch
    sends it.
    """

    def __init__(self, report: Report, batches: list[Batch], pool: SegmentPool | None = None) -> None:
        self.report = report
        self._batches, self._pool = batches, pool
        self._steps: list[Step] | None = None
        self._received: tuple[Received, list[Part]] | None = None

    @classmethod
    def of_parts(cls, report: Report, parts: list[Part], sent: Sent) -> Bundle:
        """A received bundle: a record batch of the segment for each part."""
        received = Received(sent)
        bundle = cls(report, _batches(report, parts, map(detach_small, received.read())))
        bundle._received = received, parts
        return bundle

    @classmethod
    def of_steps(cls, report: Report, steps: list[Step]) -> Bundle:
        """A bundle whose steps are made already."""
        bundle = cls(report, [])
        bundle._steps = steps
        return bundle

    def steps(self) -> list[Step]:
        """The steps, in order."""
        if self._steps is not None:
            return self._steps
        pads = self.report.state["tail"] == "pad"
        return [Step(batch.step, batch.rows, batch.nbytes, item_of(batch, pads=pads)) for batch in self._batches]

    def pin_memory(self) -> Bundle:
        """The bundle in page-locked memory: DataLoader's pin_memory thread calls it."""
        if self._received is None:
            return Bundle.of_steps(self.report, [step._replace(item=pin_memory(step.item)) for step in self.steps()])
        received, parts = self._received
        pinned = pa.py_buffer(received.memory.pin_memory().numpy())
        return Bundle(self.report, _batches(self.report, parts, read(pinned)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pool is None or self._batches[0].data is not None:
            return Bundle.of_steps, (self.report, self.steps())
        runs = list(_runs(self._batches))
        parts = [Part(_range(run), run[0].rows) for run in runs]
        return Bundle.of_parts, (self.report, parts, self._pool.write([run[0].run(len(run)) for run in runs]))


class BundledDataset(IterableDataset[Bundle]):
    """A dataset in bundles of about so many bytes; a batch that others don't follow within 10 ms waits no longer.

    reader: the name under which the main process keeps the workers' segments, see segments.forget.
    """

    def __init__(self, dataset: StreamingDataset, bundle_bytes: int) -> None:
        self._dataset, self._bundle_bytes = dataset, bundle_bytes
        self.reader = os.urandom(8).hex()

    def __iter__(self) -> Iterator[Bundle]:
        stream = Stream(self._dataset)
        pool = SegmentPool(self.reader, stream.worker, max(1, self._bundle_bytes // 4))
        batches = iter(stream.loader)
        held: list[Batch] = []
        size, begun = 0, 0.0
        while (batch := next(batches, None)) is not None:
            if not held:
                begun = time.monotonic()
            held.append(batch)
            size += max(batch.nbytes, batch.held)
            if size >= self._bundle_bytes or time.monotonic() - begun > _SECONDS:
                yield Bundle(_report(stream), held, pool)
                held, size = [], 0
        if held:
            yield Bundle(_report(stream), held, pool)

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch. Frameworks call it as loader.dataset.set_epoch."""
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


def _report(stream: Stream) -> Report:
    loader = stream.loader
    return Report(stream.share, stream.worker, loader.state_dict(), loader.stats(), loader.policy)


def _batches(report: Report, parts: list[Part], rows: Iterable[pa.RecordBatch]) -> list[Batch]:
    """The batches of received parts, over their record batches."""
    origin, batches = (order_of(report.state), report.share), list[Batch]()
    for part, whole in zip(parts, rows, strict=True):
        slab = Slab(part.steps, part.rows, whole, report.policy)
        batches += [Batch(origin, slab, index, step) for index, step in enumerate(part.steps)]
    return batches


def _runs(batches: list[Batch]) -> Iterator[list[Batch]]:
    """The batches in runs that lie one behind the other in memory."""
    run = batches[:1]
    for batch in batches[1:]:
        if batch.follows(run[-1]):
            run.append(batch)
        else:
            yield run
            run = [batch]
    yield run


def _range(batches: list[Batch]) -> range:
    stride = batches[1].step - batches[0].step if len(batches) > 1 else 1
    return range(batches[0].step, batches[-1].step + 1, stride)
