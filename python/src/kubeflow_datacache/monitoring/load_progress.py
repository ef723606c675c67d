# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Waits for a cache to load, and shows the progress."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from kubeflow_datacache.errors import CacheFailedError, UnreachableError
from kubeflow_datacache.fetch.retry import counts_in
from kubeflow_datacache.monitoring.bar import tqdm_class

_ASK_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 10.0  # between two log lines


def wait_ready(
    ask: Callable[[], Mapping[str, Any]], seconds: float, *, progress: bool, early: bool = False
) -> Mapping[str, Any]:
    """Polls the status until the cache is Ready, and returns that status. early: only until rows can be read.

    Raises CacheFailedError if the load fails, and UnreachableError if no more rows are loaded for `seconds`. progress:
    whether to show the progress, as a bar or in a log as a line from time to time.
    """
    with contextlib.closing(LoadProgress()) if progress else contextlib.nullcontext() as shown:
        done, since, pause = None, time.monotonic(), _ASK_SECONDS / 16
        while (status := ask())["state"] != "Ready" and not (early and _serves_early(status)):
            if status["state"] == "Failed":
                raise CacheFailedError(f"the cache failed: {status.get('reason', '')}: see its log, then start it anew")
            now = time.monotonic()
            if (seen := (status["rows"], counts_in(status.get("reason", "")))) != done:
                done, since = seen, now
            if now - since > seconds:
                raise UnreachableError(
                    f"the cache is {status['state']}, and loaded nothing for {now - since:.0f} s (retry_seconds ="
                    f" {seconds:g}): {status.get('reason', '')}"
                )
            if shown is not None:
                shown.update(status)
            time.sleep(min(pause, seconds))
            pause = min(2 * pause, _ASK_SECONDS)
        if shown is not None and status["state"] == "Ready":
            shown.ready(status)
        return status


def _serves_early(status: Mapping[str, Any]) -> bool:
    """Whether a cache that is not Ready answers early requests."""
    return bool(status.get("counted")) and all(node["state"] in ("Loading", "Ready") for node in status["nodes"])


class LoadProgress:
    """Shows how many of a cache's splits are loaded, with tqdm or as plain lines. Shows nothing if the cache is ready
    at once."""

    def __init__(self, out: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._tqdm, self._bar = tqdm_class(), None
        self._out, self._now = out or sys.stderr, now
        self._said: float | None = None

    def update(self, status: Mapping[str, Any]) -> None:
        """Shows the progress in a status."""
        splits = status["splits"]
        if self._tqdm is None:
            if self._said is None or self._now() - self._said >= _SAY_SECONDS:
                self._say(status)
            return
        if self._bar is None:
            self._bar = self._tqdm(desc="loading the cache", unit="split", mininterval=0)
        self._bar.total = splits["total"] or None  # unknown until the load is planned
        self._bar.set_postfix_str(f"{status['rows']:,} rows", refresh=False)
        self._bar.update(splits["done"] - self._bar.n)

    def ready(self, status: Mapping[str, Any]) -> None:
        """Shows the final status if an earlier one was shown."""
        if self._bar is not None:
            self.update(status)
        elif self._said is not None:
            self._say(status)

    def close(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()

    def _say(self, status: Mapping[str, Any]) -> None:
        self._said, splits = self._now(), status["splits"]
        share = f"{splits['done'] / splits['total']:.0%}, " if splits["total"] else ""
        line = f"loading the cache: {share}{splits['done']:,}/{splits['total']:,} splits, {status['rows']:,} rows"
        print(line, file=self._out, flush=True)
