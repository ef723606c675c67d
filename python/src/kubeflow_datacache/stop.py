# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An event that also cancels calls in progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator


class Stop(threading.Event):
    """An Event whose set() also calls the registered cancel functions. Safe for concurrent use."""

    def __init__(self) -> None:
        super().__init__()
        self._cancels: set[Callable[[], object]] = set()

    def set(self) -> None:
        """Sets the event and cancels the calls in progress."""
        super().set()
        for cancel in list(self._cancels):
            cancel()

    @contextlib.contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Generator[None]:
        """While the with block runs, set() calls `cancel` from the thread that called set(); immediately if already
        set."""
        self._cancels.add(cancel)
        try:
            if self.is_set():
                cancel()
            yield
        finally:
            self._cancels.discard(cancel)
