# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Status and logs of a TrainJob's cache."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubeflow.trainer import TrainerClient
from kubernetes.client import ApiException
from kubernetes.watch import Watch

from kubeflow_datacache.services import service_name

_GROUP, _VERSION, _PLURAL = "datacache.kubeflow.org", "v1alpha1", "datacaches"
_CACHE, _ROLE = "datacache.kubeflow.org/cache", "datacache.kubeflow.org/role"  # labels of a cache's pods
# annotation of a TrainJob's Service: namespace/name of the DataCache that it points to
_USES = "datacache.kubeflow.org/uses"
_LOOK_SECONDS = 1.0  # between two looks whether a step has begun


@dataclass(frozen=True)
class CacheStatus:
    """The status of a DataCache, as last reported by its controller. Counts are for one copy of the table; None if
    unknown."""

    namespace: str
    name: str
    state: str
    """Pending, Planning, Loading, Ready, Degraded, Failed, Released, or a state of a newer release; "" before the first
    report."""
    reason: str
    """The reason why it is not Ready; "" if it is Ready."""
    loaded_percent: int | None
    rows: int | None
    bytes: int | None
    snapshot_id: int | None
    endpoint: str
    """The address for clients, as grpc+tls://host:port or grpc://host:port; "" until the Service exists."""
    used_by: tuple[str, ...]
    """The TrainJobs that use it now, as namespace/name."""

    def __str__(self) -> str:
        loaded = "" if self.loaded_percent is None else f" {self.loaded_percent}%"
        rows = "" if self.rows is None else f", {self.rows} rows"
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.namespace}/{self.name} {self.state}{loaded}{rows}{size}{why}"


def step_logs(client: TrainerClient, job: str, step: str = "node-0") -> Iterator[str]:
    """Yields the log of a TrainJob's step until it ends. The step need not have begun yet.

    The SDK's get_job_logs(follow=True) yields nothing of a step whose pod has not started yet. If the TrainJob ends
    without the step, so does the log.

    Args:
        client: a client of the TrainJob's namespace.
        job: the TrainJob's name.
        step: "node-0", "node-1" and so on for the training, "dataset-initializer" for the wait for the caches.
    """
    while True:
        now = client.get_job(job)
        if any(each.name == step and each.status not in (None, "Pending") for each in now.steps):
            yield from client.get_job_logs(name=job, step=step, follow=True)
            return
        if now.status in ("Complete", "Failed"):
            return
        time.sleep(_LOOK_SECONDS)


def cache_logs(
    client: TrainerClient, job: str, *, follow: bool = False, server: str | None = None, cache: str | None = None
) -> Iterator[str]:
    """Yields the log of a TrainJob's wait for its caches, or the logs of a cache's servers.

    The log of the wait is available from the start of its pod until the TrainJob is deleted, the servers' logs while
    their pods exist.

    Args:
        client: a client of the TrainJob's namespace.
        job: the TrainJob's name.
        follow: whether to continue until the pod ends, for one pod only. The log of the wait may be followed before
            its pod starts.
        server: None for the log of the wait; "head", "node" or a pod's name for servers. With several pods, each line
            begins with the pod's name.
        cache: which cache's servers, if the TrainJob's storageUri names several: its name as written there; None for
            the first or only one.

    Raises:
        LookupError: the TrainJob has no such cache, or the cache has no such pod now; the message lists its pods.
        ValueError: follow was given for several pods.
        kubernetes.client.ApiException: the API server denied the request; logs of servers need the rights to list pods
            and to get pods/log.
    """
    if server is None:
        wait = "dataset-initializer"
        return step_logs(client, job, wait) if follow else client.get_job_logs(name=job, step=wait)
    backend = _backend(client)
    namespace, name = _cache_of(backend, job, cache)
    pods = {
        pod.metadata.name: pod.metadata.labels.get(_ROLE, "")
        for pod in backend.core_api.list_namespaced_pod(namespace, label_selector=f"{_CACHE}={name}").items
    }
    chosen = sorted(pod for pod, role in pods.items() if server in (pod, role))
    if not chosen:
        raise LookupError(f"cache {namespace}/{name} has no pod {server!r} now, but {sorted(pods) or 'none at all'}")
    if follow and len(chosen) > 1:
        raise ValueError(f"{server!r} is {len(chosen)} pods, of which one can be followed: name one of {chosen}")
    return _pod_logs(backend, namespace, chosen, follow)


def _pod_logs(backend: Any, namespace: str, pods: list[str], follow: bool) -> Iterator[str]:
    for pod in pods:
        if follow:
            lines = Watch().stream(backend.core_api.read_namespaced_pod_log, name=pod, namespace=namespace, follow=True)
            yield from map(str, lines)
            continue
        prefix = f"{pod}  " if len(pods) > 1 else ""
        for line in backend.core_api.read_namespaced_pod_log(name=pod, namespace=namespace).splitlines():
            yield prefix + line


def cache_status(client: TrainerClient, job: str, *, cache: str | None = None) -> CacheStatus:
    """Returns the status of the cache that a TrainJob in the client's namespace uses, its own or a shared one.

    cache: which one, if the TrainJob's storageUri names several: its name as written there; None is the first or only
    one.

    Raises:
        LookupError: the TrainJob has no such cache, because it requests none or the controller has not seen it yet.
        kubernetes.client.ApiException: the API server denied the request; it needs the right to get services and
            datacaches.
    """
    backend = _backend(client)
    namespace, name = _cache_of(backend, job, cache)
    try:
        found = backend.custom_api.get_namespaced_custom_object(_GROUP, _VERSION, namespace, _PLURAL, name)
    except ApiException as e:
        raise _explained(e, backend, job, cache) from e
    return _status(found)


def _backend(client: TrainerClient) -> Any:
    backend: Any = client.backend
    if not hasattr(backend, "custom_api"):
        raise LookupError("only TrainJobs on Kubernetes have a cache: use TrainerClient with its Kubernetes backend")
    return backend


def _cache_of(backend: Any, job: str, cache: str | None) -> tuple[str, str]:
    """Namespace and name of the DataCache that a TrainJob uses."""
    try:
        service = backend.core_api.read_namespaced_service(service_name(job, cache), backend.namespace)
    except ApiException as e:
        raise _explained(e, backend, job, cache) from e
    used = (service.metadata.annotations or {}).get(_USES, f"{backend.namespace}/{job}")
    namespace, _, name = used.partition("/")
    return namespace, name


def _explained(error: ApiException, backend: Any, job: str, cache: str | None) -> Exception:
    """A LookupError if something was not found (404); otherwise the same error."""
    if error.status != 404:
        return error
    which = "" if cache is None else f" {cache!r}, which its storageUri must name as one of several"
    return LookupError(
        f"TrainJob {job} of namespace {backend.namespace} has no cache{which} (yet): see client.get_job_events({job!r})"
    )


def _status(found: dict[str, Any]) -> CacheStatus:
    status: dict[str, Any] = found.get("status", {})
    ready: dict[str, Any] = next((c for c in status.get("conditions", []) if c["type"] == "Ready"), {})
    return CacheStatus(
        namespace=found["metadata"]["namespace"],
        name=found["metadata"]["name"],
        state=status.get("state", ""),
        reason="" if ready.get("status") == "True" else ready.get("message", ""),
        loaded_percent=status.get("loadedPercent"),
        rows=status.get("rows"),
        bytes=status.get("bytes"),
        snapshot_id=int(status["snapshot"]) if status.get("snapshot") else None,
        endpoint=status.get("endpoint", ""),
        used_by=tuple(status.get("usedBy", ())),
    )
