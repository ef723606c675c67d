# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The real Kubeflow SDK posts a TrainJob with our initializer, here to a fake API server (a real one in
test/controlplane)."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("kubeflow.trainer", reason="runs in the training environment: make test-loader")

from api_server import RUNTIME, trainer_client
from kubeflow.trainer import CustomTrainerContainer, Initializer, TrainerClient
from kubeflow.trainer.options import Name

import kubeflow_datacache
from kubeflow_datacache import DataCache, put
from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, Derive, FluidDatasetInitializer, cache_logs

_GOLDEN = Path(__file__).parent / "golden" / "sdk_trainjob.json"

_TABLE: dict[str, Any] = {
    "cluster_size": 3,
    "metadata_loc": "s3://b/t/metadata/1.metadata.json",
    "schema_name": "demo",
    "table_name": "reviews",
}


@pytest.fixture
def posted() -> Iterator[tuple[TrainerClient, list[dict[str, Any]]]]:
    """A client of the SDK, and the list of the TrainJobs that it posted."""
    with trainer_client() as client:
        yield client


def test_the_sdk_posts_the_golden_trainjob(
    posted: tuple[TrainerClient, list[dict[str, Any]]], request: pytest.FixtureRequest
) -> None:
    client, bodies = posted
    dataset = ArrowCacheDatasetInitializer(
        **_TABLE,
        columns=["content", "label"],
        filter="label >= 1",
        snapshot_id=7,
        cache_scope="namespace",
        idle_ttl="30m",
        ready_timeout="2h",
        worker_mem="12Gi",
        iam_role="arn:aws:iam::1:role/r",
    )
    name = client.train(
        runtime=RUNTIME,
        initializer=Initializer(dataset=dataset),
        trainer=CustomTrainerContainer(image="trainer:1", num_nodes=2),
        options=[Name("reviews")],
    )
    assert name == "reviews"
    if request.config.getoption("--update"):
        _GOLDEN.write_text(json.dumps(bodies[0], indent=2) + "\n")
    assert bodies == [json.loads(_GOLDEN.read_text())]


