# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Selections: rows by filter and split, in loaders, tables and mixtures."""

from __future__ import annotations

import itertools
import operator
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from order import Epoch as Oracle
from peer import Peer, Selected, rows_of
from peer import Table as Served
from torch.utils.data import DataLoader

from kubeflow_datacache import DataCache, Selection, Split, StateError, Table, World, mix
from kubeflow_datacache.torch import StreamingDataset

EVEN = "id % 2 = 0"
TRAIN = Split(of=10, start=0, stop=8, seed=3)
SPLITS = [None, TRAIN, replace(TRAIN, shuffle=False), replace(TRAIN, start=8, stop=8)]


def rows_selected(filter: str | None, split: Split | None) -> list[int]:
    """The rows of a table of 100 that a selection leaves, by the peer's arithmetic."""
    fields = {"filter": filter, "split": None if split is None else split.request()}
    return list(Selected.of({k: v for k, v in fields.items() if v is not None}, Served(100, [])).rows)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("condition", [None, EVEN, "id < 0"])
def test_tables_loaders_and_heads_of_a_selection(
    cache: DataCache, rng: random.Random, condition: str | None, split: Split | None
) -> None:
    want = rows_selected(condition, split)
    chosen = cache.select(filter=condition, split=split)
    assert (len(chosen), chosen.schema) == (len(want), cache.schema)
    assert chosen.head(3) == rows_of(want[:3])
    asked = [rng.randrange(len(want)) for _ in range(30)] if want else []
    assert chosen.table().__getitems__(asked) == rows_of([want[i] for i in asked])
    for shuffle in (True, False):
        loader = chosen.loader(global_batch_size=7, seed=9, shuffle=shuffle, tail="keep", world=World(0, 1))
        order = Oracle(rows=len(want), seed=9, shuffle=shuffle, global_batch=7, tail="keep").share_rows()
        assert [id for batch in loader for id in batch.numpy()["id"].tolist()] == [want[row] for row in order]
    assert len(cache) == 100, "the cache itself still has all rows"


def test_the_parts_of_a_split_are_disjoint_and_together_everything(cache: DataCache) -> None:
    cuts = [0, 1, 5, 5, 9]
    parts = [Split(of=9, start=a, stop=b, seed=1) for a, b in itertools.pairwise(cuts)]
    got = [cache.select(filter=EVEN, split=part).head(100).column("id").to_pylist() for part in parts]
    assert [len(ids) for ids in got] == [5, 22, 0, 23]
    assert sorted(itertools.chain(*got)) == list(range(0, 100, 2))
    assert got[1] != sorted(got[1])


def test_a_loader_of_a_cache_selects(cache: DataCache) -> None:
    loader = cache.loader(global_batch_size=10, filter=EVEN, split=TRAIN, world=World(0, 1))
    assert (loader.steps, loader.dataset.rows, loader.dataset.row_filter) == (4, 40, EVEN)
    state = loader.state_dict()
    cases: list[tuple[dict[str, Any], str]] = [({"split": None}, "split"), ({"filter": "id % 2 = 1"}, "row_filter")]
    for other, field in cases:
        options: Any = {"filter": EVEN, "split": TRAIN, **other}
        with pytest.raises(
            StateError, match=f"state: {field} = .*Select those rows, with {field.replace('row_', '')}="
        ):
            cache.loader(global_batch_size=10, **options).load_state_dict(state)
    dataset = StreamingDataset(cache, global_batch_size=10, filter=EVEN, split=TRAIN)
    ids = [id for batch in DataLoader(dataset, batch_size=None) for id in batch["id"].tolist()]
    assert Counter(ids) == Counter(rows_selected(EVEN, TRAIN))


def test_a_selection_of_a_selection(cache: DataCache) -> None:
    inner = cache.select(filter=EVEN).select(filter="id >= 90")
    assert inner.head(9).column("id").to_pylist() == [90, 92, 94, 96, 98]
    assert inner.select(split=replace(TRAIN, shuffle=False)).head(9).column("id").to_pylist() == [90, 92, 94, 96]
    with pytest.raises(ValueError, match="has a split already: filter first, and split once"):
        cache.select(split=TRAIN).select(filter=EVEN)
    assert pickle.loads(pickle.dumps(inner)).head(1) == rows_of([90])


def test_what_is_no_selection(cache: DataCache) -> None:
    refused: list[tuple[type[Exception], Callable[[], object], str]] = [
        (TypeError, lambda: cache.select(filter=3), "filter = 3: want a condition"),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: cache.select(filter=" "), "filter = ' ': want a condition"),
        (TypeError, lambda: cache.select(split=0.9), "split = 0.9: want Split"),  # pyright: ignore[reportArgumentType]
        (ValueError, lambda: Split(of=10, start=5, stop=11), "stop = 11: want 0 <= start <= stop <= of = 10"),
        (ValueError, lambda: Split(of=0, start=0, stop=0), "of = 0: want at least 1 and less than 2^62"),
        (ValueError, lambda: Split(of=2, start=0, stop=1, seed=-1), "seed = -1: want at least 0 and less than 2^64"),
        (ValueError, lambda: mix({"a": (cache, 1)}, global_batch_size=4, filter=EVEN), "select the rows of each part"),
    ]
    for kind, call, message in refused:
        with pytest.raises(kind, match=re.escape(message)):
            call()


