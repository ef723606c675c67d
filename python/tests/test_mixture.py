# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of caches, fake and real: every row of every step is the oracle's, over breaks, resumes and worlds."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from chance import Chance
from kit.deadline import limit
from lake import Lake, Made
from order import Mixture as Oracle
from peer import SCHEMA, Peer, Table, rows_of
from small import served

from kubeflow_datacache import (
    ColumnError,
    DataCache,
    DatasetChangedError,
    MixLoader,
    Mixture,
    StateError,
    World,
    mix,
)
from kubeflow_datacache.cache import Transport
from kubeflow_datacache.fetch import retry

Connect = Callable[..., DataCache]
ROWS = {"web": 150, "code": 40}
FIRST = {"web": 0, "code": 10_000}  # first id of each part's table
ALONE = World(0, 1)
STEP: dict[str, Any] = {"global_batch_size": 40, "exact": "step", "until": 240, "seed": 3, "world": ALONE}


def oracle_of(state: dict[str, Any], **changes: Any) -> Oracle:
    """The oracle of the epoch of a loader's state."""
    parts = tuple((part["rows"], tuple(part["weights"])) for part in state["parts"])
    names = ("seed", "shuffle", "clump", "window", "tail", "unit", "epoch")
    own = {name: state[name] for name in names}
    return Oracle(**own | changes, parts=parts, phases=tuple(state["phases"]), length=state["rows"],
                  global_batch=state["global_batch_size"])  # fmt: skip


def ids_of(loader: MixLoader, draws: list[Any]) -> list[int]:
    """The ids of the rows that are drawn."""
    return [FIRST[loader.parts[part]] + row for part, row in draws]


@pytest.fixture
def peers() -> Iterator[dict[str, Peer]]:
    """Fake caches of the parts."""
    nodes = {"web": [(0, 60), (60, 60), (60, 150)], "code": [(0, 25), (25, 40)]}
    with (
        Peer(Table(ROWS["web"], nodes["web"])) as web,
        Peer(Table(ROWS["code"], nodes["code"], first=FIRST["code"], fingerprint="f-2", table_uuid="t-2")) as code,
    ):
        yield {"web": web, "code": code}


@pytest.fixture
def parts(peers: dict[str, Peer], connect: Connect) -> dict[str, Any]:
    """Caches of the peers with weights."""
    return {"web": (connect(peers["web"].endpoint), 0.7), "code": (connect(peers["code"].endpoint), 0.3)}


def check(loader: MixLoader, epochs: int = 1) -> None:
    """Reads epochs to their end and compares every batch with the oracle."""
    for _ in range(epochs):
        steps: list[Any] = []
        for batch in loader:
            if not steps:
                state, world = {**loader.state_dict(), "epoch": batch.epoch}, loader.world
                steps = oracle_of(state, start_step=batch.step, rank=world.rank, world=world.size).share()
            step = steps.pop(0)
            ids = ids_of(loader, step.draws)
            assert batch.step == step.number
            assert batch.arrow().to_pydict() == rows_of(ids).to_pydict(), batch
            assert batch.source.tolist() == [draw.part for draw in step.draws]
            assert batch.source.dtype == np.int16
            assert batch.indices.tolist() == [draw.row for draw in step.draws]
            assert batch.valid.tolist() == step.valid
        assert not steps


@pytest.mark.parametrize("transport", get_args(Transport))
@pytest.mark.parametrize(
    "options",
    [
        {"exact": "step", "until": "all", "global_batch_size": 50},
        {"exact": "epoch", "until": 130, "global_batch_size": 50, "tail": "pad", "clump": 4},
        {"exact": "epoch", "until": "first", "global_batch_size": 33, "tail": "keep"},
        {"per": "batch", "until": "all", "global_batch_size": 16},
        {"exact": "epoch", "until": 100, "global_batch_size": 10, "shuffle": False},
    ],
    ids=lambda options: f"{options['until']}",
)
def test_every_batch_is_the_oracles(
    peers: dict[str, Peer], connect: Connect, options: Any, transport: Transport
) -> None:
    caches = {name: connect(peer.endpoint, transport=transport) for name, peer in peers.items()}
    parts = {"web": (caches["web"], 7), "code": (caches["code"], 3)}
    for world in (World(0, 1), World(1, 3)):
        loader = mix(parts, **options, seed=11, world=world)
        check(loader, epochs=2)
        loader.close()


