# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A head and its data nodes as separate processes, as in a cluster."""

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

from demo.progress import Progress
from kit.ports import free_port

_GRACE = 20.0  # time limit in seconds for a server to stop


@dataclass
class Cluster:
    """Running servers. Clients need only endpoint; the rest is for observing and stopping the servers."""

    endpoint: str
    http: str
    logs: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def status(self) -> dict[str, Any] | None:
        """The head's /status, or None if it does not answer yet."""
        try:
            with urllib.request.urlopen(f"{self.http}/status", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def wait_ready(self, limit: float) -> dict[str, Any]:
        """Shows the load's progress until all rows are in memory. Raises with the reason if the cache fails or exceeds
        the limit."""
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
        """Stops all servers and returns their exit codes; kills servers that do not stop in time."""
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
    """Starts the servers, and stops all of them at the end of the with block."""
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
