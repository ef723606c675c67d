# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""notebook.py NAMESPACE: uses the Kubeflow SDK as in a notebook, and prints results as JSON for the Go test beside it.

Uses the API server in KUBECONFIG. Runs in the training environment (make training-venv), with python/src on PYTHONPATH.
"""
# pyright: reportMissingImports=false
# The SDK is in the training environment alone, which lint does without.

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, DataCacheInitializer, Initializer, TrainerClient
from kubeflow.trainer.options import Name

from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, cache_logs, cache_status

METADATA = "s3://lake/reviews/metadata/00001.metadata.json"
WAIT = 120  # time limit in seconds for actions of the controllers

T = TypeVar("T")


def train() -> None:
    """A training function that never runs."""


def eventually(ask: Callable[[], T], good: Callable[[T], bool]) -> T:
    """Repeat a call until its result is good; return the last result after WAIT seconds."""
    end = time.monotonic() + WAIT
    while not good(answer := ask()) and time.monotonic() < end:
        time.sleep(0.2)  # noqa: TID251 - runs without the kit
    return answer


def by_hand(client: TrainerClient, namespace: str, metadata: dict[str, str], dataset: dict[str, Any]) -> str:
    """Create a TrainJob from a complete manifest, as kubectl would; return its name."""
    body = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {"numNodes": 1},
            "initializer": {"dataset": dataset},
        },
    }
    backend: Any = client.backend
    made = backend.custom_api.create_namespaced_custom_object(
        "trainer.kubeflow.org", "v1alpha1", namespace, "trainjobs", body
    )
    return made["metadata"]["name"]


def create(client: TrainerClient, namespace: str) -> dict[str, str]:
    """Create a TrainJob of every form; return their names by what they show."""
    drop_in = DataCacheInitializer(storage_uri="cache://demo/reviews", metadata_loc=METADATA, num_data_nodes=2)
    arrow = ArrowCacheDatasetInitializer(
        cluster_size=3,
        metadata_loc=METADATA,
        schema_name="demo",
        table_name="reviews",
        columns=["id"],
        filter="id >= 0",
    )
    shared = ArrowCacheDatasetInitializer(
        cluster_size=3,
        metadata_loc=METADATA,
        storage_uri="cache://demo/reviews",
        cache_scope="namespace",
        idle_ttl="1h",
    )
    fields = {"SCHEMA_NAME": "demo", "TABLE_NAME": "reviews", "METADATA_LOC": METADATA, "CLUSTER_SIZE": "3"}
    kep = {"env": [{"name": name, "value": value} for name, value in fields.items()]}
    trainer = CustomTrainer(func=train, num_nodes=2)

    per_pod = client.get_runtime("torchft-with-cache")
    per_pod.trainer.set_command(("env", "PET_NNODES=1", "PET_STANDALONE=1", *per_pod.trainer.command))

    def run(initializer: DataCacheInitializer, runtime: Any, *options: object) -> str:
        return client.train(
            runtime=runtime, initializer=Initializer(dataset=initializer), trainer=trainer, options=list(options)
        )

    return {
        "a runtime with a cache step": run(drop_in, "torch-distributed-with-cache", Name("step")),
        "a runtime without one": run(arrow, "torch-distributed", Name("without-step")),
        "no runtime, a name that the SDK chose": run(drop_in, None),
        "a cache of the namespace": run(shared, "torch-distributed-with-cache", Name("shared")),
        "torchrun in each pod": run(drop_in, per_pod, Name("torchft")),
        "the KEP's variables": by_hand(client, namespace, {"name": "kep"}, kep),
        "a generated name": by_hand(client, namespace, {"generateName": "made-"}, kep),
    }


def look(client: TrainerClient, name: str) -> dict[str, Any]:
    """Return what the SDK reports of a TrainJob once it runs and its cache is ready."""
    followed = list(cache_logs(client, name, follow=True))  # called before the pod of the wait exists
    running = client.wait_for_job_status(name, status={"Running"}, timeout=WAIT, polling_interval=1)
    status = eventually(lambda: cache_status(client, name), lambda s: s.state == "Ready")
    reasons = eventually(
        lambda: sorted({e.reason for e in client.get_job_events(name) if e.involved_object_kind == "TrainJob"}),
        lambda reasons: {"CacheProvisioning", "CacheReady"} <= set(reasons),
    )
    return {
        "name": name,
        "status": running.status,
        "runtime": running.runtime.name,
        "steps": {step.name: step.status for step in client.get_job(name).steps},
        "log": list(client.get_job_logs(name, step="dataset-initializer")),
        "followed": followed,
        "head": list(cache_logs(client, name, server="head")),
        "nodes": list(cache_logs(client, name, server="node")),
        "reasons": reasons,
        "cache": {"state": status.state, "rows": status.rows, "endpoint": status.endpoint, "text": str(status)},
    }


def refusal(client: TrainerClient) -> str:
    """Return the error that the user of a rejected TrainJob sees."""
    wrong = DataCacheInitializer(storage_uri="cache:///reviews", metadata_loc=METADATA, num_data_nodes=2)
    try:
        client.train(
            runtime="torch-distributed", initializer=Initializer(dataset=wrong), trainer=CustomTrainer(func=train)
        )
    except RuntimeError as e:
        return f"{e}: {e.__cause__}"
    return ""


def main(namespace: str) -> None:
    """Print what the SDK reports of all TrainJobs."""
    client = TrainerClient(KubernetesBackendConfig(namespace=namespace, config_file=os.environ["KUBECONFIG"]))
    names = create(client, namespace)
    jobs = {form: look(client, name) for form, name in names.items()}
    listed = {job.name: job.status for job in client.list_jobs()}
    client.delete_job(names["the KEP's variables"])
    told = {
        "jobs": jobs,
        "listed": listed,
        "runtimes": sorted(runtime.name for runtime in client.list_runtimes()),
        "refusal": refusal(client),
    }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
