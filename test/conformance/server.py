# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Caches under test: real processes on free loopback ports, which are always killed at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from client import Client
from lake import ALL, Made, Selection

from kit.ports import free_port

# "local" is one process, "cluster" one per head and node; "grpc-go" is one process with the grpc-go transport.
Mode = Literal["local", "cluster", "grpc-go"]
MODES: tuple[Mode, ...] = ("local", "cluster")
WIRE_MODES: tuple[Mode, ...] = (*MODES, "grpc-go")

_READY_LIMIT = 180.0
_STOP_LIMIT = 60.0
_FAILED = 3  # exit code of a local cache that failed


@dataclass
class Cache:
    """A running cache: its processes, the head's address, and the logs."""

    endpoint: str
    http: str
    logs: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: dict[str, Callable[[], None]] = field(default_factory=dict)
    # For each restarted data node, the number of restarts in /status from which the head knows the new process.
    _restarts: dict[int, int] = field(default_factory=dict)

    def client(self) -> Client:
        """A new client; the caller closes it."""
        return Client(self.endpoint)

    def get(self, path: str) -> tuple[int, str]:
        """HTTP GET on the head: status code and body."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """The head's /status."""
        code, body = self.get("/status")
        assert code == 200, f"/status answered {code}: {body}"
        return json.loads(body)

    def wait(self, *states: str, limit: float = _READY_LIMIT) -> dict[str, Any]:
        """Waits until the cache is in one of the states, and returns its status. Raises if it ends in another one.

        A status is ignored if it is older than the last restart. A local cache exits when it fails; the status then has
        the state and the reason only.
        """
        begun, last = time.monotonic(), None
        while time.monotonic() - begun < limit:
            for name, process in self.processes.items():
                if process.poll() == _FAILED and "Failed" in states:
                    return {"state": "Failed", "reason": self.log(name).rpartition("error: the cache failed: ")[2]}
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended with {process.returncode}: {self.log(name)}")
            with contextlib.suppress(OSError):
                last = self.status()
                seen = {node["index"]: node["restarts"] for node in last["nodes"]}
                current = all(seen[node] >= least for node, least in self._restarts.items())
                if current and last["state"] in states:
                    return last
                if current and last["state"] == "Failed":
                    break
            time.sleep(0.01)
        raise AssertionError(
            f"the cache is not {' or '.join(states)}, but {last}: {self.log(next(iter(self.processes)))}"
        )

    def log(self, name: str) -> str:
        """The last log lines of a process."""
        return (self.logs / f"{name}.log").read_text(errors="replace")[-3000:]

    def output(self, name: str) -> str:
        """The standard output of a process."""
        return (self.logs / f"{name}.out").read_text()

    def restart(self, *names: str) -> None:
        """Kills processes, and then starts new ones in their places."""
        with contextlib.suppress(OSError):  # the head may not be running
            for node in self.status()["nodes"]:
                if f"node-{node['index']}" in names:
                    self._restarts[node["index"]] = node["restarts"] + 1
        if "head" in names:  # a new head counts from 0
            self._restarts.clear()
        for name in names:
            self.processes[name].kill()
            self.processes[name].wait()
        for name in names:
            self.starts[name]()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> dict[str, int]:
        """Signals all processes and returns their exit codes; kills those that do not exit."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(how)
        codes, deadline = {}, time.monotonic() + _STOP_LIMIT
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes


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
        self._running[key] = cache
        while len(self._running) > self._keep:
            _, oldest = self._running.popitem(last=False)
            oldest.stop(signal.SIGKILL)
        cache.wait("Ready")
        return cache

    def start(
        self, source: Sequence[str], *, nodes: int = 2, mode: Mode = "local", env: Mapping[str, str] | None = None
    ) -> Cache:
        """Starts a cache and returns without waiting for it. The caller stops it, or close does."""
        logs = self._folder / f"cache-{len(self._started) + 1}"
        logs.mkdir(parents=True)
        head, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        cache = Cache(f"grpc://{head}", f"http://{http}", logs)
        self._started.append(cache)
        own = {**plain_environment(), **(env or {})}

        def run(name: str, *arguments: str) -> None:
            cache.starts[name] = lambda: run(name, *arguments)
            with (logs / f"{name}.out").open("wb") as out, (logs / f"{name}.log").open("wb") as log:
                cache.processes[name] = subprocess.Popen([self._binary, *arguments], stdout=out, stderr=log, env=own)

        place = ["--nodes", str(nodes), "--listen", head, "--http", http]
        if mode != "cluster":
            transport = ["--transport", "grpc"] if mode == "grpc-go" else []
            run("local", "local", *source, *place, *transport)
            return cache
        own["CACHE_SECRET"] = "of the tests alone"
        run("head", "head", *source, *place)
        for i in range(nodes):
            free = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
            run(f"node-{i}", "node", "--head", head, "--index", str(i), *free)
        return cache

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the binary to its end."""
        own = {**plain_environment(), **(env or {})}
        return subprocess.run(
            [self._binary, *arguments], capture_output=True, text=True, env=own, timeout=60, check=False
        )

    def close(self) -> None:
        """Stops all caches that still run."""
        for cache in self._started:
            cache.stop(signal.SIGKILL)


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