@pytest.mark.parametrize("count", [4, pytest.param(12, marks=pytest.mark.night)])
def test_no_row_is_lost_or_moved_when_streams_break(
    chance: Chance, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(retry, "_FIRST", 0.002)  # seconds; short, as the peers recover at once
    reconnects = 0
    for _, rng in chance.schedules(count):
        reconnects += _train(rng)
    chance.note(f"mixtures: {reconnects} reconnects, no mismatch")
    assert reconnects > 0 or chance.only is not None


def _train(rng: random.Random) -> int:
    """A training of three attempts in different worlds, with breaks, restarts and moved rows. Returns reconnects."""
    tables = {name: Table.random(rows, rng) for name, rows in ROWS.items()}
    tables["code"].first, tables["code"].fingerprint = FIRST["code"], "f-2"
    options: dict[str, Any] = {
        "global_batch_size": 64,
        "exact": rng.choice(["step", "epoch"]),
        "until": 320,
        "seed": rng.getrandbits(64),
        "clump": rng.choice([1, 3]),
        "window": rng.choice([0, 2]),
        "prefetch_bytes": rng.choice([1, 2_000, 1 << 20]),
    }
    transport, reconnects = rng.choice(get_args(Transport)), 0
    with Peer(tables["web"]) as web, Peer(tables["code"]) as code:
        caches = [DataCache(peer.endpoint, retry_seconds=limit(), transport=transport) for peer in (web, code)]
        parts = {"web": (caches[0], 0.7), "code": (caches[1], 0.3)}
        state, done = None, 0
        for steps in (2, 2, 1):
            world = rng.randint(1, 3)
            loaders = [mix(parts, **options, world=World(rank, world)) for rank in range(world)]
            streams: list[Any] = []
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(json.loads(state))
                streams.append(iter(loader))
            for _ in range(steps):
                peer = rng.choice([web, code])
                with peer.lock:
                    peer.faults.breaks = [rng.randint(0, 9) for _ in range(rng.randint(0, 2))]
                if rng.random() < 0.5:
                    peer.restart(Table.random(peer.table.rows, rng).nodes if rng.random() < 0.5 else None)
                batches = [next(stream) for stream in streams]
                (step, *_) = oracle_of(loaders[0].state_dict(), start_step=done).share()
                got = [row for batch in batches for row in batch.arrow().column("id").to_pylist()]
                assert got == ids_of(loaders[0], step.draws), (options, done)
                state, done = json.dumps(loaders[-1].state_dict()), done + 1
            for loader in loaders:
                reconnects += loader.stats().reconnects
                loader.close()
        for cache in caches:
            cache.close()
    return reconnects


def test_readers_and_their_states_for_every_number_of_workers(parts: dict[str, Any]) -> None:
    want = [batch.indices.tolist() for batch in mix(parts, **STEP)]
    for workers in (1, 2, 4):
        loaders = [mix(parts, **STEP, worker=worker, workers=workers) for worker in range(workers)]
        batches = sorted((batch for loader in loaders for batch in loader), key=lambda batch: batch.step)
        assert [batch.indices.tolist() for batch in batches] == want
    assert len(want) == 6


def test_a_curriculum_goes_on_with_more_phases(parts: dict[str, Any], connect: Connect) -> None:
    def make(web: Any, code: Any, phases: list[int], **options: Any) -> MixLoader:
        own = {"web": (parts["web"][0], web), "code": (parts["code"][0], code)}
        whole: dict[str, Any] = {**STEP, "phases": phases, **options}
        return mix(own, **whole)

    loader = make([1, 0.5], [0, 0.5], [2])
    assert loader.weights == {"web": (40, 20), "code": (0, 20)}
    counts, states = [], [loader.state_dict()]
    for batch in loader:
        counts.append(np.bincount(batch.source, minlength=2).tolist())
        states.append(loader.state_dict())
    assert counts == [[40, 0]] * 2 + [[20, 20]] * 4
    longer = make([1, 0.5, 0.1], [0, 0.5, 0.9], [2, 2], world=World(0, 2))
    longer.load_state_dict(json.loads(json.dumps(states[4])))
    assert [np.bincount(batch.source, minlength=2).sum() for batch in longer] == [20, 20]
    check(longer)
    with pytest.raises(StateError, match=re.escape("phases[1] = None, but this loader has 80: phases must be equal")):
        longer.load_state_dict(states[5])
    other = make([1, 0.6], [0, 0.4], [2])
    other.load_state_dict(states[2])  # the weights differ only from here on
    with pytest.raises(StateError, match=re.escape("weights[1] of part 'web' = 20, but this loader has 24")):
        other.load_state_dict(states[3])
    with pytest.raises(StateError, match=re.escape("weights[0] of part 'web' = 40, but this loader has 20")):
        make([0.5, 0.5], [0.5, 0.5], [2]).load_state_dict(states[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "seed = 3, but this loader has 4"),
        ({"exact": "epoch"}, "weights[0] of part 'web' = 28, but this loader has 168"),
        ({"until": 280}, "rows = 240, but this loader has 280"),
        ({"tail": "pad"}, "tail = 'drop', but this loader has 'pad'"),
        ({"global_batch_size": 20}, "weights[0] of part 'web' = 28, but this loader has 14"),
    ],
)
def test_a_state_of_another_mixture_is_refused_by_field(parts: dict[str, Any], change: Any, message: str) -> None:
    loader = mix(parts, **STEP)
    next(iter(loader))
    with pytest.raises(StateError, match=re.escape(message)):
        mix(parts, **STEP | change).load_state_dict(loader.state_dict())