def test_a_datacache_that_exists_is_named_alone(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    dataset = ArrowCacheDatasetInitializer(storage_uri="datacache://team-b/reviews", ready_timeout="2h", gate="counted")
    client.train(
        runtime=RUNTIME, initializer=Initializer(dataset=dataset), trainer=CustomTrainerContainer(image="trainer:1")
    )
    sent = bodies[0]["spec"]["initializer"]["dataset"]
    assert sent["storageUri"] == "datacache://team-b/reviews"
    assert {e["name"]: e.get("value", "") for e in sent["env"]} == {
        "CLUSTER_SIZE": "1",
        "METADATA_LOC": "",
        "READY_TIMEOUT": "2h",
        "GATE": "counted",
    }


def test_several_datacaches_are_named(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    client.train(
        runtime=RUNTIME,
        initializer=Initializer(dataset=ArrowCacheDatasetInitializer(storage_uri="datacache://web,team-b/code")),
        trainer=CustomTrainerContainer(image="trainer:1"),
    )
    assert _sent(bodies) == ("datacache://web,team-b/code", {"CLUSTER_SIZE": "1"})


@pytest.mark.parametrize(
    "named",
    [{"source": "s3://bucket/train/"}, {"storage_uri": "cache+s3://bucket/train/"}],
    ids=lambda named: next(iter(named)),
)
def test_files_of_no_table(named: dict[str, Any], posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    client.train(
        runtime=RUNTIME,
        initializer=Initializer(dataset=ArrowCacheDatasetInitializer(3, **named, columns=["a,b"], filter="a > 1")),
        trainer=CustomTrainerContainer(image="trainer:1"),
    )
    assert _sent(bodies) == (
        "cache+s3://bucket/train/",
        {"CLUSTER_SIZE": "3", "COLUMNS": '["a,b"]', "FILTER": "a > 1"},
    )


def test_a_delta_table(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    client.train(
        runtime=RUNTIME,
        initializer=Initializer(
            dataset=ArrowCacheDatasetInitializer(3, source="delta+s3://bucket/events", snapshot_id=0)
        ),
        trainer=CustomTrainerContainer(image="trainer:1"),
    )
    assert _sent(bodies) == ("cache+delta+s3://bucket/events", {"CLUSTER_SIZE": "3", "SNAPSHOT_ID": "0"})


def shout(batch: pa.RecordBatch, sign: str = "!") -> pa.Table:
    import pyarrow as pa

    print(f"made {batch.num_rows}\n", end="")  # a single write: several threads write to the pipe
    return pa.table({"text": [f"{text}{sign}$(HOME)$" for text in batch["content"].to_pylist()]})


def of_its_module(batch: pa.RecordBatch) -> pa.Table:
    def inner(text: str) -> list[str]:
        return json.loads(text, object_hook=batch.path)  # an attribute that has the name of a module's is none of them

    return [inner(text) for text in batch["content"].to_pylist()]


path = "of an attribute's name"


def test_a_function_is_sent_as_a_step(posted: tuple[TrainerClient, list[dict[str, Any]]], server: Path) -> None:
    client, bodies = posted
    step = Derive(
        dataset="loud", image="tok:3", fn=shout, columns=["content"], parameters={"sign": "?"}, parts=2,
        env={"A": "b"}, workers=2, memory="8Gi",
    )  # fmt: skip
    client.train(
        runtime=RUNTIME,
        initializer=Initializer(dataset=ArrowCacheDatasetInitializer(**_TABLE, derive=step)),
        trainer=CustomTrainerContainer(image="trainer:1"),
    )
    _, sent = _sent(bodies)
    made = json.loads(sent["DERIVE"])
    assert "CACHE_SCOPE" not in sent
    *python, script = made.pop("command")
    assert python == ["python3", "-c"]
    assert made == {
        "dataset": "loud",
        "image": "tok:3",
        "env": [{"name": "A", "value": "b"}],
        "workers": 2,
        "resources": {"requests": {"memory": "8Gi"}},
    }
    with DataCache.local(puts=True, progress=False, program=server) as cache:
        put(cache, "table", pa.table({"content": ["a", "b", "c"]}))
        script = script.replace("$$", "$").replace("from_env()", f"({cache.endpoint!r}, dataset='table')")
        script = script.replace("DataCache.(", "DataCache(")
        env = {**os.environ, "PYTHONPATH": str(Path(kubeflow_datacache.__file__).parents[1])}
        said = [
            subprocess.check_output([sys.executable, "-c", script], env=env, text=True).splitlines() for _ in range(2)
        ]
        assert (sorted(said[0][:-1]), said[0][-1]) == (["made 1", "made 2", "made 3"], "dataset loud has 3 rows")
        assert said[1] == ["dataset loud was there"]
        with DataCache(cache.endpoint, dataset="loud") as loud, contextlib.closing(loud.table()) as table:
            assert table[:]["text"].to_pylist() == ["a?$(HOME)$", "b?$(HOME)$", "c?$(HOME)$"]


def test_a_command_is_sent_as_a_step() -> None:
    step = ArrowCacheDatasetInitializer(**_TABLE, derive=Derive(dataset="tok", image="i", command=["tok", "--fast"]))
    assert json.loads(step.derive or "")["command"] == ["tok", "--fast"]


def test_the_first_epoch_is_sent(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    first = {"seed": 7, "global_batch": 256}
    dataset = ArrowCacheDatasetInitializer(**_TABLE, gate="counted", first_epoch=first)
    client.train(
        runtime=RUNTIME, initializer=Initializer(dataset=dataset), trainer=CustomTrainerContainer(image="trainer:1")
    )
    _, sent = _sent(bodies)
    assert (sent["GATE"], json.loads(sent["FIRST_EPOCH"])) == ("counted", first)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fn": shout, "command": ["a"]}, ["fn", "command", "leave one"]),
        ({"columns": ["content"]}, ["without fn"]),
        ({"fn": of_its_module}, ["fn uses json from around it", "inside of of_its_module"]),
        ({"fn": lambda batch: batch}, ["<lambda>", "defined by def"]),
        ({"fn": len}, ["len", "source text"]),
        ({"fn": shout, "parameters": {"sign": {1}}}, ["parameters", "set"]),
        ({"cpu": 4}, ["cpu", "'4'"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else "-".join(value),
)
def test_steps_that_can_not_be_sent(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Derive(dataset="tok", image="tok:3", **given)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({**_TABLE, "source": "s3://b/t/"}, ["no table", "metadata_loc", "table_name"]),
        ({"cluster_size": 3, "source": "s3://b", "snapshot_id": 7}, ["snapshot_id"]),
        ({"cluster_size": 3, "source": "delta+s3://b", "metadata_loc": "s3://m"}, ["a Delta table", "metadata_loc"]),
        ({"cluster_size": 3, "source": "delta+./events"}, ["'delta+./events'", "delta+s3://bucket/table"]),
        ({"cluster_size": 3, "source": "./train"}, ["'./train'", "s3://bucket/train/"]),
        ({"cluster_size": 3, "source": "s3://b/t/\n"}, ["s3://b/t/\\n", "s3://bucket/train/"]),
        ({"cluster_size": 3, "source": "s3://b", "storage_uri": "cache://a/b"}, ["source", "storage_uri"]),
        ({"source": "s3://b"}, ["cluster_size is missing"]),
        ({**_TABLE, "cluster_size": 1}, ["cluster_size", "1", "at least 2"]),
        ({**_TABLE, "cluster_size": "2.5"}, ["cluster_size", "'2.5'", "integer"]),
        ({**_TABLE, "cluster_size": None}, ["cluster_size is missing"]),
        ({**_TABLE, "schema_name": None}, ["schema_name", "storage_uri"]),
        ({**_TABLE, "storage_uri": "cache://a/b"}, ["names the table already"]),
        (
            {"cluster_size": 3, "metadata_loc": "s3://m", "storage_uri": "cache://a"},
            ["cache://<schema>/<table>", "'cache://a'"],
        ),
        ({**_TABLE, "metadata_loc": None}, ["metadata_loc", "catalog_uri"]),
        ({**_TABLE, "catalog_uri": "https://c"}, ["metadata_loc", "catalog_uri"]),
        ({**_TABLE, "head_cpu": 2}, ["head_cpu", "'2'"]),
        ({"storage_uri": "datacache://reviews", "cluster_size": 3}, ["datacache://reviews", "leave"]),
        (
            {"storage_uri": "datacache://reviews", "derive": Derive(dataset="tok", image="i")},
            ["datacache://reviews", "leave derive out"],
        ),
        ({"storage_uri": "datacache://reviews", "first_epoch": {"seed": 7}}, ["leave first_epoch out"]),
        ({"storage_uri": "datacache://reviews", "filter": "a = 1"}, ["datacache://reviews", "filter"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else "-".join(value),
)
def test_errors_name_the_field_and_the_fix(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        ArrowCacheDatasetInitializer(**given)
    assert all(word in str(refused.value) for word in words)


def _sent(bodies: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """The storageUri of the first TrainJob, and its variables that are not empty."""
    dataset = bodies[0]["spec"]["initializer"]["dataset"]
    return dataset["storageUri"], {e["name"]: e["value"] for e in dataset["env"] if e.get("value")}


def test_files_for_fluid(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    dataset = FluidDatasetInitializer(
        "s3://bucket/imagenet", "/data", cache_quota="4Gi", cache_replicas=2, warm_up=True, idle_ttl="30m"
    )
    client.train(
        runtime=RUNTIME, initializer=Initializer(dataset=dataset), trainer=CustomTrainerContainer(image="trainer:1")
    )
    assert _sent(bodies) == (
        "fluid+s3://bucket/imagenet",
        {
            "CLUSTER_SIZE": "1",
            "MOUNT_PATH": "/data",
            "CACHE_QUOTA": "4Gi",
            "CACHE_REPLICAS": "2",
            "WARM_UP": "true",
            "IDLE_TTL": "30m",
        },
    )


def test_a_datacache_of_files_is_named_alone(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, bodies = posted
    client.train(
        runtime=RUNTIME,
        initializer=Initializer(dataset=FluidDatasetInitializer("datacache://imagenet", ready_timeout="2h")),
        trainer=CustomTrainerContainer(image="trainer:1"),
    )
    assert _sent(bodies) == ("datacache://imagenet", {"CLUSTER_SIZE": "1", "READY_TIMEOUT": "2h"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"location": "bucket/imagenet"}, ["location", "'bucket/imagenet'", "s3://bucket"]),
        ({"location": "s3://b/f", "cache_quota": 4}, ["cache_quota", "'4'", "quantity"]),
        ({"location": "s3://b/f", "cache_runtime": "alluxio"}, ["cache_runtime", "'alluxio'", "Alluxio"]),
        ({"location": "s3://b/f", "cache_runtime": "Thin"}, ["cache_profile", "None", "'Thin'"]),
        ({"location": "s3://b/f", "cache_profile": "nfs"}, ["cache_profile", "'nfs'", "'Thin'"]),
        ({"location": "datacache://a", "mount_path": "/data"}, ["datacache://a", "mount_path"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else "-".join(value),
)
def test_errors_of_files_name_the_field_and_the_fix(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        FluidDatasetInitializer(**given)
    assert all(word in str(refused.value) for word in words)


def test_logs_of_the_caches_servers(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, _ = posted
    assert list(cache_logs(client, "reviews", server="head")) == ["shared-cache-0 starts", "shared-cache-0 is ready"]
    assert list(cache_logs(client, "reviews", server="node")) == [
        f"shared-cache-0-{n}  shared-cache-0-{n} {what}" for n in (1, 2) for what in ("starts", "is ready")
    ]
    followed = cache_logs(client, "reviews", server="shared-cache-0-2", follow=True)
    assert list(followed) == ["shared-cache-0-2 starts", "shared-cache-0-2 is ready"]


def test_logs_of_servers_that_are_not_there(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, _ = posted
    with pytest.raises(LookupError, match=r"team-b/shared has no pod 'node-7' now, but .*shared-cache-0-1"):
        cache_logs(client, "reviews", server="node-7")
    with pytest.raises(LookupError, match="TrainJob other of namespace team-a has no cache"):
        cache_logs(client, "other", server="head")
    with pytest.raises(ValueError, match="2 pods"):
        cache_logs(client, "reviews", server="node", follow=True)


def test_logs_of_one_of_several_caches(posted: tuple[TrainerClient, list[dict[str, Any]]]) -> None:
    client, _ = posted
    found = cache_logs(client, "reviews", server="head", cache="code")
    assert list(found) == ["code-cache-0 starts", "code-cache-0 is ready"]
    with pytest.raises(LookupError, match=r"has no cache 'books', which its storageUri must name as one of several"):
        cache_logs(client, "reviews", server="head", cache="books")
