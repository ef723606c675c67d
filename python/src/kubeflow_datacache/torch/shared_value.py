# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""SharedValue: a small value that the main process writes and running DataLoader workers read."""

from __future__ import annotations

import json
from typing import Any, Final

import torch

_CAPACITY: Final = 1 << 14  # a loader's position takes about 500 bytes


class SharedValue:
    """A JSON value in shared memory. Written only between iterations and read only when one starts, so it needs no
    lock."""

    def __init__(self, value: Any) -> None:
        self._memory = torch.zeros(_CAPACITY, dtype=torch.uint8).share_memory_()
        self.set(value)

    def get(self) -> Any:
        """The value."""
        return json.loads(bytes(self._memory.numpy()).rstrip(b"\0"))

    def set(self, value: Any) -> None:
        """Writes the value, for all processes."""
        text = json.dumps(value).encode()
        if len(text) > _CAPACITY:
            raise ValueError(f"a place of {len(text)} bytes: want at most {_CAPACITY}; is that a loader's state?")
        self._memory.copy_(torch.frombuffer(bytearray(text.ljust(_CAPACITY, b"\0")), dtype=torch.uint8))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._memory.share_memory_()  # if not pickled by torch, the memory was copied and must be shared again
