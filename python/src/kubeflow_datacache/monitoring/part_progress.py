# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows how many parts of a put are sent."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

from kubeflow_datacache.monitoring.bar import tqdm_class

_SAY_SECONDS: Final = 10.0  # between two lines of a log


class PartProgress:
    """The number of sent parts, with tqdm or as plain lines. A context manager."""

    def __init__(self, name: str, total: int, *, show: bool) -> None:
        self._name, self._total, self._said, self._show = name, total, time.monotonic(), show
        tqdm = tqdm_class() if show else None
        self._bar = None if tqdm is None else tqdm(desc=name, total=total, unit="part")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self, parts: int) -> None:
        """Shows that so many parts are sent."""
        if self._bar is not None:
            self._bar.update(parts - self._bar.n)
        elif self._show and time.monotonic() - self._said >= _SAY_SECONDS:
            self._said = time.monotonic()
            print(f"{self._name}: {parts:,}/{self._total:,} parts", file=sys.stderr, flush=True)
