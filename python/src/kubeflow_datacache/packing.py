# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loaders of packs: rows with lists of tokens, packed and balanced, the same for any number of ranks."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypedDict, Unpack, cast

import numpy as np
import pyarrow.types as kind

from kubeflow_datacache.arguments import check_allow, check_state, column_names
from kubeflow_datacache.client import Client, Source
from kubeflow_datacache.errors import ColumnError, DataCacheError, StateError
from kubeflow_datacache.fetch.head_plan import HeadPlan, NotPlannedError
from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.host.protocol import Start
from kubeflow_datacache.lengths import LengthsLoader
from kubeflow_datacache.loader import HostMade, Loader
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.options import Host, LoaderOptions
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.pack import VERSION, Counts, Int64Array, Pack, PackedStep, Packer
from kubeflow_datacache.order.packed import RankStep, RankSteps
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.rows.batch import Batch
from kubeflow_datacache.rows.packed import PackedBatch
from kubeflow_datacache.state import another_window
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.world import World, check_resize

_CHECKED: Final = 1 << 18  # rows whose lengths are checked at once
_HEAD_TOKENS, _HEAD_PACKS = 1 << 20, 1 << 16  # the most that a head plans: tokens of a pack, packs of a window
_ROWS: Final = ("global_batch_size", "tail", "next_step")  # fields of a loader's state that have no meaning for packs


class PackOptions(TypedDict, total=False):
    """Parameters of a loader with pack=, as in LoaderOptions."""

    seed: int | None
    shuffle: bool
    clump: int
    window: int
    filter: str | None
    split: Split | None
    columns: Sequence[str] | None
    prefetch_bytes: int
    host: Host
    world: World | None


