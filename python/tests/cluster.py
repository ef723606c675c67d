# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A head and data nodes as processes that can be killed and restarted."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal

from kit.caches import Cache
from kit.deadline import pause
from kit.process import see_out

Outage = Literal["kill", "stop", "freeze"]


class Cluster(Cache):
    """A head, started with `flags`, and `nodes` data nodes on loopback. Kills them all on exit.

    metadata: that of an Iceberg table; "" if `flags` name another source.
    """

    def __init__(self, binary: Path, metadata: str, logs: Path, nodes: int = 2, flags: Sequence[str] = ()) -> None:
        source = [*(["--metadata", metadata] if metadata else []), *flags]
        super().__init__(binary, logs, source, nodes=nodes, mode="cluster")
        self._pool = ThreadPoolExecutor(1)
        self._restoring: Future[None] | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._restored()
        finally:
            self._pool.shutdown()
            super().__exit__(kind, error, at)

    def interrupt(self, names: list[str], seconds: float, how: Outage = "kill") -> None:
        """Kills, stops or freezes servers, and restores them after some seconds. Returns at once."""
        self._restored()
        match how:
            case "kill":
                self.kill(*names)
            case "stop":
                for name in names:
                    self.processes[name].terminate()
            case "freeze":
                self.freeze(*names)
        self._restoring = self._pool.submit(self._restore, names, seconds, how)

    def _restore(self, names: list[str], seconds: float, how: Outage) -> None:
        pause(seconds)
        if how == "freeze":
            self.thaw(*names)
            return
        if how == "stop":
            for name in names:
                see_out(self.processes[name])
        self.start(*names)

    def _restored(self) -> None:
        """Waits until the servers of the last interrupt are started again."""
        if self._restoring is not None:
            self._restoring.result()

    def wait_ready(self) -> None:
        """Waits until the head is Ready."""
        self.wait("Ready")
