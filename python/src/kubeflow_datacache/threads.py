# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Threads that do not outlive the interpreter."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final

_LAST: Final = 0.3  # seconds that shutdown waits


class DaemonThreads(Executor):
    """A ThreadPoolExecutor whose threads do not keep the interpreter from ending.

    For work that may wait long, for a server or in a function of the user, and that nobody waits for after Ctrl-C.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._count, self._name, self._threads = count, name, list[threading.Thread]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules a call."""
        future: Future[Any] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads once their work is done. wait: for that, though for a moment at most.

        cancel_futures: work that has not begun is not done.
        """
        while cancel_futures:
            try:
                item = self._work.get_nowait()
            except queue.Empty:
                break
            if item is not None:
                item[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        end = time.monotonic() + _LAST
        for thread in self._threads if wait else []:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del item, future, call  # what they refer to is not kept while the thread waits
