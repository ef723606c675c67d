# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arguments: numpy scalars are accepted, and invalid values raise in the constructor, naming the parameter."""

from __future__ import annotations

import inspect
import json
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from peer import Peer, Table
from small import steps_of

from kubeflow_datacache import ColumnError, DataCache, TransformError, World

ALONE = World(0, 1)

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"columns": "id"}, TypeError, r"columns = 'id': want a list of names, as \['id'\]"),
    ({"columns": [1]}, TypeError, r"columns\[0\] = 1: want the name of a column"),
    ({"columns": 3}, TypeError, r"columns = 3: want a list of names"),
    ({"columns": []}, ValueError, r"columns is empty"),
    ({"columns": ["id", "id"]}, ValueError, r"columns names 'id' twice"),
    ({"world": (0, 2)}, TypeError, r"world = \(0, 2\): want World\(rank, size\)"),
    ({"global_batch_size": 8.0}, TypeError, r"global_batch_size = 8.0: want a whole number"),
    ({"global_batch_size": 0}, ValueError, r"global_batch_size = 0: want at least 1"),
    ({"global_batch_size": True}, TypeError, r"global_batch_size = True: want a whole number"),
    ({"global_batch_size": "8"}, TypeError, r"global_batch_size = '8': want a whole number"),
    ({"prefetch_bytes": 1e6}, TypeError, r"prefetch_bytes = 1000000.0: want a whole number"),
    ({"prefetch_bytes": 0}, ValueError, r"prefetch_bytes = 0: want at least 1"),
    ({"seed": -1}, ValueError, r"seed = -1: want at least 0 and less than 2\^64"),
    ({"window": -1}, ValueError, r"window = -1: want at least 0"),
    ({"clump": 0}, ValueError, r"clump = 0: want at least 1"),
    ({"shuffle": "no"}, TypeError, r"shuffle = 'no': want True or False"),
    ({"shufle": True}, TypeError, r"shufle is no parameter of a loader; did you mean shuffle\?"),
    ({"tail": "repeat"}, ValueError, r"tail = 'repeat': want \"drop\", \"keep\" or \"pad\""),
    ({"transform": "tokenize"}, TypeError, r"transform = 'tokenize': want a function"),
    ({"transform_threads": 1.5}, TypeError, r"transform_threads = 1.5: want a whole number"),
    ({"transform_threads": 1, "transform_processes": 1}, ValueError, r"want one of them"),
    ({"transform": str, "transform_threads": -1}, ValueError, r"transform_threads = -1: want at least 0"),
    ({"transform": str, "transform_processes": -1}, ValueError, r"transform_processes = -1: want at least 0"),
    ({"cast": "int64"}, TypeError, r"cast = 'int64': want dtypes by column"),
    ({"cast": {"id": "int63"}}, ValueError, r"cast\['id'\] = 'int63': want one of bool, uint8"),
    ({"num_splits": 8}, TypeError, r"num_splits is no parameter of a loader; here it is nothing: any world size"),
    ({"read_batch_size": 8}, TypeError, r"read_batch_size .* here it is prefetch_bytes"),
    ({"prefetch_batches": 8}, TypeError, r"prefetch_batches .* here it is prefetch_bytes"),
]


