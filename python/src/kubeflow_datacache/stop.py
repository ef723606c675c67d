# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""An event that also cancels calls that wait for a server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator


class Stop(threading.Event):
    """An Event whose set() calls what was registered. Safe for concurrent use."""

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
        """Within the statement set() calls cancel, from its own thread; at once if it is set already."""
        self._cancels.add(cancel)
        try:
            if self.is_set():
                cancel()
            yield
        finally:
            self._cancels.discard(cancel)
