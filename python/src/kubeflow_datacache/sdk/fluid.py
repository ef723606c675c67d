# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The dataset initializer that mounts files, cached by Fluid, into a TrainJob."""

from dataclasses import dataclass

from kubeflow.trainer import DataCacheInitializer

from kubeflow_datacache.sdk.quantity import quantity

_RUNTIMES = ("Alluxio", "JuiceFS", "Jindo", "GooseFS", "Thin")


@dataclass(init=False)
class FluidDatasetInitializer(DataCacheInitializer):
    """Files that Fluid caches near a TrainJob and mounts into each of its containers.

    The SDK turns every field into an environment variable of spec.initializer.dataset, named like the field in upper
    case (kubeflow 0.5.0 backends/kubernetes/utils.py). datacache's webhook validates these variables. TrainJobs of a
    namespace that name the same files, cached in the same way, share one cache.

    Args:
        location: the files, as Fluid names them: "s3://bucket/imagenet", "pvc://claim/folder", "https://host/files"; or
            "datacache://<name>" for an existing DataCache of the namespace, and then no other argument but
            ready_timeout.
        mount_path: where containers find the files; None is /workspace/dataset.
        sub_dir_name: the folder below mount_path in which they are found; None is mount_path itself.
        cache_quota: how many bytes of files a worker keeps, a Kubernetes quantity such as "4Gi". It may be set by the
            platform; cache_runtime "Thin" needs none.
        cache_medium: "MEM" (the default), "SSD" or "HDD".
        cache_path: the folder on the node; None is /dev/shm with "MEM", the others need one.
        cache_replicas: the number of workers.
        cache_runtime: "Alluxio" (the default), "JuiceFS", "Jindo", "GooseFS" or "Thin".
        cache_profile: the ThinRuntimeProfile of "Thin".
        cache_name: the name of the DataCache; None is derived from the files and the way they are cached.
        warm_up: whether every file is read once before the TrainJob starts.
        idle_ttl: how long the files stay cached after the last TrainJob, such as "30m" or "10h".
        ready_timeout: how long the TrainJob waits for the files, such as "2h".

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is invalid; the message says what is expected.
    """

    mount_path: str | None
    sub_dir_name: str | None
    cache_quota: str | None
    cache_medium: str | None
    cache_path: str | None
    cache_replicas: str | None
    cache_runtime: str | None
    cache_profile: str | None
    cache_name: str | None
    warm_up: str | None
    idle_ttl: str | None
    ready_timeout: str | None

    def __init__(
        self,
        location: str,
        mount_path: str | None = None,
        *,
        sub_dir_name: str | None = None,
        cache_quota: str | None = None,
        cache_medium: str | None = None,
        cache_path: str | None = None,
        cache_replicas: int | None = None,
        cache_runtime: str | None = None,
        cache_profile: str | None = None,
        cache_name: str | None = None,
        warm_up: bool | None = None,
        idle_ttl: str | None = None,
        ready_timeout: str | None = None,
    ) -> None:
        self.mount_path, self.sub_dir_name = mount_path, sub_dir_name
        self.cache_quota = quantity("cache_quota", cache_quota)
        self.cache_medium, self.cache_path = cache_medium, cache_path
        self.cache_replicas = None if cache_replicas is None else str(cache_replicas)
        self.cache_runtime, self.cache_profile, self.cache_name = cache_runtime, cache_profile, cache_name
        self.warm_up = None if warm_up is None else str(warm_up).lower()
        self.idle_ttl, self.ready_timeout = idle_ttl, ready_timeout
        # The SDK always sends METADATA_LOC, and CLUSTER_SIZE = num_data_nodes + 1; files need neither.
        self.metadata_loc, self.num_data_nodes = "", 0
        self.head_cpu = self.head_mem = self.worker_cpu = self.worker_mem = self.iam_role = None
        self.storage_uri = self._location(location)
        if cache_runtime is not None and cache_runtime not in _RUNTIMES:
            raise ValueError(f"cache_runtime is {cache_runtime!r}: it must be one of {', '.join(_RUNTIMES)}")
        if (cache_runtime == "Thin") != (cache_profile is not None):
            raise ValueError(
                f"cache_profile is {cache_profile!r}: it must be given with cache_runtime='Thin', and only then"
            )

    def __post_init__(self) -> None:
        """Replaces the SDK's check, which accepts only cache:// and at least two data nodes."""

    def _location(self, location: str) -> str:
        scheme, found, rest = location.partition("://")
        if not scheme or not found or not rest:
            raise ValueError(
                f"location is {location!r}: it must be <scheme>://<location>, such as s3://bucket/imagenet, or"
                " datacache://<name>"
            )
        if scheme != "datacache":
            return f"fluid+{location.removeprefix('fluid+')}"
        ours = set(FluidDatasetInitializer.__annotations__) - {"ready_timeout"}
        given = sorted(name for name in ours if getattr(self, name) is not None)
        if given:
            raise ValueError(
                f"{location} names a DataCache, which says itself what it caches and where it is mounted:"
                f" leave {', '.join(given)} out"
            )
        return location
