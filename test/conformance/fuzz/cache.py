# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache of one table, whose memory and end are checked."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import server
from server import plain_environment

from kit.process import EndedError, see_out

LIMIT = 256 << 20  # of a cache's memory
OVER = 64 << 20  # what the process may take besides


class Wrong(Exception):
    """A cache did what it must not do."""


class Cache(server.Cache):
    """A running cache. After the with block, `peak` is the memory that it took."""

    def __init__(self, binary: Path, folder: Path, flags: list[str], nodes: int) -> None:
        own = [*flags, "--memory-limit", str(LIMIT), "--load-timeout", "5s"]
        super().__init__(binary, folder, own, nodes=nodes, env=plain_environment())
        self.peak = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        crashed = self.processes["local"].poll()
        if crashed is None:
            status = Path(f"/proc/{self.processes['local'].pid}/status").read_text()
            self.peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        super().__exit__(kind, error, at)
        if error is None:
            self._check_end(crashed)

    def _check_end(self, code: int | None) -> None:
        text = (self.logs / "local.log").read_text(errors="replace")
        if (code is not None and code not in (0, 1, 3)) or "goroutine " in text:
            raise Wrong(f"the server ended with {code}: {text[-3000:]}")
        if self.peak > LIMIT + OVER:
            raise Wrong(f"it took {self.peak >> 20} MiB, the limit is {LIMIT >> 20} MiB")

    def refusal(self) -> str:
        """Waits; returns why the cache refused the table, or "" when it is ready."""
        try:
            status = self.wait("Ready", "Failed")
        except EndedError as refused:
            return str(refused)
        if status["state"] == "Ready":
            return ""
        see_out(self.processes["local"])
        return self.log("local")
