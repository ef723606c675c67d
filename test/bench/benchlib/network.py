# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where processes run: on this machine's loopback, or at one end of a network with a round trip (cmd/netdelay)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchlib.process import Stoppable, see_out


@dataclass(frozen=True)
class Place:
    """The address that servers listen on, and the words before a command that is to run here."""

    host: str
    before: tuple[str, ...] = ()


LOOPBACK = Place("127.0.0.1")


class NoNetworkError(RuntimeError):
    """This machine lets us make no network: no root, no /dev/net/tun, no nsenter."""


class Network(Stoppable):
    """Two namespaces of their own; whatever one end sends, the other gets after half a round trip."""

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
        """From now on a round trip takes so many seconds, and of all packets this share is lost."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{round_trip / 2 * 1e6:.0f}us {loss}\n")
        self._process.stdin.flush()
        if not self._line():
            raise RuntimeError(f"netdelay ended with {self._process.wait()}")

    def stop(self) -> None:
        """Ends the network; the namespaces go with the last process in them."""
        self._process.terminate()
        see_out(self._process)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()
