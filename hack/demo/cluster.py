# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One head and its data nodes, each a process of its own, as the cluster runs them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import free_port

from demo.progress import Progress

_GRACE = 20.0  # seconds that a server may take to stop


@dataclass
class Cluster:
    """Running servers. endpoint is what clients need; the rest is for watching and stopping."""

    endpoint: str
    http: str
    logs: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def status(self) -> dict[str, Any] | None:
        """The head's /status, or None while it does not answer yet."""
        try:
            with urllib.request.urlopen(f"{self.http}/status", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def wait_ready(self, limit: float) -> dict[str, Any]:
        """Shows the load until every row is in memory. A cache that failed, or is late, is an error with its reason."""
        progress, status = Progress("load", 1), None
        while progress.seconds < limit:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended with {process.returncode}; its log: {self.logs / name}.log")
            status = self.status()
            if status and status["state"] == "Ready":
                nodes = ", ".join(f"node {n['index']}: {n['rows']:,}" for n in status["nodes"])
                progress.close(f"{status['rows']:,} rows, {status['bytes'] / 1e6:.0f} MB in memory ({nodes})")
                return status
            if status and status["state"] == "Failed":
                raise RuntimeError(f"the cache failed: {status.get('reason')}")
            if status and (splits := status.get("splits")) and splits["total"]:
                progress.update(
                    splits["done"] / splits["total"],
                    f"{splits['done']}/{splits['total']} splits",
                )
            time.sleep(0.05)
        raise TimeoutError(f"not ready after {limit:.0f} s: {status}")

    def stop(self) -> dict[str, int]:
        """Asks every server to stop and returns their exit codes; one that does not obey is killed."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline, codes = time.monotonic() + _GRACE, {}
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        return codes


@contextlib.contextmanager
def start(binary: Path, metadata: str, nodes: int, logs: Path) -> Iterator[Cluster]:
    """Starts the servers; whatever happens inside, none of them is left running."""
    logs.mkdir(parents=True, exist_ok=True)
    head, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    cluster = Cluster(f"grpc://{head}", f"http://{http}", logs)

    def run(name: str, *arguments: str) -> None:
        with (logs / f"{name}.log").open("wb") as log:
            cluster.processes[name] = subprocess.Popen([binary, *arguments], stdout=log, stderr=log)

    try:
        place = ["--listen", head, "--http", http]
        run("head", "head", "--metadata", metadata, "--nodes", str(nodes), *place)
        for i in range(nodes):
            listen = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
            run(f"node-{i}", "node", "--head", head, "--index", str(i), *listen)
        yield cluster
    finally:
        for process in cluster.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
