# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a TrainJob's cache is doing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubeflow.trainer import TrainerClient
from kubernetes.client import ApiException

_GROUP, _VERSION, _PLURAL = "datacache.kubeflow.org", "v1alpha1", "datacaches"
_USES = "datacache.kubeflow.org/uses"  # on a TrainJob's Service: the DataCache, as namespace/name, that it leads to


@dataclass(frozen=True)
class CacheStatus:
    """What the controller saw last of a DataCache. Counts are of one copy of the table; None until they are known."""

    namespace: str
    name: str
    state: str
    """Pending, Planning, Loading, Ready, Degraded, Failed, Released or a word of a later release; "" before the controller looked."""
    reason: str
    """Why it is not Ready, in words; "" when it is."""
    loaded_percent: int | None
    rows: int | None
    bytes: int | None
    snapshot_id: int | None
    endpoint: str
    """Where clients connect to, as grpc://host:port; "" until it is made."""
    used_by: tuple[str, ...]
    """The TrainJobs that use it now, as namespace/name."""

    def __str__(self) -> str:
        loaded = "" if self.loaded_percent is None else f" {self.loaded_percent}%"
        rows = "" if self.rows is None else f", {self.rows} rows"
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB"
        why = f": {self.reason}" if self.reason else ""
        return f"{self.namespace}/{self.name} {self.state}{loaded}{rows}{size}{why}"


def cache_logs(client: TrainerClient, job: str, *, follow: bool = False) -> Iterator[str]:
    """Give the lines that a TrainJob printed while it waited for its cache; with follow, until that ends.

    There are none before the step's pod runs, and none again once the TrainJob is deleted.
    """
    return client.get_job_logs(name=job, step="dataset-initializer", follow=follow)


def cache_status(client: TrainerClient, job: str) -> CacheStatus:
    """Look at the cache of a TrainJob of the client's namespace, its own or the one that it shares.

    Raises:
        LookupError: the TrainJob has no cache: it asks for none, or datacache's controller hasn't seen it yet.
        kubernetes.client.ApiException: the API server refuses; reading needs the right to get services and datacaches.
    """
    backend: Any = client.backend
    if not hasattr(backend, "custom_api"):
        raise LookupError("only TrainJobs on Kubernetes have a cache: use TrainerClient with its Kubernetes backend")
    try:
        service = backend.core_api.read_namespaced_service(name=f"{job}-cache-service", namespace=backend.namespace)
        used = (service.metadata.annotations or {}).get(_USES, f"{backend.namespace}/{job}")
        namespace, _, name = used.partition("/")
        found = backend.custom_api.get_namespaced_custom_object(_GROUP, _VERSION, namespace, _PLURAL, name)
    except ApiException as e:
        if e.status != 404:
            raise
        raise LookupError(
            f"TrainJob {job} of namespace {backend.namespace} has no cache (yet): see client.get_job_events({job!r})"
        ) from e
    return _status(found)


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
