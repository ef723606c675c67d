# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""StreamingDataLoader: a torch DataLoader of a cache's batches with an exact, resumable position."""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Never

import torch
from torch.utils.data import DataLoader, SequentialSampler

from kubeflow_datacache.loader import ENDED, Loader
from kubeflow_datacache.monitoring.stats import Depth, Stats
from kubeflow_datacache.options import others_hint
from kubeflow_datacache.state import order_of
from kubeflow_datacache.torch.accelerate import accelerated
from kubeflow_datacache.torch.batch import cast_item
from kubeflow_datacache.torch.bundle import Bundle, BundledDataset, StepItem, WorkerReport
from kubeflow_datacache.torch.dataset import StreamingDataset, first_step
from kubeflow_datacache.torch.device import DeviceCopier, PendingCopy
from kubeflow_datacache.torch.segments import drop_segments
from kubeflow_datacache.torch.worker_stats import WorkerStats
from kubeflow_datacache.world import World, check_resize


class StreamingDataLoader(DataLoader[Any]):
    """A StreamingDataset's batches, read by num_workers processes; 0 reads in threads of this process.

    A torch DataLoader that also knows the training's position: state_dict is exact with workers and batches in flight,
    and load_state_dict accepts a state from any rank, world size and number of workers. Epochs follow each other: an
    iteration begins at the first step that has not been returned, or with the next epoch if none is left. A loader has
    one iteration at a time; a new one ends the old one (see Loader).

    Without workers, batches need no transfer between processes, which is cheapest: use workers for transforms that hold
    the GIL. Workers send bundles of steps of about bundle_bytes, each in one block of shared memory, so that small
    batches cost little more than large ones; prefetch_factor counts bundles. The result of a transform is sent step by
    step.

    multiprocessing_context: by default "forkserver" with torch imported once for all workers, as gRPC does not survive
    a fork; scripts then need the usual if __name__ == "__main__". "fork" works only if this process has not connected
    to a cache before, by reading without workers, len(), or state_dict before the first batch; otherwise workers raise
    ForkedError.

    pin_memory, persistent_workers, timeout and worker_init_fn are torch's. collate_fn is called in this process with
    each whole batch: a TensorBatch, or the transform's result. Put expensive work into a transform instead.

    device: returns batches on this device. Batches are copied there after collate_fn, one step ahead of the training
    loop, on CUDA in a stream of its own. pin_memory makes the copies asynchronous. Without a device, use
    batch.to(device, non_blocking=True), which copies in the current stream. The dataset's option cast applies on the
    device, or before a collate_fn if there is one; without a device, columns that were cast are not page-locked.

    restart: whether the iteration after an unfinished one starts at the same position again, as with torch's
    DataLoader, instead of continuing. For validation on the first batches, and for Lightning's overfit_batches.

    May be passed directly to Lightning's Trainer.fit and to Accelerator.prepare; Accelerate then moves batches to its
    device. For Hugging Face's Trainer see kubeflow_datacache.torch.huggingface.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        *,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        bundle_bytes: int = 1 << 20,
        restart: bool = False,
        device: torch.device | str | None = None,
        **others: Never,
    ) -> None:
        for name in others:
            raise TypeError(f"{name} is no parameter of a StreamingDataLoader{others_hint(name)}")
        if not isinstance(dataset, StreamingDataset):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"dataset = {dataset!r}: want a StreamingDataset")
        if num_workers > 0 and multiprocessing_context is None:
            multiprocessing_context = _context()
        options: dict[str, Any] = {
            "batch_size": None,
            "num_workers": num_workers,
            "collate_fn": _same,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
        }
        # Frameworks create other loaders from a loader's dataset and options, so the public dataset must return
        # batches. The bundles, which only this class can unpack, come from a second DataLoader.
        super().__init__(dataset, **options)
        bundled = BundledDataset(dataset, bundle_bytes)
        self._bundles: DataLoader[Bundle] = DataLoader(bundled, **options)
        weakref.finalize(self, drop_segments, bundled.reader)
        if restart:  # tells Lightning that it need not replace the sampler for overfit_batches
            object.__setattr__(self, "sampler", SequentialSampler(dataset))
        self._restart, self._collate = restart, collate_fn or _same
        self._casts_last = device is not None and collate_fn is None
        self._source = dataset
        self._copier = None if device is None else DeviceCopier(device)
        self._pending: dict[int, PendingCopy] = {}  # steps that are being copied to the device
        self._prepared = False
        # For Accelerate: save_state and load_state use state_dict; whether the last returned batch is the last of the
        # epoch; and how many of its rows over all ranks are not padding, -1 for all.
        self.use_stateful_dataloader = True
        self.end_of_dataloader, self.remainder = False, -1
        self._worker_stats = WorkerStats()
        self._report: WorkerReport | None = None
        self._received: dict[int, StepItem] = {}
        self._position: dict[str, Any] = {}  # where the current iteration began; empty without one
        self._epoch = self._next = 0

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch names a class of its own
        """The remaining batches of the current epoch, or all batches of the next epoch if none remain."""
        self._end()
        return accelerated(self, self._iterate()) if self._prepared else self._iterate()

    def __len__(self) -> int:
        """The number of steps in an epoch; the same for every rank. Asks the head if no batch has been received yet."""
        return self._open().steps if self._report is None else order_of(self._report.state).steps

    @property
    def reading(self) -> World:
        """The rank and the number of ranks of the current iteration."""
        share = None if self._report is None else self._report.share
        return self._source.world if share is None else World(share.rank, share.world)

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._epoch if self._position else self._source.position()["epoch"]

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that Accelerator.prepare does not wrap the loader: its ranks read different rows already."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared  # Accelerate sets this on everything that it prepares

    def set_epoch(self, epoch: int) -> None:
        """Moves to the start of an epoch; if the epoch is that of a state just loaded, to the saved step instead."""
        self._end()
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the last returned batch, as JSON-serializable values. The same on every rank."""
        if self._position and self._report is not None:
            return {**self._report.state, "epoch": self._epoch, "next_step": self._next}
        position = self._source.position()
        if self._report is not None and not position["resumed"]:
            return {**self._report.state, "epoch": position["epoch"], "next_step": first_step(position)}
        return self._open().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a saved position. The state may come from any rank, world size and number of workers.

        The next iteration raises StateError if the state does not fit the dataset.
        """
        self._end()
        self._source.load_state_dict(state)

    def resize(self, world: World, step: int | None = None) -> None:
        """Makes this process another rank of another number of ranks, from the next batch on; see Loader.resize.

        The next iteration's workers start anew, or with persistent_workers only their streams.
        """
        epoch, at = check_resize(world, step, len(self)) or (None, None)
        here = self.state_dict()
        there = here if epoch is None else {**here, "epoch": epoch, "next_step": at}
        reading = None if self._report is None else self._report.share
        if self._position and there == here and reading and (reading.rank, reading.world) == (world.rank, world.size):
            return
        self._end()
        self._source.resize(world, there)

    def stats(self) -> Stats:
        """Statistics over all workers, as of their last reports."""
        steps = list(self._received.values())  # another thread may read the statistics
        held = Depth(sum(step.rows for step in steps), sum(step.nbytes for step in steps))
        return self._worker_stats.stats(self.epoch, self._next, held)

    def _open(self) -> Loader:
        return self._source.open(0, 1, self._source.position())

    def _iterate(self) -> Iterator[Any]:
        position = self._position = self._source.position()
        self._epoch, self._next = position["epoch"], first_step(position)
        self._worker_stats.begin()
        self.end_of_dataloader = False
        try:
            bundles: Iterator[Bundle] = iter(self._bundles)
            while self._position is position:
                step = self._received.pop(self._next, None) or self._wait(bundles)
                if step is None:
                    self.end_of_dataloader = True
                    return
                self._next += 1
                if self._report is not None:
                    order = order_of(self._report.state)
                    self.end_of_dataloader = self._next == order.steps
                    padded = self.end_of_dataloader and order.tail == "pad"
                    self.remainder = (order.rows % order.global_batch or -1) if padded else -1
                self._worker_stats.delivered(step.rows, step.nbytes)
                yield self._deliver(step)
            raise RuntimeError(ENDED)
        finally:
            if self._position is position:
                self._end()

    def _deliver(self, step: StepItem) -> Any:
        """Returns a step's item. If there is a device, first starts to copy the next received step there."""
        if self._copier is None:
            return self._collated(step)
        pending = self._pending.pop(step.step, None) or self._copier.start(self._collated(step))
        if (following := self._received.get(self._next)) is not None:
            self._pending[self._next] = self._copier.start(self._collated(following))
        item = self._copier.finish(pending)
        return cast_item(item, self._source.casts) if self._casts_last else item

    def _collated(self, step: StepItem) -> Any:
        return self._collate(step.item if self._casts_last else cast_item(step.item, self._source.casts))

    def _wait(self, bundles: Iterator[Bundle]) -> StepItem | None:
        """Waits for the next step; None at the epoch's end. Steps come from the workers in turn, but in bundles."""
        begun = time.perf_counter()
        try:
            while self._next not in self._received:
                bundle = next(bundles, None)
                if bundle is None:
                    return None
                self._take(bundle)
            return self._received.pop(self._next)
        finally:
            self._worker_stats.waited(time.perf_counter() - begun)

    def _take(self, bundle: Bundle) -> None:
        report = self._report = bundle.report
        if report.state["epoch"] != self._epoch:
            raise RuntimeError(
                f"a worker reads epoch {report.state['epoch']} in epoch {self._epoch}: set_epoch came while workers"
                " were starting; call it before the iteration"
            )
        self._worker_stats.report(report.worker, report.stats)
        self._received.update((step.step, step) for step in bundle.steps())

    def _end(self) -> None:
        """Ends the current iteration, if any, and moves the dataset to its position, unless set_epoch or
        load_state_dict did."""
        position, self._position = self._position, {}
        if not position:
            return
        self._worker_stats.end()
        self._received.clear()
        self._pending.clear()
        if self._source.position() != position:
            return
        if self.end_of_dataloader:
            self._source.seek(self._epoch + 1)
        elif self._report is not None and not self._restart:
            self._source.seek(self._epoch, {**self._report.state, "epoch": self._epoch, "next_step": self._next})


def _context() -> BaseContext:
    """The start method for workers: they inherit no connections, and torch is imported only once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


def _same(bundle: Any) -> Any:
    return bundle
