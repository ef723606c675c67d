# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packs from real servers: the law's, whatever the number of ranks, the restarts, and the servers that are lost."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import Chance
from cluster import Cluster, Outage
from kit.deadline import eventually, limit
from lake import Lake, Made
from order import Epoch as Oracle
from server import Cache, Caches

from kubeflow_datacache import (
    BalancedLoader,
    ColumnError,
    DataCache,
    DataCacheError,
    Pack,
    PackedBatch,
    PackLoader,
    RefusedError,
    Split,
    StateError,
    World,
    mix,
)
from kubeflow_datacache.fetch.merge import Merge
from kubeflow_datacache.order.packed import RankStep
from kubeflow_datacache.selection import Readable
from kubeflow_datacache.torch import StreamingDataset
from pack_law import Law

Connect = Callable[..., DataCache]
Step = frozenset[tuple[int, ...]]
SCHEMA = pa.schema(
    [("id", pa.int64()), ("input_ids", pa.list_(pa.int32())), ("mask", pa.list_(pa.int8())), ("text", pa.string())]
)
ROWS, SEED = 700, 5
EXAMPLE: dict[str, Any] = {"column": "x", "tokens": 8, "packs": 2}
PACK = Pack("input_ids", tokens=256, packs=12, window=1)


def lengths_of(rows: int) -> list[int]:
    """The number of tokens of each row; every 31st has none."""
    rng = np.random.default_rng(rows)
    return [int(n) * (i % 31 > 0) for i, n in enumerate(np.minimum(rng.lognormal(3.5, 1, rows) + 1, 256))]


def tokens_of(row: int, length: int) -> list[int]:
    """The tokens of a row."""
    return [(row * 7 + i) % 50_000 for i in range(length)]


def write(folder: Path, rows: int) -> str:
    """Writes a table of two files, and returns its metadata file."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = lengths_of(rows)

    def part(ids: range) -> pa.Table:
        tokens = [tokens_of(i, lengths[i]) for i in ids]
        mask = [[t % 2 for t in row] for row in tokens]
        return pa.table(
            {"id": ids, "input_ids": tokens, "mask": mask, "text": [f"row {i}" for i in ids]}, schema=SCHEMA
        )

    return Lake(folder).create("t", SCHEMA, [part(range(rows // 3)), part(range(rows // 3, rows))]).metadata_location


@pytest.fixture(scope="module")
def served(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cache]]:
    """Real caches of two tables, on three data nodes each."""
    folder = tmp_path_factory.mktemp("packs")
    running = Caches(server, folder / "logs")
    tables = {"web": ROWS, "code": 500}
    yield {name: running.of(Made(name, write(folder / name, rows)), nodes=3) for name, rows in tables.items()}
    running.close()


@pytest.fixture
def cache(served: dict[str, Cache], connect: Connect) -> DataCache:
    """A client of the larger table."""
    return connect(served["web"].endpoint)


def walk(loaders: list[PackLoader]) -> Iterator[Step]:
    """The packs of each step by the ids of their rows; checks what the ranks have in common."""
    for batches in zip(*loaders, strict=True):
        assert len({(batch.step, len(batch.packs)) for batch in batches}) == 1
        for batch in batches:
            assert batch.indices.tolist() == batch["id"].to_pylist()
        yield ids_of(list(batches))


def ids_of(batches: list[Any]) -> Step:
    """The packs of a step by the ids of their rows."""
    return frozenset(tuple(p.rows["id"].to_pylist()) for batch in batches for p in batch.packs if p.valid)


def law_steps(rows: int = ROWS, pack: Pack = PACK, epoch: int = 0) -> list[Step]:
    """The steps of the law."""
    order = Oracle(rows=rows, seed=SEED, epoch=epoch, global_batch=1)
    sequence, lengths = [order.row(p) for p in range(rows)], lengths_of(rows)
    law = Law(tokens=pack.tokens, packs=pack.packs, window=pack.window or 1, seed=SEED, epoch=epoch)
    steps = law.steps([lengths[row] for row in sequence])
    return [frozenset(tuple(sequence[p] for p in own) for own in packs) for _, _, packs in steps]


def ranks_of(cache: Readable, world: int, pack: Pack = PACK, **options: Any) -> list[PackLoader]:
    """The loaders of all ranks."""
    return [cache.loader(pack=pack, seed=SEED, world=World(rank, world), **options) for rank in range(world)]


@pytest.fixture(params=["head", "loader"])
def planner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who plans: the head, and nobody else; or each loader."""
    if request.param == "loader":
        monkeypatch.setattr(PackLoader, "_head", None)
    else:
        monkeypatch.setattr(PackLoader, "_steps_of", None)


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_table_larger_than_the_memory(server: Path, connect: Connect, tmp_path: Path, shuffle: bool) -> None:
    """Its lengths, and its tokens, are read from spill files, and with them the other columns of these rows."""
    rows, noise = 4_000, np.random.default_rng(1)
    tokens = pa.array([tokens_of(i, n) for i, n in enumerate(lengths_of(rows))], pa.list_(pa.int32()))
    wide = pa.array([noise.bytes(16_000) for _ in range(rows)])
    table = pa.table({"id": range(rows), "input_ids": tokens, "wide": wide})
    (tmp_path / "table").mkdir()
    pq.write_table(table, tmp_path / "table" / "0.parquet", compression="none", row_group_size=200)
    limits = {"SPILL_DIR": str(tmp_path / "spill"), "MEMORY_LIMIT": "144MiB"}
    pack = Pack("input_ids", tokens=2048, packs=8, window=4)
    with closing(Caches(server, tmp_path / "logs")) as running:
        cache = running.start(["--files", str(tmp_path / "table")], nodes=1, env=limits)
        cache.wait("Ready")
        spill = eventually("the spill files in /status", lambda: cache.status()["nodes"][0].get("spill"))
        assert spill["pinned"] < spill["bytes"] / 2, "most rows fit in memory"
        (loader,) = ranks_of(connect(cache.endpoint), 1, pack, columns=["id", "input_ids"], shuffle=shuffle)
        got = [p.rows["id"].to_pylist() for batch in loader for p in batch.packs if p.valid]
    assert sorted(itertools.chain(*got)) == [i for i, n in enumerate(lengths_of(rows)) if n]


