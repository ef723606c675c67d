# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Caches as processes on free loopback ports: for tests, demos and benches."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from kit.deadline import Wait
from kit.ports import free_port
from kit.process import Process, see_out, shared_memory, with_variable

Mode = Literal["local", "cluster"]  # one process, or one of the head and one of each data node

_FAILED = 3  # exit code of `cacheserver local` when the cache failed
_POLL = 0.01  # seconds


class Cache:
    """A cache of a source: the flags of `cacheserver` that name the table, and others of the head.

    Its processes are called "local", or "head", "node-0", "node-1" and so on. They keep their addresses when they are
    started again. A with block starts them, and stops them at its end; it kills them after an error.

    folder: of their logs, NAME.log, their standard output, NAME.out, and their temporary files. env: their environment,
    by default that of this process.
    """

    def __init__(
        self,
        binary: Path,
        folder: Path,
        source: Sequence[str],
        *,
        nodes: int = 2,
        mode: Mode = "local",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.logs, self.processes = folder, dict[str, Process]()
        self._temporary = folder / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._env = {**(os.environ if env is None else env), "TMPDIR": str(self._temporary)}
        head = f"127.0.0.1:{free_port()}"
        self.endpoint = f"grpc://{head}"
        first = [*source, "--nodes", str(nodes), "--listen", head]
        if mode == "local":
            commands = {"local": ["local", *first]}
        else:
            self._env["CACHE_SECRET"] = "of the tests alone"
            node = ["node", "--head", head, "--listen", "127.0.0.1:0", "--index"]
            commands = {"head": ["head", *first]} | {f"node-{i}": [*node, str(i)] for i in range(nodes)}
        pages = {name: f"127.0.0.1:{free_port()}" for name in commands}
        self._commands = {name: [binary, *own, "--http", pages[name]] for name, own in commands.items()}
        self._pages = {name: f"http://{address}" for name, address in pages.items()}
        self.names = list(commands)
        self.http = self._pages[self.names[0]]
        self._incarnations = dict[Process, str]()
        for name in self.names:
            self._log(name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(signal.SIGTERM if error is None else signal.SIGKILL)

    def start(self, *names: str) -> None:
        """Starts these processes, or all, and returns at once."""
        for name in names or self.names:
            out = self.logs / f"{name}.out"
            self.processes[name] = Process(name, self._commands[name], self._log(name), self._env, out)

    def kill(self, *names: str) -> None:
        """Kills processes: wait does not wait for them until they are started again."""
        gone = [self.processes.pop(name) for name in names]
        for process in gone:
            process.kill()
        for process in gone:
            process.wait()

    def restart(self, *names: str) -> None:
        """Kills processes, or all, and starts new ones in their places."""
        names = names or tuple(self.names)
        for name in names:
            self.processes[name].kill()
        for name in names:
            self.processes[name].wait()
        self.start(*names)

    def freeze(self, *names: str) -> None:
        """Stops the work of processes until thaw."""
        for name in names:
            self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, *names: str) -> None:
        """Lets frozen processes go on."""
        for name in names:
            self.processes[name].send_signal(signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGTERM, *names: str) -> dict[str, int]:
        """Ends these processes, or all, by a signal, and returns their exit codes.

        Raises AssertionError if one had to be killed, or if all have ended and something of them is left: a process, a
        temporary file after exits with 0, or shared memory.
        """
        ending = {name: self.processes[name] for name in names or self.processes}
        running = [name for name, process in ending.items() if process.poll() is None]
        memory = set[Path]().union(*(shared_memory(ending[name].pid) for name in running))
        for name in running:
            ending[name].send_signal(how)
            ending[name].send_signal(signal.SIGCONT)  # if it is frozen
        codes = {name: see_out(process) for name, process in ending.items()}
        killed = [name for name in running if codes[name] == -signal.SIGKILL != -how]
        assert not killed, f"{', '.join(killed)} did not end after {how.name}: {self.log(killed[0])}"
        if all(process.poll() is not None for process in self.processes.values()):
            self._check_nothing_left(memory, clean=not any(codes.values()))
        return codes

    def _check_nothing_left(self, memory: set[Path], *, clean: bool) -> None:
        left = [f"the process {command}" for command in with_variable("TMPDIR", str(self._temporary))]
        left += [str(path) for path in memory if path.exists()]
        left += [str(path) for path in self._temporary.rglob("*") if clean]
        assert not left, f"the servers with logs in {self.logs} left over: {', '.join(left)}"

    def wait(self, *states: str, seen: Callable[[dict[str, Any]], None] = lambda _: None) -> dict[str, Any]:
        """Waits until the cache is in one of the states, and returns its status; seen is called with each on the way.

        The head's status counts only if the data nodes in it are the processes that run now, by their incarnations.
        A local cache exits when it fails; the status then has the state and the reason only. Raises AssertionError if a
        process ends, if the cache fails otherwise, or if the time limit passes without progress.
        """
        wait, before = Wait(), None
        while True:
            if "Failed" in states and (failed := self._exited()):
                return failed
            for process in list(self.processes.values()):
                process.check()
            status = self._current()
            if status and status["state"] in states:
                return status
            seen(status or {})
            progress = status and (status["state"], status["rows"], status["splits"])
            if progress != before:
                wait, before = Wait(), progress
            if wait.over() or (status and status["state"] == "Failed"):
                first = next(iter(self.processes))
                raise AssertionError(f"the cache is not {' or '.join(states)}, but {status}: {self.log(first)}")
            time.sleep(_POLL)

    def _exited(self) -> dict[str, Any] | None:
        """The status of a local cache that has failed."""
        local = self.processes.get("local")
        if local is None or local.poll() != _FAILED:
            return None
        return {"state": "Failed", "reason": self.log("local").rpartition("error: the cache failed: ")[2]}

    def _current(self) -> dict[str, Any] | None:
        """The head's status; None if it does not answer, or if it is of data nodes that ran before those of now."""
        try:
            status = self.status()
            own = {node["index"]: self._incarnation(f"node-{node['index']}") for node in status["nodes"]}
        except (OSError, http.client.HTTPException):
            return None
        for node in status["nodes"]:
            joined = node.get("incarnation", "")  # it may fail before the nodes have joined
            if own[node["index"]] not in (None, joined) and (joined or status["state"] != "Failed"):
                return None
        return status

    def _incarnation(self, name: str) -> str | None:
        """The incarnation of a process, by its own /status; None if there is no process of this name."""
        process = self.processes.get(name)
        if process is None:
            return None
        if process not in self._incarnations:
            self._incarnations[process] = json.loads(self._get(name, "/status")[1])["incarnation"]
        return self._incarnations[process]

    def get(self, path: str) -> tuple[int, str]:
        """HTTP GET on the head: status code and body."""
        return self._get(self.names[0], path)

    def _get(self, name: str, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._pages[name] + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """The head's /status."""
        code, body = self.get("/status")
        assert code == 200, f"/status answered {code}: {body}"
        return json.loads(body)

    def log(self, name: str) -> str:
        """The last log lines of a process, and of those before it in its place."""
        return self._log(name).read_text(errors="replace")[-3000:]

    def output(self, name: str) -> str:
        """The standard output of a process."""
        return (self.logs / f"{name}.out").read_text()

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