def test_a_state_of_other_parts_is_refused(parts: dict[str, Any]) -> None:
    state = mix(parts, **STEP).state_dict()
    swapped = {"web": parts["code"], "code": parts["web"]}
    with pytest.raises(StateError, match=re.escape("table_uuid of part 'web' = 't-1', but this loader has 't-2'")):
        mix(swapped, **STEP).load_state_dict(state)
    with pytest.raises(StateError, match="names of parts"):
        mix(dict(reversed(parts.items())), **STEP).load_state_dict(state)
    with pytest.raises(StateError, match="parts is missing"):
        mix(parts, **STEP).load_state_dict(parts["web"][0].loader(global_batch_size=40, world=ALONE).state_dict())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "want at least one part"),
        ({"web": 0}, ValueError, "weight of 'web' = 0: want more, or leave the part out"),
        ({"web": -1}, ValueError, "weight of 'web' = -1: want a number of at least 0"),
        ({"web": float("nan")}, ValueError, "weight of 'web' = nan: want a number"),
        ({"web": "much"}, TypeError, "weight of 'web' = 'much': want a number, not str"),
        ({"web": [1, 2]}, ValueError, "weights of 'web': 2, want 1, one for each phase"),
    ],
)
def test_bad_parts_are_refused_by_name(parts: dict[str, Any], arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        mix({name: (parts[name][0], weight) for name, weight in arguments.items()}, **STEP)


def test_a_part_that_changes_ends_the_iteration_with_its_name(peers: dict[str, Peer], parts: dict[str, Any]) -> None:
    loader = mix(parts, **STEP)
    peers["code"].table.fingerprint = "f-9"
    with pytest.raises(DatasetChangedError, match=re.escape(peers["code"].endpoint)):
        next(iter(loader))


def test_a_part_that_does_not_answer_is_waited_for(peers: dict[str, Peer], parts: dict[str, Any]) -> None:
    loader = mix(parts, **STEP)
    peers["code"].faults.head_unavailable = 3
    check(loader)
    assert peers["code"].faults.head_unavailable == 0


def test_columns_and_transforms(parts: dict[str, Any]) -> None:
    loader = mix(parts, **STEP, columns=["name"], transform=lambda rows: {"length": np.ones(rows.num_rows)})
    batch = next(iter(loader))
    assert list(batch.data) == ["length"]
    assert batch.source.tolist() == next(iter(mix(parts, **STEP))).source.tolist()
    with pytest.raises(ColumnError, match="'nope' is no column"):
        mix(parts, **STEP, columns=["nope"])


# ---- Real caches


@pytest.fixture(scope="module")
def endpoints(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Real caches of the parts on two data nodes each, and of a table with other types."""
    folder = tmp_path_factory.mktemp("mixture")
    other = pa.schema([("id", pa.int32()), ("name", pa.string()), ("vector", pa.list_(pa.int32()))])
    tables, lake = dict[str, Made](), Lake(folder)
    for name, rows in {**ROWS, "other": 5}.items():
        schema = SCHEMA if name != "other" else other
        cuts = [(0, rows // 3), (rows // 3, rows)]
        files = [
            pa.Table.from_batches([rows_of(list(range(FIRST.get(name, 0) + lo, FIRST.get(name, 0) + hi)))]).cast(schema)
            for lo, hi in cuts
        ]
        tables[name] = Made(name, lake.create(name, schema, files).metadata_location)
    with (
        served(server, folder / "a", tables["web"]) as web,
        served(server, folder / "b", tables["code"]) as code,
        served(server, folder / "c", tables["other"]) as third,
    ):
        yield {"web": web, "code": code, "other": third}


@pytest.mark.parametrize("transport", get_args(Transport))
def test_real_caches(endpoints: dict[str, str], connect: Connect, transport: Transport) -> None:
    caches = {name: connect(endpoints[name], transport=transport) for name in ROWS}
    parts = {"web": (caches["web"], [0.7, 0.2]), "code": (caches["code"], [0.3, 0.8])}
    cases: list[dict[str, Any]] = [
        {"exact": "step", "until": 400, "phases": [5], "clump": 7},
        {"exact": "epoch", "until": 330, "phases": [4], "tail": "keep"},
        {"per": "batch", "until": 400, "phases": [3], "tail": "pad"},
    ]
    for options in cases:
        for world in (World(0, 1), World(2, 5)):
            loader = mix(parts, **options, global_batch_size=40, seed=8, world=world)
            check(loader, epochs=2)
            loader.close()


def test_a_real_cache_refuses_the_rows_of_another_table(endpoints: dict[str, str], connect: Connect) -> None:
    caches = {name: connect(endpoints[name]) for name in endpoints}
    loader = mix({"web": (caches["web"], 1), "code": (caches["code"], 1)}, **STEP)
    request = {**loader._request(loader._share_in(ALONE)), "part": 1}  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(DatasetChangedError, match=re.escape("parts[1].rows = 40: this cache has 150 rows")):
        caches["web"].get_flight_info(request)
    with pytest.raises(ColumnError, match="column 'id' is int64 in 'web' and int32 in 'other'"):
        mix({"web": (caches["web"], 1), "other": (caches["other"], 1)}, **STEP)


def test_steps_of_one_part_may_have_other_columns(endpoints: dict[str, str], connect: Connect) -> None:
    parts = {name: (connect(endpoints[name]), 1) for name in ("web", "other", "code")}
    options: dict[str, Any] = {"per": "batch", "until": 300, "global_batch_size": 10, "seed": 5}
    for world in (World(0, 1), World(0, 12)):  # rank 0 of 12 has no row of a step
        loader = mix(parts, **options, world=world)
        whole = oracle_of(loader.state_dict())
        steps = oracle_of(loader.state_dict(), rank=world.rank, world=world.size).share()
        for step, batch in zip(steps, loader, strict=True):
            part = whole.draw(10 * step.number).part
            assert batch.schema.field("id").type == (pa.int32() if part == 1 else pa.int64())
            assert batch.indices.tolist() == [draw.row for draw in step.draws]
            first = FIRST.get(loader.parts[part], 0)
            assert batch.arrow().column("id").to_pylist() == [first + draw.row for draw in step.draws]
        loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_reads_mixtures(endpoints: dict[str, str], connect: Connect, workers: int) -> None:
    torch: Any = pytest.importorskip("torch")
    from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

    caches = {name: connect(endpoints[name]) for name in endpoints}
    options: dict[str, Any] = {"global_batch_size": 40, "seed": 3, "columns": ["id"], "world": ALONE}
    # by batch, with parts of other types: each bundle of a worker has one schema
    cases: list[tuple[list[str], dict[str, Any]]] = [
        (["web", "code"], {"exact": "step"}),
        (["web", "other"], {"per": "batch"}),
    ]
    for names, how in cases:
        mixture = Mixture({name: (caches[name], 1) for name in names}, until=240, **how)
        want = [(batch.arrow().column("id").to_pylist(), batch.source.tolist()) for batch in mixture.loader(**options)]
        loader = StreamingDataLoader(StreamingDataset(mixture, **options), num_workers=workers)
        batches = list(loader)
        assert [(batch["id"].tolist(), batch.source.tolist()) for batch in batches] == want
        assert {batch["id"].dtype for batch in batches} == {torch.int64, *([torch.int32] if "other" in names else [])}
        assert batches[0].to("cpu").source.dtype == torch.int16
        state = json.loads(json.dumps(loader.state_dict()))
        assert (state["epoch"], state["next_step"]) == (1, 0)
        fresh = mixture.loader(**options)
        fresh.load_state_dict({**state, "next_step": 2})
        assert next(iter(fresh)).step == 2
