# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Uses the Kubeflow SDK for the Go tests beside it: reads calls from standard input and writes answers.

A call is a line [VERB, NAMESPACE, ARGUMENT], its answer a line of JSON. One process serves all tests, as importing the
SDK takes seconds.

    train  create a TrainJob with ARGUMENT's fields; answers {"name": ...}, or {"refused": the error message}
    look   what the SDK reports of the TrainJob ARGUMENT: status, steps, logs, events, its cache

Uses the API server in KUBECONFIG. Runs in the training environment (make training-venv), with python/src on PYTHONPATH.
"""
# pyright: reportMissingImports=false
# The SDK is in the training environment alone, which lint does without.

import json
import os
import sys
from typing import Any

import bert
import functions
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, DataCacheInitializer, Initializer, TrainerClient
from kubeflow.trainer.options import Annotations, Name

from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, Derive, FluidDatasetInitializer, cache_status

INITIALIZERS = {
    "DataCacheInitializer": DataCacheInitializer,
    "Arrow": ArrowCacheDatasetInitializer,
    "Fluid": FluidDatasetInitializer,
}


def train(client: TrainerClient, job: dict[str, Any]) -> dict[str, Any]:
    """Create a TrainJob; return its name, or the error message if it is rejected."""
    if derive := job["dataset"].get("derive"):
        job["dataset"]["derive"] = Derive(**{**derive, "fn": getattr(functions, derive["fn"])})
    dataset = INITIALIZERS[job["initializer"]](**job["dataset"])
    trainer = CustomTrainer(
        func=getattr(bert, job["func"], None) or getattr(functions, job["func"]),
        func_args=job.get("args"),
        image=job["image"],
        num_nodes=job["nodes"],
        env=job.get("env"),
    )
    options = [Name(job["name"]), Annotations(job.get("annotations") or {})]
    if job.get("volumes"):
        options.append(bert.volumes(job["volumes"]))
    try:
        name = client.train(
            runtime=job["runtime"], initializer=Initializer(dataset=dataset), trainer=trainer, options=options
        )
    except RuntimeError as e:
        return {"refused": f"{e}: {e.__cause__}"}
    return {"name": name}


def look(client: TrainerClient, name: str) -> dict[str, Any]:
    """Return all that the SDK reports of a TrainJob."""
    job = client.get_job(name)
    events = [e for e in client.get_job_events(name) if e.involved_object_kind == "TrainJob"]
    try:
        cache = str(cache_status(client, name))
    except LookupError as e:
        cache = str(e)
    return {
        "status": job.status,
        "steps": {step.name: step.status for step in job.steps},
        "logs": {step.name: list(client.get_job_logs(name, step=step.name)) for step in job.steps},
        "events": [f"{e.reason}: {e.message}" for e in events],
        "cache": cache,
    }


def main() -> None:
    """Answer calls until the end of input."""
    answers, sys.stdout = sys.stdout, sys.stderr  # keeps prints of libraries out of the answers
    for line in sys.stdin:
        verb, namespace, argument = json.loads(line)
        backend = KubernetesBackendConfig(namespace=namespace, config_file=os.environ["KUBECONFIG"])
        answer = {"train": train, "look": look}[verb](TrainerClient(backend), argument)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
