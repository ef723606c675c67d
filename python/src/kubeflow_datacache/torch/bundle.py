# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bundles: several steps in one message from a DataLoader worker, to share the cost of a message."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final, NamedTuple

import pyarrow as pa
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from kubeflow_datacache.errors import DataCacheError
from kubeflow_datacache.monitoring.stats import Stats
from kubeflow_datacache.order.epoch import Share
from kubeflow_datacache.rows.arrays import Policy
from kubeflow_datacache.rows.batch import Batch, following_rows, follows, held_bytes, same_columns
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import detach_small
from kubeflow_datacache.state import order_of
from kubeflow_datacache.torch.batch import item_of
from kubeflow_datacache.torch.dataset import StreamingDataset, WorkerIterator
from kubeflow_datacache.torch.segments import ReceivedSegment, SegmentPool, SegmentRef, read

_SHARED_MEMORY: Final = "/dev/shm"
_SECONDS: Final = 0.01  # maximum time that a batch waits for others of its bundle


class StepItem(NamedTuple):
    """One step: its number, rows and Arrow bytes, and the item that the training code gets."""

    step: int
    rows: int
    nbytes: int
    item: Any


@dataclass(frozen=True)
class WorkerReport:
    """Sent with a bundle: the worker that made it, and its loader's share, state, statistics and null policy at that
    time."""

    share: Share
    worker: int
    state: Mapping[str, Any]
    stats: Stats
    policy: Policy


class StepRange(NamedTuple):
    """Consecutive steps in one record batch, `rows` rows per step."""

    steps: range
    rows: int


class Bundle:
    """Consecutive steps of one worker. Pickling writes their rows to a shared-memory segment, which the receiver reads
    in place.

    The result of a transform is pickled by itself instead: a mapping as one TensorBatch, anything else as torch does
    it.
    """

    def __init__(self, report: WorkerReport, batches: list[Batch], pool: SegmentPool | None = None) -> None:
        self.report = report
        self._batches, self._pool = batches, pool
        self._steps: list[StepItem] | None = None
        self._error: str | None = None
        self._received: tuple[ReceivedSegment, list[StepRange]] | None = None

    @classmethod
    def of_parts(cls, report: WorkerReport, parts: list[StepRange], sent: SegmentRef) -> Bundle:
        """A received bundle, with one record batch in the segment per StepRange."""
        received = ReceivedSegment(sent)
        bundle = cls(report, _batches(report, parts, map(detach_small, received.read())))
        bundle._received = received, parts
        return bundle

    @classmethod
    def of_steps(cls, report: WorkerReport, steps: list[StepItem]) -> Bundle:
        """A bundle of finished steps."""
        bundle = cls(report, [])
        bundle._steps = steps
        return bundle

    @classmethod
    def of_error(cls, report: WorkerReport, error: str) -> Bundle:
        """In place of a bundle that its worker could not send."""
        bundle = cls(report, [])
        bundle._error = error
        return bundle

    def steps(self) -> list[StepItem]:
        """The steps in order. Raises DataCacheError if the worker could not send them."""
        if self._error is not None:
            raise DataCacheError(self._error)
        if self._steps is not None:
            return self._steps
        pads = self.report.state["tail"] == "pad"
        return [
            StepItem(batch.step, batch.num_rows, batch.nbytes, item_of(batch, pads=pads)) for batch in self._batches
        ]

    def pin_memory(self) -> Bundle:
        """A copy in page-locked memory; called by DataLoader's pin_memory thread."""
        if self._error is not None:
            return self
        if self._received is None:
            return Bundle.of_steps(self.report, [step._replace(item=pin_memory(step.item)) for step in self.steps()])
        received, parts = self._received
        pinned = pa.py_buffer(received.memory.pin_memory().numpy())
        return Bundle(self.report, _batches(self.report, parts, read(pinned)))

    def __reduce__(self) -> tuple[Any, ...]:
        # torch pickles in a thread that only prints an error: the main process would wait for this bundle for ever.
        try:
            return _load, (bytes(ForkingPickler.dumps(self._content())),)
        except Exception as error:
            return Bundle.of_error, (self.report, _unsent(error))

    def _content(self) -> tuple[Callable[..., Bundle], tuple[Any, ...]]:
        """A function and arguments with which the receiver creates this bundle."""
        if self._pool is None or self._batches[0].data is not None:
            return Bundle.of_steps, (self.report, self.steps())
        runs = list(_runs(self._batches))
        parts = [StepRange(_range(run), run[0].num_rows) for run in runs]
        sent = self._pool.write([following_rows(run[0], len(run)) for run in runs])
        return Bundle.of_parts, (self.report, parts, sent)


