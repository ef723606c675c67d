# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where processes run: on loopback, or at one end of an emulated network (cmd/netdelay)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchlib.process import Stoppable
from kit.process import see_out


@dataclass(frozen=True)
class Place:
    """The listen address of servers, and the command prefix that runs a process there."""

    host: str
    before: tuple[str, ...] = ()


LOOPBACK = Place("127.0.0.1")


class NoNetworkError(RuntimeError):
    """The network cannot be created: it needs root, /dev/net/tun and nsenter."""


class Network(Stoppable):
    """Two network namespaces. Packets from one end arrive at the other after half a round-trip time."""

    def __init__(self, tools: Path) -> None:
        command = [str(tools / "netdelay")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        words = self._line().split()
        if len(words) != 3 or words[0] != "ready":
            assert self._process.stderr is not None
            reason = self._process.stderr.read().strip()
            self.stop()
            raise NoNetworkError(reason)
        near, far = (f"--net={file}" for file in words[1:])
        self.servers = Place("10.99.0.1", ("nsenter", near, "--"))
        self.clients = Place("10.99.0.2", ("nsenter", far, "--"))
        try:
            subprocess.run([*self.clients.before, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.stop()
            raise NoNetworkError(str(error)) from error

    def set(self, round_trip: float, loss: float = 0.0) -> None:
        """Sets the round-trip time in seconds and the fraction of lost packets."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{round_trip / 2 * 1e6:.0f}us {loss}\n")
        self._process.stdin.flush()
        if not self._line():
            raise RuntimeError(f"netdelay ended with {self._process.wait()}")

    def stop(self) -> None:
        """Ends the network; the namespaces end with their last process."""
        self._process.terminate()
        see_out(self._process)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