def test_a_mixture_of_selections(cache: DataCache, peer: Peer) -> None:
    parts: dict[str, Any] = {
        "even": (cache.select(filter=EVEN, split=TRAIN), 3),
        "odd": (cache.select(filter="id % 2 = 1"), 1),
    }
    wanted = [rows_selected(EVEN, TRAIN), rows_selected("id % 2 = 1", None)]
    loader = mix(parts, global_batch_size=8, exact="step", until=40, seed=2, world=World(0, 1))
    seen = Counter[int]()
    for batch in loader:
        assert np.bincount(batch.source).tolist() == [6, 2]
        ids = batch.numpy()["id"].tolist()
        assert ids == [wanted[part][row] for part, row in zip(batch.source, batch.indices, strict=True)]
        seen.update(ids)
    assert sum(seen.values()) == 40
    assert seen == Counter(seen.keys()), "no row twice"
    peer.restart([(0, 1), (1, 100)])
    assert sum(batch.num_rows for batch in loader) == 40, "the next epoch, on other nodes"


def test_a_table_in_the_order_that_was_asked_for(cache: DataCache, rng: random.Random) -> None:
    want = rows_selected(EVEN, TRAIN)
    whole = cache.table()
    assert len(whole) == 100
    part = whole.filter(EVEN).split(TRAIN)
    assert part.__getitems__(slice(None)) == rows_of(want)
    shuffled = part.shuffle(7, clump=3, window=4, epoch=1).select(["name"])
    order = Oracle(rows=len(want), seed=7, epoch=1, clump=3, window=4, global_batch=1).share_rows()
    names = [f"row {want[row]}" for row in order]
    assert shuffled[:].column("name").to_pylist() == names
    assert shuffled[-1] == {"name": names[-1]}
    chosen = [rng.randrange(len(want)) for _ in range(9)]
    explicit: Any = shuffled.order(chosen).order(slice(None, None, -1))
    assert explicit[:].column("name").to_pylist() == [names[i] for i in reversed(chosen)]
    twice = explicit.shuffle(1).transform(lambda rows: rows.num_rows)
    assert (len(twice), twice[[0, 3, 3]]) == (9, 3)
    assert [
        batch["name"] for batch in DataLoader(explicit, batch_size=4, collate_fn=lambda rows: rows.to_pydict())
    ] == [[names[i] for i in reversed(chosen)][first : first + 4] for first in (0, 4, 8)]
    for method, value in (("filter", EVEN), ("split", TRAIN)):
        with pytest.raises(ValueError, match=f"{method} after shuffle or order"):
            getattr(shuffled, method)(value)
    with pytest.raises(IndexError, match="row 40 is outside the table of 40 rows"):
        part.order([40])


def test_a_saved_table(cache: DataCache, peer: Peer, tmp_path: Path) -> None:
    made: dict[str, Table] = {
        "shuffled": cache.table().filter(EVEN).split(TRAIN).shuffle(7).select(["id"]),
        "ordered": cache.select(filter=EVEN).table().order([3, 1, 1]).shuffle(2),
        "plain": cache.table(),
    }
    for name, own in made.items():
        own.save(tmp_path / name)
        again = Table.load(tmp_path / name, cache)
        assert again[:] == own[:], name
    assert Table.load(tmp_path / "plain", cache, transform=lambda rows: rows.num_rows)[[1, 2]] == 2
    peer.table.fingerprint = "f-2"
    with pytest.raises(StateError, match=r"fingerprint = 'f-1', but the cache at grpc://.* has 'f-2'"):
        Table.load(tmp_path / "plain", DataCache(peer.endpoint))
    (tmp_path / "other").write_bytes(
        (tmp_path / "plain").read_bytes().replace(b"kubeflow_datacache", b"other_name_of_it__")
    )
    with pytest.raises(StateError, match="other: no table that this release"):
        Table.load(tmp_path / "other", cache)


def test_selections_show_themselves(cache: DataCache) -> None:
    chosen = cache.select(filter="id < 3", split=TRAIN)
    shown: Callable[[Any], str] = operator.methodcaller("_repr_html_")
    assert isinstance(chosen, Selection)
    assert "filter='id < 3', split=Split(of=10, start=0, stop=8, seed=3" in repr(chosen)
    assert "id &lt; 3" in shown(chosen)
    assert "<th>rows</th>" not in shown(chosen)
    assert "seed 4, clump 1, epoch 0, window 0" in repr(chosen.table().shuffle(4))
    assert len(chosen) == 2
    assert "<th>rows</th><td>2</td>" in shown(chosen)
