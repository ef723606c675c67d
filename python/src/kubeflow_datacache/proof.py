# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Proof: compares the rows that a job has trained on with those of an epoch."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from kubeflow_datacache.errors import RowsError
from kubeflow_datacache.order.epoch import Epoch, RowIndices, Share
from kubeflow_datacache.order.feistel import GOLD
from kubeflow_datacache.order.mix import Mix
from kubeflow_datacache.state import order_of
from kubeflow_datacache.world import World

_log: Final = logging.getLogger("kubeflow_datacache")
_BLOCK: Final = 1 << 16  # rows hashed at once
_SHOWN: Final = 4  # ranks, and ranges of steps of a rank, that an error names
_WHOLE: Final = Share()
Sums = tuple[int, int, int]  # the number of rows, and two sums of their hashes modulo 2^64


class VerifiedEpoch(NamedTuple):
    """An epoch whose rows were each trained on once: its number, the number of rows, and the first step of the proof,
    which is 0 unless the training was resumed without the proof's state."""

    epoch: int
    rows: int
    first_step: int


class Verifiable(Protocol):
    """What a Proof asks of a loader."""

    @property
    def reading(self) -> World:
        """This rank among those that the current iteration divides the rows among."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The loader's position, with what determines the order of its rows."""
        ...


def verify(loader: Verifiable, *, group: Any = None) -> Proof:
    """A function to call with each batch after it was trained on, which proves that an epoch's rows were each trained
    on exactly once.

        check = verify(loader)  # a Loader, a MixLoader or a StreamingDataLoader
        for batch in loader:
            train(batch)
            check(batch)

    See Proof. group: the torch.distributed process group of the ranks that divide the rows, if that is not the default
    one; or, without torch.distributed and jax.distributed, a function that returns the values of all ranks for this
    rank's, such as allgather of an mpi4py communicator.
    """
    return Proof(loader, group=group)


