# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A head and data nodes as processes that can be killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kit.ports import free_port

from kubeflow_datacache import DataCache

Outage = Literal["kill", "stop", "freeze"]


class Cluster:
    """A head, started with `flags`, and `nodes` data nodes on loopback. Kills them all on exit.

    metadata: that of an Iceberg table; "" if `flags` name another source.
    """

    def __init__(self, binary: Path, metadata: str, logs: Path, nodes: int = 2, flags: Sequence[str] = ()) -> None:
        self._binary, self._logs, self._nodes = binary, logs, nodes
        self._flags = [*(["--metadata", metadata] if metadata else []), *flags]
        self._head, self._http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._restoring = threading.Thread()
        self.endpoint = f"grpc://{self._head}"
        self.names = ["head", *(f"node-{i}" for i in range(nodes))]

    def __enter__(self) -> Self:
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._restoring.ident is not None:
            self._restoring.join()
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str) -> None:
        """Starts the server of this name: "head", "node-0", ..."""
        if name == "head":
            own = ["head", "--nodes", str(self._nodes), *self._flags]
            own += ["--listen", self._head, "--http", self._http]
        else:
            own = ["node", "--head", self._head, "--index", name.removeprefix("node-")]
            own += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with (self._logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._binary, *own], stdout=log, stderr=log, env={**os.environ, "CACHE_SECRET": "of the tests alone"}
            )

    def kill(self, name: str) -> None:
        """Kills a server with SIGKILL."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def interrupt(self, names: list[str], seconds: float, how: Outage = "kill") -> None:
        """Kills, stops or freezes servers, and restores them after some seconds. Returns at once."""
        if self._restoring.ident is not None:
            self._restoring.join()
        for name in names:
            match how:
                case "kill":
                    self.kill(name)
                case "stop":
                    self._processes[name].terminate()
                case "freeze":
                    self._processes[name].send_signal(signal.SIGSTOP)
        self._restoring = threading.Thread(target=self._restore, args=(names, seconds, how))
        self._restoring.start()

    def _restore(self, names: list[str], seconds: float, how: Outage) -> None:
        time.sleep(seconds)
        for name in names:
            if how == "freeze":
                self._processes[name].send_signal(signal.SIGCONT)
                continue
            if how == "stop":
                self._processes.pop(name).wait()
            self.start(name)

    def wait_ready(self, seconds: float = 180.0) -> None:
        """Waits until the head is Ready."""
        end = time.monotonic() + seconds
        with DataCache(self.endpoint, retry_seconds=seconds) as cache:
            while cache.status()["state"] != "Ready":
                assert time.monotonic() < end, f"not ready: {cache.status()}"
                time.sleep(0.02)
