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

#: Seconds that work in progress still gets when nobody waits for it any more, as after Ctrl-C.
LAST_SECONDS: Final = 0.3


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
        """Ends the threads once their work is done. wait: whether to wait for that, for LAST_SECONDS at most.

        cancel_futures: whether to drop work that has not begun.
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
        end = time.monotonic() + LAST_SECONDS
        for thread in self._threads if wait else []:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            _do(*item)
            del item  # a thread that waits for work keeps no reference to the last one's arguments and result


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
