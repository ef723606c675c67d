# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache of one table: `cacheserver local` on ports of the system's choice, watched through its log."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from client import Client
from server import plain_environment

LIMIT = 256 << 20  # of a cache's memory
OVER = 64 << 20  # what the process may take besides
WAIT = 120.0  # seconds until a cache must be ready or failed; more than it takes on a busy machine


class Wrong(Exception):
    """A cache did what it must not do."""


class Cache:
    """A running cache. After the with block, `peak` is the memory that it took."""

    def __init__(self, server: Path, folder: Path, flags: list[str], nodes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log, self._out = folder / "server.log", folder / "server.out"
        command = [
            server, "local", *flags, "--nodes", str(nodes), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
            "--log-format", "json", "--memory-limit", str(LIMIT), "--load-timeout", "5s",
        ]  # fmt: skip
        with self._log.open("wb") as log, self._out.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=log, env=plain_environment())
        self.peak = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        crashed = self._process.poll()
        if crashed is None:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            self.peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
        self._process.kill()
        self._process.wait()
        if error is None:
            self._check_end(crashed)

    def _check_end(self, code: int | None) -> None:
        text = self._log.read_text(errors="replace")
        if (code is not None and code not in (0, 1, 3)) or "goroutine " in text:
            raise Wrong(f"the server ended with {code}: {text[-3000:]}")
        if self.peak > LIMIT + OVER:
            raise Wrong(f"it took {self.peak >> 20} MiB, the limit is {LIMIT >> 20} MiB")

    def refusal(self) -> str:
        """Waits; returns why the cache refused the table, or "" when it is ready."""
        begun = time.monotonic()
        while time.monotonic() - begun < WAIT:
            ended = self._process.poll()
            for record in self._records():
                if record.get("msg") == "ready":
                    return ""
            if ended is not None:
                return self._log.read_text(errors="replace")[-3000:] or f"exit code {ended}"
            time.sleep(0.004)
        raise Wrong(f"neither ready nor failed after {WAIT:.0f} s: {self._log.read_text(errors='replace')[-3000:]}")

    def _records(self) -> list[dict[str, Any]]:
        lines = self._log.read_text(errors="replace").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def client(self) -> Client:
        """A client of a ready cache."""
        begun = time.monotonic()
        while not (line := self._out.read_text()).startswith("ready "):
            if time.monotonic() - begun > WAIT:
                raise Wrong("it says nowhere on which port it listens")
            time.sleep(0.002)
        return Client(line.split()[1])
