# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Merge yields the right rows for each step, and marks complete steps, for random nodes, messages, types and shares."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from kubeflow_datacache.fetch.feed import Feed
from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.monitoring.stage_timer import StageTimer
from kubeflow_datacache.order.epoch import Epoch, Share
from kubeflow_datacache.order.split import Placement, Split, TablePlacement, placement
from kubeflow_datacache.rows.block import StepBlock
from kubeflow_datacache.rows.gather import detach_small
from test_arrays import COLUMNS, TYPES

ROWS = 90
TABLE = pa.record_batch({n: pa.array([f(i) for i in range(ROWS)], TYPES.get(n)) for n, f in COLUMNS.items()})
CASES = 150
NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


class Messages:
    """A fake Feed: messages of random lengths with columns of every type."""

    apart = False

    def __init__(self, epoch: Epoch, share: Share, placement: Placement, rng: random.Random, start: int = 0) -> None:
        self.info = SimpleNamespace(placement=placement, schema=TABLE.schema, row_bytes=rng.choice([1.0, 1e4, 1e6]))
        self.marked, self.step, self.reconnects = Counter[int](), 0, 0
        steps = range(share.first_step(start), epoch.steps, share.workers)
        wanted: list[int] = epoch.rows_of(steps, share).tolist()
        numbers = dict(enumerate(placement.numbers(np.arange(epoch.rows)).tolist()))
        self._rest = {
            i: [r for r in wanted if start <= numbers[r] < end] for i, (start, end) in enumerate(placement.bounds)
        }
        self.sent = {i: len(rows) for i, rows in self._rest.items() if rows}
        self._most, self._rng = rng.choice([1, 5, 40]), rng
        self.numbered, self._wanted = rng.random() < 0.5, dict[int, list[int]]()
        self._number = numbers

    @property
    def wants_more(self) -> bool:
        """Whether to be told of another run: at random."""
        return self._rng.random() < 0.5

    def want(self, rows: int, numbers: Mapping[int, Any]) -> None:
        """Notes the numbers of the rows to take."""
        assert self.numbered
        assert rows == sum(map(len, numbers.values()))
        for node, wanted in numbers.items():
            self._wanted.setdefault(node, []).extend(wanted.tolist())

    def schema_of(self, step: int) -> pa.Schema:
        """The schema of all steps."""
        del step
        return self.info.schema

    def take(self, node: int, count: int) -> Iterator[pa.RecordBatch]:
        """Yields the next rows of a node in several parts."""
        while count:
            size = min(count, self._rng.randint(1, self._most))
            if self.numbered:
                asked, self._wanted[node] = self._wanted[node][:size], self._wanted[node][size:]
                assert asked == [self._number[row] for row in self._rest[node][:size]]
            yield TABLE.take(pa.array(self._rest[node][:size], pa.int64()))
            self._rest[node], count = self._rest[node][size:], count - size

    def mark(self, step: int, counts: Mapping[int, int]) -> None:
        """Adds the counts of a mark."""
        self.step = step
        self.marked.update(counts)

    def close(self) -> None:
        """Nothing to close."""


def _placement(rng: random.Random) -> Placement:
    """The placement of ROWS rows on several nodes: of a whole table, or of a split of one that is twice as large."""
    split = rng.choice([None, Split(of=4, start=1, stop=3, seed=5), Split(of=2, start=1, stop=2, shuffle=False)])
    rows = ROWS if split is None else 2 * ROWS
    cuts = sorted(rng.randint(0, rows) for _ in range(rng.choice([0, 1, 2, 12])))
    return placement(tuple(zip([0, *cuts], [*cuts, rows], strict=True)), split, rows)


def _epoch(rng: random.Random) -> Epoch:
    return Epoch(
        rows=ROWS,
        seed=rng.randrange(1000),
        shuffle=rng.random() < 0.7,
        clump=rng.choice([1, 1, 4]),
        global_batch=rng.choice([1, 7, 30, 91]),
        tail=rng.choice(["drop", "pad", "keep"]),
    )


def _share(rng: random.Random) -> Share:
    world, workers = rng.randint(1, 3), rng.randint(1, 2)
    return Share(rank=rng.randrange(world), world=world, worker=rng.randrange(workers), workers=workers)


def test_steps_are_the_orders_whatever_the_nodes(rng: random.Random) -> None:
    for _ in range(CASES):
        epoch, share = _epoch(rng), _share(rng)
        start = rng.choice([0, rng.randint(0, epoch.steps)])  # resume in the middle of a former block
        feed = Messages(epoch, share, _placement(rng), rng, start)
        merge = Merge(epoch, share, lambda *_, feed=feed: cast("Feed", feed), block_bytes=1 << 20, timer=StageTimer())
        steps: list[int] = []
        for block in merge.blocks(start):
            assert feed.step == block.steps[-1] + 1, "the mark lies behind the block that is given out"
            steps += block.steps
            _check(block, epoch, share)
        assert steps == list(range(share.first_step(start), epoch.steps, share.workers))
        assert dict(+feed.marked) == feed.sent