@pytest.mark.parametrize(("options", "kind", "message"), WRONG, ids=[str(options) for options, _, _ in WRONG])
def test_what_is_wrong_is_refused_at_construction(
    cache: DataCache, peer: Peer, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    options = {"global_batch_size": 8, **options}
    with pytest.raises(kind, match=message):
        cache.loader(**options)
    torch = pytest.importorskip("kubeflow_datacache.torch")
    asked = len(peer.requests)
    with pytest.raises(kind, match=message):
        torch.StreamingDataset(cache, **options)
    assert len(peer.requests) == asked, "a dataset does not connect when it is made"


def test_options_of_a_loader_alone(cache: DataCache) -> None:
    with pytest.raises(TypeError, match="global_batch_size is missing"):
        cache.loader()  # pyright: ignore[reportCallIssue] - the test passes a wrong argument
    with pytest.raises(ValueError, match="worker = 2: want at least 0 and less than workers"):
        cache.loader(global_batch_size=8, worker=2, workers=2)
    with pytest.raises(ValueError, match="define it at the top level of a module"):
        cache.loader(global_batch_size=8, transform=lambda rows: rows, transform_processes=1)
    with pytest.raises(ColumnError, match=r"'idd' is no column that the cache serves; .*did you mean 'id'"):
        cache.loader(global_batch_size=8, columns=["idd"])
    with pytest.raises(TypeError, match=r"epoch = 1.5: want a whole number"):
        cache.loader(global_batch_size=8).set_epoch(1.5)  # pyright: ignore[reportArgumentType] - the test passes a wrong argument
    with pytest.raises(TypeError, match=r"World: rank = 0.5: want a whole number"):
        World(0.5, 2)  # pyright: ignore[reportArgumentType] - the test passes a wrong argument
    for columns in ("id", [1]):
        with pytest.raises(TypeError, match=r"columns.* = .*: want"):
            cache.table(columns=columns)  # pyright: ignore[reportArgumentType] - the test passes a wrong argument


def test_numpy_scalars(cache: DataCache) -> None:
    numbers: Any = np.int64(0), np.int32(1), np.int64(3)
    rank, size, epoch = numbers
    options: dict[str, Any] = {
        "global_batch_size": np.int64(9),
        "seed": np.uint64(7),
        "shuffle": np.bool_(True),
        "clump": np.int32(2),
        "columns": np.array(["id"]),
        "prefetch_bytes": np.int64(1 << 20),
        "world": World(rank, size),
    }
    want = steps_of({"global_batch_size": 9, "seed": 7, "clump": 2, "tail": "drop"}, epoch=3, rows=100)
    loader = cache.loader(**options)
    loader.set_epoch(epoch)
    assert [batch.numpy()["id"].tolist() for batch in loader] == want
    json.dumps(loader.state_dict())
    torch = pytest.importorskip("kubeflow_datacache.torch")
    streaming = torch.StreamingDataLoader(torch.StreamingDataset(cache, **options))
    streaming.set_epoch(epoch)
    assert [batch["id"].tolist() for batch in streaming] == want
    json.dumps(streaming.state_dict())


def test_signatures_show_every_parameter(cache: DataCache) -> None:
    shown = inspect.signature(cache.loader).parameters
    assert shown["prefetch_bytes"].default == 64 << 20
    assert shown["global_batch_size"].default is inspect.Parameter.empty
    assert str(shown["global_batch_size"]) == "global_batch_size: 'int'"
    assert "options" not in shown


def test_a_random_seed(cache: DataCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = cache.loader(global_batch_size=10, seed=None, world=ALONE)
    state = json.loads(json.dumps(loader.state_dict()))
    assert f"drew seed = {state['seed']} at random" in caplog.text
    want = [batch.arrow() for batch in loader]
    again = cache.loader(global_batch_size=10, seed=state["seed"], world=ALONE)
    again.load_state_dict(state)
    assert [batch.arrow() for batch in again] == want
    other = cache.loader(global_batch_size=10, seed=None, world=ALONE)
    assert other.state_dict()["seed"] != state["seed"]
    with pytest.raises(ValueError, match="seed = None in a world of 2 ranks, which must agree on one"):
        cache.loader(global_batch_size=10, seed=None, world=World(1, 2))
    early = cache.loader(global_batch_size=10, seed=None)
    torch = pytest.importorskip("kubeflow_datacache.torch")
    dataset = torch.StreamingDataset(cache, global_batch_size=10, seed=None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for iterated in (early, dataset, torch.StreamingDataLoader(dataset)):
        with pytest.raises(ValueError, match="drawn when this process was alone"):
            next(iter(iterated))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (3, r"global_batch_size = 1024 is more than the 3 rows, .* at most 3, or tail=\"keep\""),
        (0, "there are no rows"),
    ],
)
def test_an_epoch_without_steps_warns_once(rows: int, message: str) -> None:
    with Peer(Table(rows, [(0, rows)])) as peer, DataCache(peer.endpoint) as cache:
        with pytest.warns(UserWarning, match=message):
            loader = cache.loader(global_batch_size=1024, world=ALONE)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(loader) == list(loader) == [], "without another warning"
            if rows:
                assert len(list(cache.loader(global_batch_size=1024, world=ALONE, tail="keep"))) == 1


@pytest.mark.parametrize(
    "transform",
    [
        lambda rows: rows.slice(1),
        lambda rows: pa.Table.from_batches([rows, rows]),
        lambda rows: {"id": rows["id"].to_numpy()[1:]},
        lambda rows: {"id": rows["id"].slice(1), "other": rows["id"].slice(1)},
    ],
    ids=["record batch", "table", "arrays", "Arrow arrays"],
)
def test_a_transform_that_changes_the_number_of_rows(cache: DataCache, transform: Any) -> None:
    loader = cache.loader(global_batch_size=8, transform=transform, world=ALONE)
    with pytest.raises(TransformError, match=r"returned (7|16) rows for 8 at epoch 0, step 0, .*: want as many rows"):
        next(iter(loader))


def test_samples_that_are_no_rows(cache: DataCache) -> None:
    for made in ([1, 2, 3], {"ids": np.zeros((8, 3)), "starts": np.zeros(9)}, {"loss_scale": 2.0}):
        loader = cache.loader(global_batch_size=8, transform=lambda rows, made=made: made, world=ALONE)
        assert next(iter(loader)).data is made


def test_requests_are_for_the_job(cache: DataCache, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests name the TrainJob of the environment; without one they name none."""
    monkeypatch.delenv("TRAIN_JOB_NAME", raising=False)
    cache.get_flight_info({"kind": "take"})
    monkeypatch.setenv("TRAIN_JOB_NAME", "trial-7")
    cache.get_flight_info({"kind": "take"})
    assert ["job" in request for request in peer.requests] == [False, True]
    assert peer.requests[1]["job"] == "trial-7"