@pytest.mark.usefixtures("planner")
def test_steps_are_the_laws_for_every_world_and_resume_in_another(
    cache: DataCache, rng: random.Random, thorough: int
) -> None:
    want = [*law_steps(), *law_steps(epoch=1)]
    first, last = len(law_steps()), len(want)
    for world in range(1, 12) if thorough > 1 else (1, rng.randint(2, 6), 11):
        ranks, steps, stop = ranks_of(cache, world), list[Step](), rng.randint(1, last - 1)
        while len(steps) < stop:
            steps += itertools.islice(walk(ranks), stop - len(steps))
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(state == states[0] for state in states)
        for rank in ranks:
            rank.close()
        again = ranks_of(cache, rng.choice([1, 2, 4, 7]))
        for rank in again:
            rank.load_state_dict(rng.choice(states))
        while len(steps) < last:
            steps += walk(again)
        assert steps == want, (world, stop)
        for rank in again:
            rank.close()
    assert cache.loader(pack=PACK, seed=SEED).count_steps() == first


def random_pack(rng: random.Random) -> Pack:
    """Any budget that the table's rows, of up to 256 tokens, fit."""
    while True:
        long: Any = rng.choice(["refuse", "split", "truncate", "drop"])
        multiple, window = rng.choice([1, 2, 8]), rng.choice([None, 1, 3])
        tokens = multiple * rng.randint(256 // multiple if long == "refuse" else 2, 300 // multiple)
        pack = Pack("input_ids", tokens, rng.randint(1, 9), multiple, rng.randint(0, 5000), window, long)
        if pack.window_packs * tokens >= 256:
            return pack


def test_the_heads_plan_is_the_loaders_for_any_request(
    cache: DataCache, rng: random.Random, thorough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    selections = [f"id >= {low} AND id < {low + rng.randint(0, 120)}" for low in rng.sample(range(ROWS), 20)]
    for _ in range(20 * thorough):
        part, pack, world = cache.select(filter=rng.choice(selections)), random_pack(rng), rng.choice([1, 2, 3, 7, 11])
        if rng.random() < 0.3:
            part = part.select(
                split=Split(seed=rng.getrandbits(64), of=10, start=1, stop=9, shuffle=rng.random() < 0.5)
            )
        options: dict[str, Any] = {
            "seed": rng.getrandbits(64),
            "shuffle": rng.random() < 0.8,
            "clump": rng.choice([1, 3]),
        }
        options |= {"pack": pack, "world": World(rng.randrange(world), world), "columns": ["input_ids"]}
        loader, epoch = part.loader(**options), rng.getrandbits(64)
        loader.set_epoch(epoch)
        with monkeypatch.context() as local:
            local.setattr(PackLoader, "_head", None)
            want = [comparable(batch.planned) for batch in loader]
            assert loader.count_steps() == len(want)
        again, stop = part.loader(**options), rng.randint(0, len(want))
        again.set_epoch(epoch)
        got = [comparable(batch.planned) for batch in itertools.islice(again, stop)]
        assert again.count_steps() == len(want)
        if stop < len(want):
            loader.load_state_dict(again.state_dict())
            got += [comparable(batch.planned) for batch in loader]
        assert got == want, (part, options, epoch)
        loader.close()
        again.close()


def comparable(step: RankStep) -> Any:
    """A step as plain values."""
    packs = [None if own is None else [array.tolist() for array in own] for own in step.packs]
    return step.rows.tolist(), packs, step.following, step.tokens, step.sequences, step.counts


def test_values_of_packs(cache: DataCache) -> None:
    pack, lengths = Pack("input_ids", tokens=256, packs=12, multiple=8, labels="mask"), lengths_of(ROWS)
    for batch in itertools.islice(ranks_of(cache, 5, pack, columns=["id", "input_ids", "mask"])[3], 3):
        with pytest.raises(DataCacheError, match=r"weight with Pack\(labels=\): .* sum \(labels != -100\)"):
            batch.weight  # noqa: B018
        for packed in batch.packs:
            ids = packed.rows["id"].to_pylist()
            assert packed.lengths.tolist() == [lengths[i] for i in ids]
            assert packed.numpy("input_ids").tolist() == [t for i in ids for t in tokens_of(i, lengths[i])]
            full = packed.megatron(pad_id=3)
            assert full["tokens"].shape == full["labels"].shape == full["position_ids"].shape == (1, 256)
            ends, sizes = full["cu_seqlens_padded"].tolist(), [-(-lengths[i] // 8) * 8 for i in ids]
            assert ends == list(itertools.accumulate([*sizes, *[256 - sum(sizes)] * (sum(sizes) < 256)], initial=0))
            for i, begin, size in zip(ids, ends, sizes, strict=False):
                tokens = tokens_of(i, lengths[i])
                labels, pad = [t % 2 for t in tokens[1:]], size - lengths[i]
                assert full["tokens"][0, begin : begin + size].tolist() == [*tokens, *[3] * pad]
                assert full["labels"][0, begin : begin + size].tolist() == [*labels, *[-100] * (pad + 1)]
                assert full["position_ids"][0, begin : begin + size].tolist() == list(range(size))
            assert (full["loss_mask"] == (full["labels"] != -100)).all()
            assert packed.valid == bool(ids)


def test_more_ranks_than_packs(cache: DataCache) -> None:
    ranks = ranks_of(cache, 3, Pack("input_ids", tokens=256, packs=2))
    for batches in zip(*ranks, strict=True):
        assert sorted(batch.packs[0].valid for batch in batches) == [False, True, True] or batches[0].step > 50
        for batch in batches:
            assert batch.hf(pad=True)["input_ids"].shape == (1, 256)
            assert batch.num_rows or (batch.hf()["labels"] == -100).all()


@pytest.mark.usefixtures("planner")
@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_long_rows(cache: DataCache, long: Any) -> None:
    pack, lengths = Pack("input_ids", tokens=64, packs=40, long=long), lengths_of(ROWS)
    loader = cache.loader(pack=pack, seed=SEED)
    got = dict[int, list[list[int]]]()
    for batch in loader:
        flat = batch.varlen()
        for i, (begin, end) in zip(
            batch["id"].to_pylist(), itertools.pairwise(flat["cu_seqlens"].tolist()), strict=True
        ):
            got.setdefault(i, []).append(flat["tokens"][0, begin:end].tolist())
    for i, length in enumerate(lengths):
        tokens = tokens_of(i, length)
        want = {"split": tokens, "truncate": tokens[:64], "drop": tokens if length <= 64 else []}[long]
        pieces = sorted(got.get(i, []), key=lambda piece: tokens.index(piece[0]))
        assert [t for piece in pieces for t in piece] == want
    name = {"drop": "dropped", "truncate": "truncated", "split": "split"}[long]
    assert getattr(loader.counts, name) == sum(n > 64 for n in lengths)
    assert (loader.counts.rows, loader.counts.empty) == (ROWS, lengths.count(0))


def test_long_rows_are_refused_before_the_first_step(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    pack, over = Pack("input_ids", tokens=128, packs=4), [i for i, n in enumerate(lengths_of(ROWS)) if n > 128]
    with pytest.raises(
        ColumnError, match=rf'"input_ids": {len(over)} of {ROWS} rows are too long, .*row {over[0]} has'
    ):
        next(iter(cache.loader(pack=pack, seed=SEED)))
    monkeypatch.setattr(PackLoader, "_head", None)
    for world in (1, 4):
        found = 0
        for rank in ranks_of(cache, world, pack):
            with pytest.raises(
                ColumnError, match=r"column 'input_ids': \d+ of \d+ rows are too long.*tokens = 128"
            ) as e:
                next(iter(rank))
            found += int(str(e.value).split()[2])
        assert found == len(over)


def test_rows_longer_than_a_window_are_refused_before_the_first_step(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, lengths = Pack("input_ids", tokens=32, packs=3, window=1, long="split"), lengths_of(ROWS)
    over = [i for i, n in enumerate(lengths) if n > 96]
    assert over[0] > 0
    with pytest.raises(ColumnError, match=rf"{len(over)} of {ROWS} rows .* more than .* have, 96: use a larger window"):
        next(iter(cache.loader(pack=pack, seed=SEED)))
    monkeypatch.setattr(PackLoader, "_head", None)
    with pytest.raises(ColumnError, match=rf"{len(over)} of {ROWS} rows .* more than .* have, 96: .* a larger window"):
        next(iter(cache.loader(pack=pack, seed=SEED)))


def test_refusals(cache: DataCache) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"global_batch_size": 4}, ValueError, "global_batch_size with pack: leave it out"),
        ({"tail": "pad"}, ValueError, "tail with pack: leave it out"),
        ({"transform": print}, ValueError, "transform with pack: leave it out"),
        ({"colums": []}, TypeError, "did you mean columns"),
        ({"columns": ["id"]}, ColumnError, r"pack: 'input_ids' is not among columns = \['id'\]"),
        ({"pack": Pack("input_id", 8, 8)}, ColumnError, "did you mean 'input_ids'"),
        ({"pack": Pack("text", 8, 8)}, ColumnError, "pack: column 'text' is string: want a column of lists"),
        ({"pack": "input_ids"}, TypeError, "pack = 'input_ids': want Pack"),
    ]
    for options, error, message in wrong:
        own: Any = {"pack": PACK, **options}
        with pytest.raises(error, match=message):
            cache.loader(**own)
    streamed: Any = {"pack": PACK}
    with pytest.raises(TypeError, match=r"pack is no parameter of a StreamingDataset.*cache.loader\(pack=\.\.\.\)"):
        StreamingDataset(cache, **streamed)
    values: list[tuple[dict[str, Any], str]] = [
        ({"tokens": 0}, "Pack: tokens = 0: want at least 1"),
        ({"tokens": 9, "multiple": 2}, "Pack: tokens = 9: want a multiple of multiple = 2"),
        ({"long": "cut"}, "Pack: long = 'cut': want"),
    ]
    for fields, message in values:
        with pytest.raises(ValueError, match=message):
            Pack(**{**EXAMPLE, **fields})
    loader = cache.loader(pack=PACK)
    for call in (lambda: len(loader), lambda: loader.steps):
        with pytest.raises(TypeError, match=r"call count_steps\(\)"):
            call()
    with pytest.raises(RefusedError, match=r'"length\(id\)": column "id" is int64, want a list, a string or binary'):
        next(iter(cache.loader(global_batch_size=1, columns=["length(id)"])))


def test_states(cache: DataCache, rng: random.Random) -> None:
    two = Pack("input_ids", tokens=256, packs=6, window=2)
    loader = cache.loader(pack=two, seed=SEED)
    next(iter(loader))
    state = loader.state_dict()
    for change, message in (({"tokens": 512}, "pack.tokens = 256"), ({"packs": 3}, "pack.packs = 6")):
        other = cache.loader(pack=dataclasses.replace(two, **change), seed=SEED)
        with pytest.raises(StateError, match=message + r".*allow=\[\"pack\"\]"):
            other.load_state_dict(state)
        with pytest.raises(StateError, match="is within a window, after 1 of its steps"):
            other.load_state_dict(state, allow=["pack"])
    with pytest.raises(StateError, match="seed = 5, but this loader has 6"):
        cache.loader(pack=two, seed=6).load_state_dict(state)
    with pytest.raises(StateError, match="pack is missing"):
        loader.load_state_dict(cache.loader(global_batch_size=1, seed=SEED).state_dict())
    other = cache.loader(pack=two, seed=SEED, clump=4, window=8)
    begin = {**cache.loader(pack=two, seed=SEED, clump=4).state_dict(), "epoch": 2}
    with pytest.raises(StateError, match="window = 0, but this loader has 8"):
        other.load_state_dict(begin)
    other.load_state_dict(begin, allow=["window"])
    assert (other.epoch, next(iter(other)).epoch) == (2, 2)
    seen, loader = list[int](), cache.loader(pack=PACK, seed=SEED)
    while True:  # another budget after every few steps
        for batch in itertools.islice(loader, rng.randint(1, 4)):
            seen += batch["id"].to_pylist()
        if (state := loader.state_dict())["pack"]["position"] == ROWS:
            break
        loader.close()
        pack = Pack("input_ids", tokens=rng.choice([256, 300]), packs=rng.randint(1, 12), window=1)
        loader = cache.loader(pack=pack, seed=SEED)
        loader.load_state_dict(state, allow=["pack"])
    assert sorted(seen) == [i for i, n in enumerate(lengths_of(ROWS)) if n]
    assert next(iter(loader)).epoch == 1


def test_resize_between_steps(cache: DataCache) -> None:
    loaders, steps = ranks_of(cache, 2), list[Step]()
    steps += itertools.islice(walk(loaders), 5)
    for rank, loader in enumerate(loaders):
        loader.resize(World(rank + 1, 3))
    newcomer = cache.loader(pack=PACK, seed=SEED, world=World(0, 3))
    newcomer.load_state_dict(loaders[0].state_dict())
    assert [*steps, *walk([newcomer, *loaders])] == law_steps()


def test_selections_and_mixtures(served: dict[str, Cache], connect: Connect) -> None:
    web, code = (connect(served[name].endpoint) for name in ("web", "code"))
    lengths = {"web": lengths_of(ROWS), "code": lengths_of(500)}
    part = web.select(filter="id < 500").select(split=Split(of=10, start=0, stop=7))
    steps = list(walk_ids(ranks_of(part, 3)))
    assert steps == list(walk_ids(ranks_of(part, 1)))
    rows = [i for step in steps for pack in step for i in pack]
    assert len(rows) == len(set(rows))
    assert set(rows) == {i for i in part.table(columns=["id"])[:]["id"].to_pylist() if lengths["web"][i]}
    parts: Any = {"web": (web, 2), "code": (code, 1)}
    for seed in (1, 2):
        got = [list(mixed(parts, world, seed)) for world in (1, 3)]
        assert got[0] == got[1]
        taken = [row for step in got[0] for pack in step for row in pack]
        source = mix(parts, global_batch_size=1, seed=seed)
        want = [(int(b.source[0]), int(b.indices[0])) for b in source]
        assert sorted(taken) == sorted(row for row in want if lengths["code" if row[0] else "web"][row[1]])
    with pytest.raises(ValueError, match='per = "batch" with pack'):
        mix(parts, pack=PACK, per="batch")


def walk_ids(loaders: list[PackLoader]) -> Iterator[Step]:
    """The packs of each step by ids, for rows whose index is no id."""
    for batches in zip(*loaders, strict=True):
        yield ids_of(list(batches))


def mixed(parts: Any, world: int, seed: int) -> Iterator[frozenset[tuple[tuple[int, int], ...]]]:
    """The packs of each step of a mixture by part and row."""
    loaders = [mix(parts, pack=PACK, seed=seed, world=World(rank, world)) for rank in range(world)]
    for batches in zip(*loaders, strict=True):
        step = set[tuple[tuple[int, int], ...]]()
        for batch in batches:
            assert isinstance(batch, PackedBatch)
            rows, at = list(zip(batch.source.tolist(), batch.indices.tolist(), strict=True)), 0
            assert [i for _, i in rows] == batch["id"].to_pylist()
            for packed in batch.packs:
                own = tuple(rows[at : at + packed.rows.num_rows])
                step |= {own} if own else set()
                at += len(own)
        yield frozenset(step)


@pytest.mark.usefixtures("planner")
def test_no_row_is_lost_when_servers_are_lost(server: Path, tmp_path: Path, connect: Connect, chance: Chance) -> None:
    """The head and data nodes are lost, and ranks go on as another number of ranks: the steps are the law's."""
    lost, worlds = Counter[str](), [1, 2, 3, 5]
    with Cluster(server, write(tmp_path / "t", ROWS), tmp_path) as cluster:
        cluster.wait_ready()
        cache = connect(cluster.endpoint, retry_seconds=limit())
        for _, rng in chance.schedules(1):
            pack, epoch = dataclasses.replace(PACK, window=rng.choice([1, 2, 4])), rng.randrange(100)
            want, steps, state = law_steps(pack=pack, epoch=epoch), list[Step](), dict[str, Any]()
            kills = rng.sample(range(1, len(want)), 2)
            for world, end in (rng.choice(worlds), rng.randint(1, len(want) - 1)), (rng.choice(worlds), len(want)):
                ranks = ranks_of(cache, world, pack, prefetch_bytes=rng.choice([1 << 10, 1 << 16]))
                for rank in ranks:
                    rank.set_epoch(epoch)
                    if state:
                        rank.load_state_dict(state)
                for step in itertools.islice(walk(ranks), end - len(steps)):
                    steps.append(step)
                    if len(steps) in kills:
                        names = rng.choice([["head"], ["node-0"], ["node-1"], cluster.names])
                        how: Outage = rng.choice(["kill", "kill", "stop", "freeze"])
                        cluster.interrupt(names, rng.uniform(0, 0.3), how)
                        lost[f"times {how}"] += len(names)
                state = ranks[-1].state_dict()
                for rank in ranks:
                    rank.close()
            assert steps == want
    chance.note(f"losses with packs, all steps the law's: {', '.join(f'{n} {name}' for name, n in lost.items())}")


def test_balanced_steps_are_those_of_a_loader(cache: DataCache, rng: random.Random) -> None:
    options: dict[str, Any] = {"global_batch_size": 60, "seed": SEED, "tail": "keep", "columns": ["id", "input_ids"]}
    want = [sorted(batch.indices.tolist()) for batch in cache.loader(**options)]
    lengths = [max(1, n) for n in lengths_of(ROWS)]
    for world in (1, 4, 11):
        loaders = [cache.loader(balance="input_ids", world=World(r, world), **options) for r in range(world)]
        stop, steps, most = rng.randint(1, len(want) - 1), list[list[int]](), list[float]()
        batches: Iterator[Any] = zip(*loaders, strict=True)
        for parts in itertools.islice(batches, stop):
            steps.append(sorted(row for part in parts for row in part["id"].to_pylist()))
            costs = [sum(lengths[row] * (61_035 + lengths[row]) for row in part.indices.tolist()) for part in parts]
            longest = max(lengths[row] for part in parts for row in part.indices.tolist())
            most.append((max(costs) - min(costs)) / (longest * (61_035 + longest)))
            assert all(part.indices.tolist() == part["id"].to_pylist() for part in parts)
            assert sum(part.weight * part.num_rows for part in parts) == pytest.approx(world)
        assert max(most) <= 1, "ranks differ by more than the longest row"
        again = cache.loader(**options)  # without balance, or with it, the rest is the same
        again.load_state_dict(loaders[-1].state_dict())
        assert [*steps, *(sorted(batch.indices.tolist()) for batch in again)] == want
    wrong: dict[str, Any] = {"transform": print, "tail": "pad", "order": 2, "workers": 2}
    for name, value in wrong.items():
        own: Any = {**options, "balance": "input_ids", name: value}
        with pytest.raises(ValueError, match=f"{name}.* with balance"):
            cache.loader(**own)
    with pytest.raises(TypeError, match="balance = True: want the name of a column"):
        BalancedLoader(cache, True, **options)  # pyright: ignore[reportArgumentType] - as users write it


def test_a_forked_child_leaves_the_parents_streams(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    (loader,), steps = ranks_of(cache, 1), list[Step]()
    for step in walk([loader]):
        if not steps:
            if (child := os.fork()) == 0:
                monkeypatch.setattr(Merge, "stop", lambda _: os._exit(3))  # would cancel calls of the parent
                loader.close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        steps.append(step)
    assert steps == law_steps()
