# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Caches under test: real processes on free loopback ports, which are always killed at the end."""

from __future__ import annotations

import os
import subprocess
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from client import Client
from lake import ALL, Made, Selection

from kit import caches
from kit.deadline import limit
from kit.process import lasting

# "local" is one process, "cluster" one per head and node; "grpc-go" is one process with the grpc-go transport.
Mode = Literal["local", "cluster", "grpc-go"]
MODES: tuple[Mode, ...] = ("local", "cluster")
WIRE_MODES: tuple[Mode, ...] = (*MODES, "grpc-go")


class Cache(caches.Cache):
    """A cache that tests read."""

    def client(self) -> Client:
        """A new client; the caller closes it."""
        return Client(self.endpoint)


class Caches:
    """Starts caches and keeps the last few running, so that tests of one table share one."""

    def __init__(self, binary: Path, folder: Path, keep: int = 6) -> None:
        self._binary, self._folder, self._keep = binary, folder, keep
        self._running: OrderedDict[Any, Cache] = OrderedDict()
        self._started = list[Cache]()

    def of(
        self,
        table: Made,
        selection: Selection = ALL,
        *,
        nodes: int = 2,
        mode: Mode = "local",
        flags: Sequence[str] = (),
    ) -> Cache:
        """A ready cache of the table, shared with other tests, which must not change it."""
        key = (table.metadata, selection, nodes, mode, tuple(flags))
        if key in self._running:
            self._running.move_to_end(key)
            return self._running[key]
        source = ["--metadata", table.metadata, *selection.flags(), *flags]
        cache = self.start(source, nodes=nodes, mode=mode, env=s3_environment(table.properties))
        lasting.update(process.pid for process in cache.processes.values())
        self._running[key] = cache
        while len(self._running) > self._keep:
            _, oldest = self._running.popitem(last=False)
            oldest.stop()
        cache.wait("Ready")
        return cache

    def start(
        self, source: Sequence[str], *, nodes: int = 2, mode: Mode = "local", env: Mapping[str, str] | None = None
    ) -> Cache:
        """Starts a cache and returns without waiting for it. The caller stops it, or close does."""
        cache = Cache(
            self._binary,
            self._folder / f"cache-{len(self._started) + 1}",
            [*source, *(["--transport", "grpc"] if mode == "grpc-go" else [])],
            nodes=nodes,
            mode="cluster" if mode == "cluster" else "local",
            env={**plain_environment(), **(env or {})},
        )
        self._started.append(cache)
        cache.start()
        return cache

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the binary to its end."""
        own = {**plain_environment(), **(env or {})}
        return subprocess.run(
            [self._binary, *arguments], capture_output=True, text=True, env=own, timeout=limit(), check=False
        )

    def close(self) -> None:
        """Stops all caches that still run."""
        for cache in self._started:
            cache.stop()


def s3_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Converts pyiceberg's S3 properties to environment variables of AWS SDKs."""
    names = {
        "s3.endpoint": "AWS_ENDPOINT_URL_S3",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.region": "AWS_REGION",
    }
    return {names[key]: value for key, value in properties.items() if key in names}


def plain_environment() -> dict[str, str]:
    """The environment without variables that cacheserver or a store's SDK would use."""
    ours = (
        "METADATA_LOC",
        "ACCESS_FILE",
        "FILES",
        "DELTA",
        "PARTITIONS",
        "PUTS",
        "TABLE_NAME",
        "SCHEMA_NAME",
        "TABLE_COLUMNS",
        "FILTER",
        "MEMORY_LIMIT",
        "FILTER_MEMORY",
        "FIRST_EPOCH",
        "SPILL_DIR",
        "SPILL_LIMIT",
        "PUT_LIMIT",
        "PUT_LIMIT_PER_WRITER",
        "PUT_KEEP",
        "LISTEN",
        "HTTP_LISTEN",
        "TRANSPORT",
    )
    strange = ("AWS_", "LWS_", "CATALOG_", "SNAPSHOT_", "CACHE_", "TLS_", "LOG_")
    return {k: v for k, v in os.environ.items() if k not in ours and not k.startswith(strange)}