class Proof:
    """Sums the hashes of the rows that were trained on, over steps and ranks, and compares the sums with those of the
    epoch.

    A call costs about 4 microseconds, and 0.02 for each row of the batch, on one core. The call for an
    epoch's last step returns a VerifiedEpoch, and raises RowsError if rows of the epoch were never trained on, or more
    than once: rows that a framework dropped, read again or divided twice, a resume at another step, ranks that read the
    same rows, an epoch that was left before its end. Rows that tail="drop" leaves out, and padding, do not count. In a
    mixture, rows count as often as the epoch draws them.

    The last step's call, and state_dict, gather from all ranks: each rank makes them. Ranks are those of
    torch.distributed or jax.distributed. state_dict and load_state_dict carry the sums through a checkpoint within an
    epoch, and accept any number of ranks; without them, a resumed epoch is proved from its first step on. Accelerate's
    register_for_checkpointing takes the object. Not for a loader whose resize() changes its ranks within an epoch.
    """

    def __init__(self, loader: Verifiable, *, group: Any = None) -> None:
        self._loader, self._group = loader, group
        self._earlier: _Earlier | None = None
        self._seen: _Seen | None = None

    def __call__(self, batch: Any) -> VerifiedEpoch | None:
        """Counts the rows of a batch that was trained on."""
        epoch, step = getattr(batch, "epoch", None), getattr(batch, "step", None)
        if epoch is None or step is None:
            raise TypeError(
                f"a batch of type {type(batch).__name__} does not tell its step: give the loader's own batch, before a"
                " framework rebuilds it from its columns, and have a transform return columns"
            )
        seen = self._seen
        if seen is None or seen.order.number != epoch:
            seen = self._begin(epoch)
        seen.add(step)
        return self._finish(seen) if step + 1 == seen.order.steps else None

    def state_dict(self) -> dict[str, Any]:
        """The sums of all ranks in the current epoch, as JSON-serializable values. All ranks call it at the same step,
        and get the same."""
        if (seen := self._seen) is None:
            return {} if self._earlier is None else self._earlier._asdict()
        sums = _total([self._sums_before(), *(entry["sums"] for entry in self._gather({"sums": seen.sums()}))])
        return _Earlier(seen.order.number, self._first_step(seen), seen.next_step, sums)._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the sums of a saved state; call it on all ranks."""
        self._earlier, self._seen = _Earlier(**state) if state else None, None

    def _begin(self, epoch: int) -> _Seen:
        """Starts to count an epoch. Raises RowsError if another one was not finished."""
        left = None if self._seen is None else (self._seen.order.number, self._seen.next_step)
        if left is None and self._earlier is not None and self._earlier.epoch != epoch:
            left = self._earlier.epoch, self._earlier.next_step
        if left is not None:
            raise RowsError(
                f"epoch {epoch} begins, and of epoch {left[0]} no step after {left[1] - 1} was trained on: its other"
                " rows are missing"
            )
        order, world = order_of(self._loader.state_dict()).numbered(epoch), self._loader.reading
        self._seen = _Seen(order, Share(rank=world.rank, world=world.size))
        return self._seen

    def _finish(self, seen: _Seen) -> VerifiedEpoch:
        """Compares the sums of all ranks with those of the epoch."""
        first, share = self._first_step(seen), seen.share
        own = {
            "rank": share.rank,
            "world": share.world,
            "sums": seen.sums(),
            "expected": _expected(seen.order, first, share),
            "runs": [[*run] for run in seen.runs],
        }
        entries = self._gather(own)
        earlier = [] if self._earlier is None else [[self._earlier.first_step, self._earlier.next_step]]
        sums = _total([self._sums_before(), *(entry["sums"] for entry in entries)])
        expected = _total([entry["expected"] for entry in entries])
        self._earlier = self._seen = None
        if sums != expected or _ranks(entries) != [(rank, share.world) for rank in range(share.world)]:
            raise RowsError(
                f"epoch {seen.order.number}: {sums[0]} rows were trained on, where {expected[0]} were due from step"
                f" {first} on: {_explained(entries, earlier, range(first, seen.order.steps))}"
            )
        verified = VerifiedEpoch(seen.order.number, sums[0], first)
        _log.info("epoch %d: each of its %d rows from step %d on was trained on once", *verified)
        return verified

    def _first_step(self, seen: _Seen) -> int:
        return seen.runs[0][0] if self._earlier is None else self._earlier.first_step

    def _sums_before(self) -> Sums:
        return _total([(0, 0, 0)] if self._earlier is None else [self._earlier.sums])

    def _gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        return _gathered(value, self._group, self._loader.reading.size)


class _Earlier(NamedTuple):
    """What a state keeps: the steps [first_step, next_step) of an epoch, and the sums of their rows over all ranks."""

    epoch: int
    first_step: int
    next_step: int
    sums: Sequence[int]


class _Seen:
    """The steps of an epoch that this rank has trained on, as runs [begin, end), and the sums of its rows."""

    def __init__(self, order: Epoch, share: Share) -> None:
        self.order, self.share = order, share
        self.runs: list[list[int]] = []
        self._sums: Sums = (0, 0, 0)
        self._hashed = 0  # end of the part of the last run that is in the sums
        self._most = max(1, _BLOCK * share.world // order.global_batch)

    @property
    def next_step(self) -> int:
        """The step after the last one."""
        return self.runs[-1][1] if self.runs else 0

    def add(self, step: int) -> None:
        """Counts a step."""
        if self.runs and step == self.next_step:
            self.runs[-1][1] += 1
        else:
            self.sums()
            self.runs.append([step, step + 1])
            self._hashed = step
        if self.next_step - self._hashed >= self._most:
            self.sums()

    def sums(self) -> Sums:
        """The sums of all rows so far."""
        rows = _rows(self.order, range(self._hashed, self.next_step), self.share)
        self._hashed, self._sums = self.next_step, _total([self._sums, _hashed(rows)])
        return self._sums


def _rows(order: Epoch, steps: range, share: Share) -> RowIndices:
    """The rows of a share's steps without padding."""
    rows = order.rows_of(steps, share)
    if steps and order.tail == "pad" and steps[-1] + 1 == order.steps:
        valid = order.valid(order.span(steps[-1], share))
        rows = rows[: len(rows) - int(np.count_nonzero(~valid))]
    return rows


def _hashed(rows: RowIndices) -> Sums:
    """The sums of rows: of their hashes, and of the squares of these."""
    x = rows.astype(np.uint64)
    x += np.uint64(GOLD)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    return len(x), int(x.sum(dtype=np.uint64)), int((x * x).sum(dtype=np.uint64))


def _total(sums: Sequence[Sequence[int]]) -> Sums:
    rows, one, two = (sum(column) for column in zip(*sums, strict=True))
    return rows, one % 2**64, two % 2**64