def _check(block: StepBlock, epoch: Epoch, share: Share) -> None:
    for index, step in enumerate(block.steps):
        rows = block.arrow(index)
        rows.validate(full=True)
        assert rows.equals(TABLE.take(pa.array(epoch.rows_of(range(step, step + 1), share))))


def test_a_message_of_whole_steps_is_passed_on_as_it_is() -> None:
    epoch, rng = Epoch(rows=ROWS, shuffle=False, global_batch=10), random.Random(1)
    feed = Messages(epoch, Share(), TablePlacement(((0, ROWS),)), rng)
    parts = [TABLE.slice(0, 40), TABLE.slice(40, 25), TABLE.slice(65, 25)]
    feed.take = lambda node, count: iter(parts)
    merge = Merge(epoch, Share(), lambda *_: cast("Feed", feed), block_bytes=1, timer=StageTimer())
    blocks = list(merge.blocks(0))
    assert [len(block.steps) for block in blocks] == [4, 2, 1, 2]
    for block, part in ((blocks[0], parts[0]), (blocks[3], parts[2])):
        assert _values(block.rows) == _values(part)


def test_small_columns_keep_no_message() -> None:
    sizes = {"a": 400, "label": 1, "id": 8, "page": 4000}  # bytes per row
    whole = pa.record_batch({name: pa.array([b"x" * size] * 100, pa.binary(size)) for name, size in sizes.items()})
    rows = detach_small(whole)
    assert rows.equals(whole)
    own = {name for name in sizes if not _shared(rows.column(name), whole.column(name))}
    assert own == {"label", "id", "a"}, "together less than an eighth"
    assert {n for n in ("a", "id") if _shared(detach_small(whole.select(["a", "id"])).column(n), whole.column(n))} == {
        "a"
    }
    assert detach_small(whole.slice(0, 0)).num_rows == 0


def test_small_columns_of_a_message_that_is_passed_on_are_copied() -> None:
    count = 90
    message = pa.record_batch(
        {"label": pa.array(range(count)), "page": pa.array([b"x" * 4000] * count, pa.binary(4000))}
    )
    feed = Messages(
        epoch := Epoch(rows=count, shuffle=False, global_batch=10),
        Share(),
        TablePlacement(((0, count),)),
        random.Random(1),
    )
    feed.take = lambda node, count: iter([message])
    feed.schema_of = lambda step: message.schema
    merge = Merge(epoch, Share(), lambda *_: cast("Feed", feed), block_bytes=1, timer=StageTimer())
    (block,) = merge.blocks(0)
    assert block.rows.equals(message)
    assert not _shared(block.rows.column("label"), message.column("label"))
    assert _shared(block.rows.column("page"), message.column("page"))


def _shared(one: pa.Array, other: pa.Array) -> bool:
    return one.buffers()[1].address == other.buffers()[1].address


def _values(rows: pa.RecordBatch) -> int:
    return rows.column("page").buffers()[2].address  # a large column, as small ones are copied


def test_tensors_are_the_columns_memory() -> None:
    torch: Any = pytest.importorskip("torch")
    block = StepBlock(range(70), 1, TABLE.select(["int", "even", "text"]).slice(0, 70))
    for index in (0, 69, 3, 64, 63):  # across groups of converted steps, and backwards
        columns, arrays = block.torch(index), block.numpy(index)
        assert list(columns) == ["int", "even", "text"]
        assert torch.equal(columns["int"], torch.tensor([index]))
        assert columns["even"].data_ptr() == arrays["even"].ctypes.data
        assert columns["even"].shape == (1, 2)
        assert columns["text"].equals(TABLE.column("text").slice(index, 1))
        columns["int"] += 0  # must be writable


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.filterwarnings("error")
def test_numbers_are_tensors_of_the_same_memory(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    whole = pa.array(np.arange(11, dtype=name))
    steps = StepBlock(range(3), 3, pa.record_batch({"c": whole[1:10]}))
    for index in (1, 0, 2):
        tensor = steps.torch(index)["c"]
        first = 1 + 3 * index
        assert tensor.dtype == getattr(torch, name)
        assert tensor.tolist() == [first, first + 1, first + 2]
        assert tensor.data_ptr() == whole.buffers()[1].address + first * tensor.element_size(), "copied"