def _load(content: bytes) -> Bundle:
    make, arguments = pickle.loads(content)
    return make(*arguments)


def _unsent(error: Exception) -> str:
    message = f"a worker of the loader could not send a batch: {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        memory = shutil.disk_usage(_SHARED_MEMORY)
        free, total = memory.free >> 20, memory.total >> 20
        message += (
            f". Workers send batches through {_SHARED_MEMORY}, where {free} of {total} MiB are free: enlarge it (in"
            " Kubernetes by an emptyDir of medium Memory mounted there), or use fewer workers or a smaller"
            " prefetch_factor"
        )
    return message


class BundledDataset(IterableDataset[Bundle]):
    """A StreamingDataset in bundles of about bundle_bytes, each with one schema. A batch waits at most 10 ms for the
    rest of its bundle.

    reader: the key under which the main process keeps the workers' segments, see segments.drop_segments.
    """

    def __init__(self, dataset: StreamingDataset, bundle_bytes: int) -> None:
        self._dataset, self._bundle_bytes = dataset, bundle_bytes
        self.reader = os.urandom(8).hex()

    def __iter__(self) -> Iterator[Bundle]:
        stream = WorkerIterator(self._dataset)
        pool = SegmentPool(self.reader, stream.worker, max(1, self._bundle_bytes // 4))
        batches = iter(stream.loader)
        held: list[Batch] = []
        size, begun = 0, 0.0
        while (batch := next(batches, None)) is not None:
            if held and not same_columns(batch, held[0]):
                yield Bundle(_report(stream), held, pool)
                held, size = [], 0
            if not held:
                begun = time.monotonic()
            held.append(batch)
            size += max(batch.nbytes, held_bytes(batch))
            if size >= self._bundle_bytes or time.monotonic() - begun > _SECONDS:
                yield Bundle(_report(stream), held, pool)
                held, size = [], 0
        if held:
            yield Bundle(_report(stream), held, pool)

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch. Frameworks call it as loader.dataset.set_epoch."""
        self._dataset.set_epoch(epoch)


def _report(stream: WorkerIterator) -> WorkerReport:
    loader = stream.loader
    return WorkerReport(stream.share, stream.worker, loader.state_dict(), loader.stats(), loader.policy)


def _batches(report: WorkerReport, parts: list[StepRange], rows: Iterable[pa.RecordBatch]) -> list[Batch]:
    """The batches of a received bundle; each part's batches are views of its record batch."""
    origin, batches = (order_of(report.state), report.share), list[Batch]()
    for part, whole in zip(parts, rows, strict=True):
        block = StepBlock(part.steps, part.rows, whole, report.policy)
        batches += [Batch(origin, block, index, step) for index, step in enumerate(part.steps)]
    return batches


def _runs(batches: list[Batch]) -> Iterator[list[Batch]]:
    """Groups batches that are contiguous in memory."""
    run = batches[:1]
    for batch in batches[1:]:
        if follows(batch, run[-1]):
            run.append(batch)
        else:
            yield run
            run = [batch]
    yield run


def _range(batches: list[Batch]) -> range:
    stride = batches[1].step - batches[0].step if len(batches) > 1 else 1
    return range(batches[0].step, batches[-1].step + 1, stride)