def _expected(order: Epoch, first: int, share: Share) -> Sums:
    """This rank's part of the sums of an epoch's steps from `first` on. The parts of all ranks make up the epoch.

    Of a table, they are the sums of all its rows, whatever their order, less those of the rows before `first` and of
    the rows that the epoch leaves out. Of a mixture, those of the rows that the epoch draws.
    """
    if isinstance(order, Mix):
        return _total([(0, 0, 0), *_sums_of_steps(order, range(first, order.steps), share)])
    begin, end = (order.rows * at // share.world for at in (share.rank, share.rank + 1))
    blocks = (np.arange(at, min(at + _BLOCK, end)) for at in range(begin, end, _BLOCK))
    less = [*_sums_of_steps(order, range(first), share)]
    if order.tail == "drop" and share.rank == 0:
        dropped = np.arange(order.steps * order.global_batch, order.rows, dtype=np.uint64)
        less.append(_hashed(order.rows_at(dropped).view(np.int64)))
    return _total([(0, 0, 0), *map(_hashed, blocks), *((-rows, -one, -two) for rows, one, two in less)])


def _sums_of_steps(order: Epoch, steps: range, share: Share) -> Iterator[Sums]:
    """The sums of this rank's part of whole steps."""
    begin, end = (len(steps) * at // share.world for at in (share.rank, share.rank + 1))
    most = max(1, _BLOCK // order.global_batch)
    for at in range(begin, end, most):
        yield _hashed(_rows(order, steps[at : min(at + most, end)], _WHOLE))


def _ranks(entries: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((entry["rank"], entry["world"]) for entry in entries)


def _explained(entries: list[dict[str, Any]], earlier: list[list[int]], due: range) -> str:
    """What differs: the ranks that the loaders read as, or the steps that ranks missed or repeated."""
    read = _ranks(entries)
    if read != [(rank, len(read)) for rank in range(len(read))]:
        names = ", ".join(f"rank {rank} of {world}" for rank, world in read[:_SHOWN])
        return (
            f"{len(read)} processes train, and their loaders read as {names}: each must read as another rank of"
            f" {len(read)}. If some read the same rows on purpose, name the others' process group, verify(loader,"
            " group=...)"
        )
    wrong = [
        f"rank {entry['rank']}: {text}" for entry in entries if (text := _wrong_steps([*earlier, *entry["runs"]], due))
    ]
    more = f"; and {len(wrong) - _SHOWN} more ranks" if len(wrong) > _SHOWN else ""
    return "; ".join(wrong[:_SHOWN]) + more or "every rank had all steps once, but the rows are not those of the epoch"


def _wrong_steps(runs: list[list[int]], due: range) -> str:
    """The steps of `due` that the runs do not have once, as text."""
    change = np.zeros(max([due.stop, *(end for _, end in runs)]) + 1, np.int64)
    for begin, end in runs:
        change[begin] += 1
        change[end] -= 1
    times = np.cumsum(change)[:-1]
    times[: due.start] = np.maximum(times[: due.start], 1)
    cuts = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), len(times)]
    wrong = [(begin, end - 1, int(times[begin])) for begin, end in itertools.pairwise(cuts) if begin < end]
    shown = [
        f"{f'step {begin}' if begin == last else f'steps {begin} to {last}'} {'never' if not n else f'{n} times'}"
        for begin, last, n in wrong
        if n != 1
    ]
    return ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")


def _gathered(value: dict[str, Any], group: Any, size: int) -> list[dict[str, Any]]:
    """The values of all ranks."""
    if callable(group):
        gather: Any = group
        return gather(value)
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        values: list[Any] = [None] * distributed.get_world_size(group)
        distributed.all_gather_object(values, value, group=group)
        return values
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return _gathered_by_jax(value)
    if size > 1:
        raise RuntimeError(
            f"the loader reads as one of {size} ranks, and neither torch.distributed nor jax.distributed is initialized"
            " to add up what they read: initialize it, or give verify(loader, group=) a function that gathers"
        )
    return [value]


def _gathered_by_jax(value: dict[str, Any]) -> list[dict[str, Any]]:
    from jax.experimental.multihost_utils import process_allgather  # pyright: ignore[reportMissingImports]

    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    longest = int(process_allgather(np.array([len(text)], np.int32)).max())
    texts = np.asarray(process_allgather(np.pad(text, (0, longest - len(text)), constant_values=ord(" "))))
    return [json.loads(each.tobytes()) for each in texts.reshape(-1, longest)]
