# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""torch's DataLoader over a cache, with a place in training of its own."""

from __future__ import annotations

import multiprocessing
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader, SequentialSampler

from kubeflow_datacache.loader import ENDED
from kubeflow_datacache.torch.accelerated import accelerated
from kubeflow_datacache.torch.bundle import Bundle, BundledDataset, Report, Step, order_of
from kubeflow_datacache.torch.dataset import StreamingDataset, first_step
from kubeflow_datacache.torch.device import Mover, Moving
from kubeflow_datacache.torch.segments import forget
from kubeflow_datacache.torch.tally import Tally
from kubeflow_datacache.watch.stats import Depth, Stats


class StreamingDataLoader(DataLoader[Any]):
    """A StreamingDataset's batches, read by num_workers processes; 0 reads in this one, in threads.

    A torch DataLoader that also knows how far the training came: state_dict is exact with workers and batches in
    flight, and load_state_dict takes a state of any rank, world size and number of workers. Epochs follow each other
    by themselves: an iteration begins at the next step that was not given out, and where none is left in the epoch,
    with the next epoch's first. One iteration at a time; a new one ends the old one, see Loader.

    Reading in this process is cheapest, as batches need no way between processes: use workers for transforms that hold
    Python's lock. The workers' steps come in bundles of about bundle_bytes, each one piece of shared memory, so that
    small batches cost little more; prefetch_factor counts bundles. What a transform makes of a step travels by itself.

    multiprocessing_context: unless given "forkserver", with torch imported once for all workers, as gRPC does not
    survive a fork; scripts then need the usual if __name__ == "__main__". "fork" works while this process itself has
    not connected to a cache, by reading without workers, len() or state_dict before the first batch; else ForkedError.

    pin_memory, persistent_workers, timeout and worker_init_fn are torch's. collate_fn is called in this process with
    each batch, whole: a TensorBatch, or what the transform made. Costly work belongs into a transform.

    device: where batches are given out, after collate_fn: they are copied there step by step, the next step beside what
    the training does with this one, on CUDA in a stream of its own. pin_memory makes these copies asynchronous; without
    a device, batch.to(device, non_blocking=True) does one in the current stream.

    restart: whether the iteration after one that was broken off begins where that one began, as with torch's
    DataLoader, instead of going on: for validation over the first batches, and for Lightning's overfit_batches.

    Give it to Lightning's Trainer.fit and to Accelerator.prepare as it is; Accelerate then puts batches on its device.
    For Hugging Face's Trainer see kubeflow_datacache.torch.huggingface.
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
    ) -> None:
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
        # Frameworks build loaders of their own from a loader's dataset and options, so its dataset gives batches. The
        # bundles, which only this class can take apart, have a DataLoader of their own.
        super().__init__(dataset, **options)
        bundled = BundledDataset(dataset, bundle_bytes)
        self._bundles: DataLoader[Bundle] = DataLoader(bundled, **options)
        weakref.finalize(self, forget, bundled.reader)
        if restart:  # Lightning then sees that nothing is to be replaced for overfit_batches
            object.__setattr__(self, "sampler", SequentialSampler(dataset))
        self._restart, self._collate = restart, collate_fn or _same
        self._source = dataset
        self._mover = None if device is None else Mover(device)
        self._moving: dict[int, Moving] = {}  # steps that are on their way to the device
        self._prepared = False
        self.end_of_dataloader, self.remainder = (
            False,
            -1,
        )  # for Accelerate: whether the batch given out last is the last
        self._tally = Tally()
        self._report: Report | None = None
        self._held: dict[int, Step] = {}
        self._place: dict[str, Any] = {}  # where the iteration under way began; empty without one
        self._epoch = self._next = 0

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride] - torch names a class of its own
        """The batches from where the loader stands to the epoch's end; of the next epoch where none is left."""
        self._end()
        return accelerated(self, self._iterate()) if self._prepared else self._iterate()

    def __len__(self) -> int:
        """How many steps a whole epoch has: the same for every rank. Asks the head until the first batch has come."""
        return self._source.open().steps if self._report is None else order_of(self._report.state).steps

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._epoch if self._place else self._source.place()["epoch"]

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True: Accelerator.prepare then leaves the loader as it is, whose ranks have rows of their own already."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        self._prepared = prepared  # as it tells everything that it prepared

    def set_epoch(self, epoch: int) -> None:
        """Goes to the begin of an epoch; just after load_state_dict, to the saved step if it is the saved epoch."""
        self._end()
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where training stands: after the batch that was given out last. The same on every rank; ready for JSON."""
        if self._place and self._report is not None:
            return {**self._report.state, "epoch": self._epoch, "next_step": self._next}
        place = self._source.place()
        if self._report is not None and not place["resumed"]:
            return {**self._report.state, "epoch": place["epoch"], "next_step": first_step(place)}
        return self._source.open().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved place, of any rank, world size and number of workers.

        The next iteration raises StateError if the state is not of this dataset.
        """
        self._end()
        self._source.load_state_dict(state)

    def stats(self) -> Stats:
        """Where the time went, and how much is read ahead, over all workers as they said it last."""
        held = Depth(sum(step.rows for step in self._held.values()), sum(step.nbytes for step in self._held.values()))
        return self._tally.stats(self.epoch, self._next, held)

    def _iterate(self) -> Iterator[Any]:
        place = self._place = self._source.place()
        self._epoch, self._next = place["epoch"], first_step(place)
        self._tally.begin()
        self.end_of_dataloader = False
        try:
            bundles: Iterator[Bundle] = iter(self._bundles)
            while self._place is place:
                step = self._held.pop(self._next, None) or self._wait(bundles)
                if step is None:
                    self.end_of_dataloader = True
                    return
                self._next += 1
                self.end_of_dataloader = self._report is not None and self._next == order_of(self._report.state).steps
                self._tally.gave(step.rows, step.nbytes)
                yield self._there(step)
            raise RuntimeError(ENDED)
        finally:
            if self._place is place:
                self._end()

    def _there(self, step: Step) -> Any:
        """What is given out for a step; the next one, if it is here, begins its way to the device beside it."""
        if self._mover is None:
            return self._collate(step.item)
        moving = self._moving.pop(step.step, None) or self._mover.start(self._collate(step.item))
        if (following := self._held.get(self._next)) is not None:
            self._moving[self._next] = self._mover.start(self._collate(following.item))
        return self._mover.finish(moving)

    def _wait(self, bundles: Iterator[Bundle]) -> Step | None:
        """The next step; None at the epoch's end. Workers take turns by steps, but send bundles."""
        begun = time.perf_counter()
        try:
            while self._next not in self._held:
                bundle = next(bundles, None)
                if bundle is None:
                    return None
                self._take(bundle)
            return self._held.pop(self._next)
        finally:
            self._tally.waited(time.perf_counter() - begun)

    def _take(self, bundle: Bundle) -> None:
        report = self._report = bundle.report
        if report.state["epoch"] != self._epoch:
            raise RuntimeError(
                f"a worker reads epoch {report.state['epoch']} in epoch {self._epoch}: set_epoch came while workers"
                " were starting; call it before the iteration"
            )
        self._tally.report(report.worker, report.stats)
        self._held.update((step.step, step) for step in bundle.steps())

    def _end(self) -> None:
        """Ends the iteration under way, if any; the dataset then stands where it came to, unless it was moved."""
        place, self._place = self._place, {}
        if not place:
            return
        self._tally.end()
        self._held.clear()
        self._moving.clear()
        if self._source.place() != place:
            return
        if self.end_of_dataloader:
            self._source.stand(self._epoch + 1)
        elif self._report is not None and not self._restart:
            self._source.stand(self._epoch, {**self._report.state, "epoch": self._epoch, "next_step": self._next})


def _context() -> BaseContext:
    """How workers start: without this process's connections, and without each importing torch."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context


def _same(bundle: Any) -> Any:
    return bundle
