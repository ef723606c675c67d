# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The phases of a TrainJob before its first batch, with times from Kubernetes and from the cache's logs."""
# pyright: reportMissingImports=false
# The Kubernetes client is in the training environment alone, which lint does without.

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from kubernetes import client


def of_cache(core: client.CoreV1Api, namespace: str, job: str) -> dict[str, float]:
    """Return the times, in seconds since the epoch, at which the last of the cache's pods completed each phase. They
    must run."""
    pods = _pods(core, namespace, f"datacache.kubeflow.org/cache={job}")
    heads = [pod for pod in pods if pod.metadata.labels["datacache.kubeflow.org/role"] == "head"]
    nodes = [pod for pod in pods if pod not in heads]
    return {
        "pods scheduled": max(_condition(pod, "PodScheduled") for pod in pods),
        "started": max(pod.status.container_statuses[0].state.running.started_at.timestamp() for pod in pods),
        "joined": max(_logged(core, head, "a data node joined", max) for head in heads),
        "loaded": max(_logged(core, node, "msg=loaded", min) for node in nodes),
    }


def of_wait(core: client.CoreV1Api, namespace: str, job: str) -> dict[str, float]:
    """Return the time at which the step that waits for the cache ended."""
    labels = f"jobset.sigs.k8s.io/jobset-name={job},jobset.sigs.k8s.io/replicatedjob-name=dataset-initializer"
    ends = [pod.status.container_statuses[0].state.terminated for pod in _pods(core, namespace, labels)]
    return {"released": max(end.finished_at.timestamp() for end in ends if end is not None)}


def table(created: float, times: dict[str, float]) -> Iterable[str]:
    """Return a line per phase: its end in seconds after the TrainJob's creation, and its duration."""
    before = created
    for part, time in times.items():
        yield f"  {part:<16} {time - created:5.1f} s  (+{max(time - before, 0):.1f})"
        before = max(before, time)


def _pods(core: client.CoreV1Api, namespace: str, labels: str) -> list[Any]:
    pods: Any = core.list_namespaced_pod(namespace, label_selector=labels)
    return pods.items


def _condition(pod: Any, kind: str) -> float:
    return next(c.last_transition_time.timestamp() for c in pod.status.conditions if c.type == kind)


def _logged(core: client.CoreV1Api, pod: Any, text: str, which: Callable[[Iterable[float]], float]) -> float:
    """Return the time of the first (which=min) or last (max) line with this text in a pod's log."""
    log: str = core.read_namespaced_pod_log(pod.metadata.name, pod.metadata.namespace, timestamps=True)
    lines = [line.split(" ", 1)[0] for line in log.splitlines() if text in line]
    # Python 3.10 parses neither nanoseconds nor "Z".
    return which(datetime.fromisoformat(line[:26].rstrip("Z") + "+00:00").timestamp() for line in lines)
