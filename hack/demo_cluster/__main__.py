# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""python -m demo_cluster: see __init__.py, or --help."""
# pyright: reportMissingImports=false
# The SDK is in the training environment alone, which lint does without.

import argparse
import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, Initializer, TrainerClient
from kubeflow.trainer.options import Annotations
from kubernetes import client, config, stream

from demo_cluster import phases, table
from demo_cluster.train import alone, train
from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, cache_logs, step_logs

NAMESPACE = "demo"
LIMIT = 600  # time limit of each wait in seconds
GATE = "dataset-initializer"


def main() -> int:
    """Run the demo; return 0 if the TrainJob completed."""
    args = _arguments()
    config.load_kube_config(os.environ["KUBECONFIG"])
    core = client.CoreV1Api()
    keys = _namespace(core)
    print(f"table: {args.rows:,} rows of {table.FEATURES} features and a class, into the object store", flush=True)
    metadata = table.write(args.rows, keys)
    trainer = TrainerClient(KubernetesBackendConfig(namespace=NAMESPACE, config_file=os.environ["KUBECONFIG"]))
    created = time.time()
    job = _submit(trainer, metadata, args)
    admitted = time.time()
    print(f"TrainJob {NAMESPACE}/{job} at {time.strftime('%T')}", flush=True)
    try:
        code = _watch(trainer, core, job, created, {"admitted": admitted}, args)
    finally:
        trainer.delete_job(job)
    if args.compare and code == 0:
        _compare(trainer, metadata, args)
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo_cluster", description="Train on a cluster from a cached Iceberg table.")
    parser.add_argument("--image", required=True, help="the image to train in: Python with the loader")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the table (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="training pods (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs (default: %(default)s)")
    parser.add_argument(
        "--compare",
        type=int,
        default=0,
        metavar="N",
        help="time N times more a TrainJob without a cache, and one that shares a cache which is loaded",
    )
    return parser.parse_args()


def _namespace(core: client.CoreV1Api) -> dict[str, str]:
    """Create the namespace with the object store's keys if it does not exist; return the keys."""
    secret: Any = core.read_namespaced_secret("store", "object-store")
    wanted: tuple[tuple[Any, list[Any]], ...] = (
        (core.create_namespace, [client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE))]),
        (
            core.create_namespaced_secret,
            [NAMESPACE, client.V1Secret(metadata=client.V1ObjectMeta(name="store"), data=secret.data)],
        ),
    )
    for create, arguments in wanted:
        try:
            create(*arguments)
        except client.ApiException as e:
            if e.reason != "Conflict":
                raise
    return {name: base64.b64decode(value).decode() for name, value in secret.data.items()}


def _submit(trainer: TrainerClient, metadata: str, args: argparse.Namespace, scope: str = "job") -> str:
    dataset = ArrowCacheDatasetInitializer(
        cluster_size=3,
        metadata_loc=metadata,
        schema_name="demo",
        table_name="points",
        cache_scope=scope,
        head_cpu="50m",
        head_mem="128Mi",
        worker_cpu="100m",
        worker_mem="512Mi",
    )
    return trainer.train(
        runtime="torch-distributed",
        initializer=Initializer(dataset=dataset),
        trainer=CustomTrainer(
            func=train,
            func_args={"global_batch": 1024, "epochs": args.epochs},
            image=args.image,
            num_nodes=args.ranks,
        ),
        options=[Annotations({"datacache.kubeflow.org/credentials-secret": "store"})],
    )


def _compare(trainer: TrainerClient, metadata: str, args: argparse.Namespace) -> None:
    """Print the time to the first batch of a TrainJob without a cache, and with a shared cache that is loaded."""
    plain = CustomTrainer(func=alone, image=args.image, num_nodes=args.ranks)
    warmed = _first_batch(trainer, lambda: _submit(trainer, metadata, args, "namespace"), args.ranks)
    print(f"\n  shared cache, loaded for this job: first batch after {warmed:.1f} s", flush=True)
    for _ in range(args.compare):
        without = _first_batch(trainer, lambda: trainer.train(runtime="torch-distributed", trainer=plain), args.ranks)
        warm = _first_batch(trainer, lambda: _submit(trainer, metadata, args, "namespace"), args.ranks)
        print(
            f"  without a cache {without:5.1f} s, with a loaded one {warm:5.1f} s (+{warm - without:.1f})", flush=True
        )


def _first_batch(trainer: TrainerClient, submit: Callable[[], str], ranks: int) -> float:
    """Return the seconds from a TrainJob's creation to the first batch of its first rank."""
    created = time.time()
    job = submit()
    try:
        trainer.wait_for_job_status(job, timeout=LIMIT, polling_interval=1)
        logs = [line for rank in range(ranks) for line in trainer.get_job_logs(job, step=f"node-{rank}")]
        return min(json.loads(line)["first_batch"] for line in logs if line.startswith("{")) - created
    finally:
        trainer.delete_job(job)


def _watch(
    trainer: TrainerClient,
    core: client.CoreV1Api,
    job: str,
    created: float,
    times: dict[str, float],
    args: argparse.Namespace,
) -> int:
    """Print the TrainJob's logs while it runs, then the numbers."""
    for line in cache_logs(trainer, job, follow=True):
        print(f"  {GATE}: {line}", flush=True)
    times |= phases.of_cache(core, NAMESPACE, job)
    read = sum(_counter(core, pod, "datacache_load_read_bytes_total") for pod in _cache_pods(core, job))
    told = []
    for rank in range(args.ranks):
        step = f"node-{rank}"
        for line in step_logs(trainer, job, step):
            if line.startswith("{"):
                told.append(json.loads(line))
            else:
                print(f"  {step}: {line}", flush=True)
    status = trainer.wait_for_job_status(job, status={"Complete", "Failed"}, timeout=LIMIT, polling_interval=1).status
    print(f"\nTrainJob {job} is {status} after {time.time() - created:.1f} s", flush=True)
    if status != "Complete":
        return 1
    rows, size = (sum(each[what] for each in told) for what in ("rows", "bytes"))
    seconds = max(each["seconds"] for each in told)
    times |= phases.of_wait(core, NAMESPACE, job)
    times["first batch"] = min(each["first_batch"] for each in told)
    print("\n".join(phases.table(created, times)))
    print(f"  read from the store    {read / 1e6:.1f} MB, once")
    print(f"  streamed to training   {size / 1e6:.1f} MB, {rows:,} rows in {args.epochs} epochs")
    print(
        f"  speed                  {rows / seconds:,.0f} rows/s over {args.ranks} ranks, training included", flush=True
    )
    return 0


def _cache_pods(core: client.CoreV1Api, job: str) -> Iterator[str]:
    """Return the names of the cache's pods."""
    pods: Any = core.list_namespaced_pod(NAMESPACE, label_selector=f"datacache.kubeflow.org/cache={job}")
    return (pod.metadata.name for pod in pods.items)


def _counter(core: client.CoreV1Api, pod: str, name: str) -> float:
    """Return the value of a counter of a cache's pod. The pod's NetworkPolicy does not let this process in directly."""
    forward = stream.portforward(core.connect_get_namespaced_pod_portforward, pod, NAMESPACE, ports="8080")
    with contextlib.closing(forward.socket(8080)) as connection:
        connection.setblocking(True)
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    values = [line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")]
    return sum(map(float, values))


if __name__ == "__main__":
    sys.exit(main())
