# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The seed of tests that draw random numbers: the same at each run, unless the environment says another."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from typing import Final


def parse(text: str) -> int:
    """The seed by the text of the environment variable SEED: a number, or "random" for another one in each process."""
    if not text:
        return 1
    if text == "random":
        return secrets.randbits(32)
    if not (text.isascii() and text.isdecimal() and int(text) < 2**64):
        raise ValueError(f'SEED="{text}": want an integer in [0, 2^64), or "random"')
    return int(text)


_TEXT: Final = os.environ.get("SEED", "")

#: The seed of all tests of this process; both conftest.py print it.
SEED: Final = parse(_TEXT)


def seeds(count: int, failed: Sequence[int] = ()) -> list[int]:
    """`count` consecutive seeds from SEED on, for a test that loops over them.

    The seeds with which the test once failed follow, unless the environment variable is a number, which repeats a run.
    """
    given = _TEXT not in ("", "random")
    return [*range(SEED, SEED + count), *([] if given else failed)]