class PackLoader(LengthsLoader):
    """Iterates over this rank's packs of an epoch. Create it with DataCache.loader(pack=...).

    Each batch is a step, a PackedBatch. The packs of a step are the same for any number of ranks and after any restart.
    The number of steps is known only when all lengths were read: see count_steps. Everything else is as in Loader.
    """

    def __init__(self, cache: Source, pack: Pack, **options: Unpack[PackOptions]) -> None:
        _check_pack(pack)
        for name in options:
            if name in LoaderOptions.__annotations__ and name not in PackOptions.__annotations__:
                raise ValueError(f"{name} with pack: leave it out; packs have {', '.join(PackOptions.__annotations__)}")
        needed = [pack.column] if pack.labels is None else [pack.column, pack.labels]
        for name in needed:
            if (read := column_names(options.get("columns"))) is not None and name not in read:
                raise ColumnError(f"pack: {name!r} is not among columns = {read}: add it there")
        self._pack = pack
        self._counts, self._checked = Counts(), False
        self._planning = Stop()  # ends the calls to the head of the current iteration
        super().__init__(cache, global_batch_size=1, tail="keep", **options)
        for name, table in itertools.product(needed, self._tables):
            table.check_columns([name])
            stored = table.described.schema.field(name).type
            if not (kind.is_list(stored) or kind.is_large_list(stored)) or not kind.is_integer(stored.value_type):
                raise ColumnError(f"pack: column {name!r} is {stored}: want a column of lists of integers")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._cache.endpoint!r}, {self._pack!r}; epoch {self.epoch}, step {self._step})"

    def _repr_html_(self) -> str:
        shown = [("rows", f"{self._order.rows:,}"), ("pack", repr(self._pack)), ("seed", str(self._order.seed))]
        return html_table(type(self).__name__, [*shown, ("position", f"epoch {self.epoch}, step {self._step}")])

    def __len__(self) -> int:
        """Raises TypeError: see count_steps."""
        return self._uncounted()

    @property
    def steps(self) -> int:
        """Raises TypeError: see count_steps."""
        return self._uncounted()

    @property
    def counts(self) -> Counts:
        """What became of the rows of all windows that this loader has begun: how many had no tokens, and how many were
        too long and dropped, truncated or split."""
        return self._counts

    def count_steps(self) -> int:
        """The number of steps of the current epoch, for schedules of learning rates. Reads all lengths and packs
        them: about 5 s for a million rows."""
        if self._head is not None:
            with contextlib.suppress(NotPlannedError):
                return self._head.count()
        merge = self._read_lengths(self._pack.column)
        try:
            return sum(1 for _ in self._steps_of(merge, 0))
        finally:
            merge.stop()

    def resize(self, world: World, step: int | None = None) -> None:
        """Makes this process another rank of another number of ranks, from the next step on. See Loader.resize."""
        check_resize(world, None, 1)
        if step is not None:
            raise ValueError(
                f"step = {step}: the steps of packs are not numbered ahead: give a state to load_state_dict"
            )
        self._end()
        self._world, self._resumed = world, True

    def state_dict(self) -> dict[str, Any]:
        """The current position as JSON-serializable values, the same on every rank. A step whose packs are not all
        trained yet counts as returned: save after it."""
        own, pack = super().state_dict(), self._pack
        law = {"law": VERSION, "column": pack.column, "tokens": pack.tokens, "packs": pack.packs, "window": pack.window}
        law |= {"multiple": pack.multiple, "quadratic": pack.quadratic, "long": pack.long}
        position = {"position": self._place[0], "step": self._place[1], "steps": self._step}
        return {name: value for name, value in own.items() if name not in _ROWS} | {"pack": law | position}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Sequence[str] = ()) -> None:
        """Moves to a saved position. The state may come from any rank and any world size. Raises StateError if it does
        not fit.

        allow: "pack" to go on with other tokens, packs, window, multiple, quadratic or long of Pack, which a state
        allows that was saved where a window of packs begins: with the default window and at least 128 packs, any one.
        "window" as in Loader.
        """
        check_state(state)
        check_allow(allow, "pack", "window")
        saved = state.get("pack")
        if not isinstance(saved, Mapping):
            raise StateError("state: pack is missing: it was saved by a loader without pack=; make the loader as then")
        position, index, steps = (self._saved(saved, name) for name in ("position", "step", "steps"))
        for name, value in self.state_dict()["pack"].items():
            if name not in ("position", "step", "steps") and saved.get(name) != value:
                differs = f"state: pack.{name} = {saved.get(name)!r}, but this loader has {value!r}"
                _check_change(name, differs, index=index, allowed="pack" in allow)
        base = super().state_dict()
        rows = {name: base[name] for name in _ROWS} | {"next_step": position}
        state = another_window(state, self._order.window, allow, position in (0, self._order.rows))
        own_fields = {name: value for name, value in state.items() if name != "pack"}
        checked = self._state().checked_position({**own_fields, **rows}, steps=self._order.rows)
        self._end()
        self._move(checked.epoch, steps, (position, index))
        self._checked = True
        self._complete, self._resumed = 0 < self._order.rows == position, True

    def seek(self, state: Mapping[str, Any]) -> None:
        """As load_state_dict."""
        self.load_state_dict(state)

    @property
    def _length(self) -> str:
        """The column with the lengths of the rows."""
        return f"length({self._pack.column})"

    def _saved(self, saved: Mapping[str, Any], name: str) -> int:
        value = saved.get(name)
        if type(value) is not int or value < 0:
            raise StateError(f"state: pack.{name} = {value!r}: want a whole number of at least 0")
        return value

    def _uncounted(self) -> NoReturn:
        raise TypeError("the number of steps of packs depends on the lengths of all rows: call count_steps()")

    def _end(self) -> None:
        if self._process == os.getpid():  # otherwise the calls are the parent's
            self._planning.set()
        super()._end()

    def _passed(self, batch: Batch) -> None:
        assert isinstance(batch, PackedBatch)
        self._step, self._place = batch.step + 1, batch.planned.following
        self._complete = self._place[0] >= self._order.rows
        self._counts = self._counts.plus(batch.planned.counts)

    @property
    def _head(self) -> HeadPlan | None:
        """The plan of the head, if one head has all rows, and plans such packs."""
        order, pack = self._order, self._pack
        if order.window or pack.tokens > _HEAD_TOKENS or pack.window_packs > _HEAD_PACKS:
            return None
        own = {"seed": order.seed, "epoch": order.number, "shuffle": order.shuffle, "clump": order.clump}
        law = {"column": pack.column, "tokens": pack.tokens, "packs": pack.packs, "window": pack.window}
        law |= {"multiple": pack.multiple, "quadratic": pack.quadratic, "long": pack.long}
        return HeadPlan(cast("Client", self._cache), {**own, **law})

    @property
    def _tables(self) -> Sequence[Client]:
        """The caches, or selections, whose rows are packed."""
        return [cast("Client", self._cache)]

    def _steps_of(self, merge: Merge, position: int) -> Iterator[PackedStep]:
        """The steps from the window on that begins at a position; merge reads the lengths."""

        def lengths() -> Iterator[Int64Array]:
            for block in merge.blocks(position):
                yield block.rows.column(0).to_numpy()
            raise DataCacheError("the loader was closed while it read")  # a packer asks for no rows after the last one

        order = self._order
        packer = Packer(self._pack, rows=order.rows, seed=order.seed, epoch=order.number, refused=self._refuse)
        return packer.steps(position, lengths())

    def _refuse(self, position: int, length: int, before: str = "") -> NoReturn:
        pack = self._pack
        limit, fix = f"tokens = {pack.tokens}", 'give Pack a long="split", "truncate" or "drop", more tokens'
        if pack.long == "split":
            limit = f"the {pack.window_packs} packs of a window have, {pack.longest}"
            fix = 'give Pack a larger window or more tokens, long="truncate" or "drop"'
        if not before:
            row = int(self._order.locate(self._order.rows_at(np.array([position], np.uint64)).view(np.int64))[1][0])
            before = f"row {row}"
        raise ColumnError(
            f"column {pack.column!r}: {before} has {length} tokens, more than {limit}: {fix}, or leave the row out with"
            " filter="
        )

    def _check_long(self, world: World) -> None:
        """Refuses rows that are too long before the first step. Each rank looks at its part of the rows."""
        if self._checked or (longest := self._pack.longest) is None:
            return
        if (head := self._head) is not None:
            with contextlib.suppress(NotPlannedError):
                head.check()
                self._checked = True
                return
        for cache in self._tables:
            options: Any = {"columns": [self._length], "shuffle": False, "tail": "keep", "world": world}
            with contextlib.closing(Loader(cache, global_batch_size=_CHECKED * world.size, **options)) as reader:
                for batch in reader:
                    lengths = batch.numpy()[self._length]
                    if (over := np.flatnonzero(lengths > longest)).size:
                        more = f"{len(over)} of {len(lengths)} rows are too long, of which row"
                        self._refuse(0, int(lengths[over[0]]), f"{more} {batch.indices[over[0]]}")
        self._checked = True

    def _rank_steps(self, share: Share) -> RankSteps[RankStep]:
        lengths = self._lengths = self._read_lengths(self._pack.column)
        stop = self._planning = Stop()
        begin = self._place

        def plan(_: int, before: RankStep | None) -> Iterator[RankStep]:
            if before is None:
                self._check_long(World(share.rank, share.world))
            position, index = begin if before is None else before.following
            if (head := self._head) is not None:
                with contextlib.suppress(NotPlannedError):
                    for own in head.steps(position, index, share.rank, share.world, stop):
                        yield own
                        position, index = own.following
                    return
            for step in itertools.islice(self._steps_of(lengths, position), index, None):
                yield RankStep.of(step, self._order, share)

        return RankSteps(plan, self._step)

    def merge_from(self, start: Start, *, ahead: int, block: int, parts: int) -> HostMade:
        """See Loader.merge_from."""
        self._checked = start != Start(0, 0, 0, 0)
        return super().merge_from(start, ahead=ahead, block=block, parts=parts)

    def _reader_options(self) -> dict[str, Any]:
        own = super()._reader_options()
        return {name: own[name] for name in own if name in PackOptions.__annotations__} | {"pack": self._pack}

    def _batch(self, origin: tuple[Epoch, Share], own: RankStep, *place: Any) -> PackedBatch:
        return PackedBatch(origin, self._pack, own, *place)


def _check_pack(pack: Any) -> None:
    if not isinstance(pack, Pack):
        raise TypeError(f'pack = {pack!r}: want Pack("input_ids", tokens=8192, packs=512), or None')


def _check_change(name: str, differs: str, *, index: int, allowed: bool) -> None:
    """Raises StateError unless packs may change in this way, after `index` steps of a window."""
    if name in ("law", "column"):
        raise StateError(f"{differs}: make the loader with the saved one")
    if not allowed:
        raise StateError(f'{differs}: make the loader with the saved one, or load the state with allow=["pack"]')
    if index:
        raise StateError(
            f"{differs}, and the state is within a window, after {index} of its steps: packs change between windows"
        )
