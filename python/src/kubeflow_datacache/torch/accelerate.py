# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Iterates as Hugging Face Accelerate's own data loaders do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader


def accelerated(loader: DataLoader[Any], items: Iterator[Any]) -> Iterator[Any]:
    """Yields the items, moved to Accelerate's device. During the iteration the loader is the active one of
    GradientState.

    loader must have the attributes end_of_dataloader and remainder of accelerate.data_loader.DataLoaderStateMixin.
    """
    from accelerate.state import GradientState, PartialState
    from accelerate.utils import send_to_device

    state, device = GradientState(), PartialState().device
    state._add_dataloader(loader)  # pyright: ignore[reportPrivateUsage] - what its own loaders call
    try:
        for item in items:
            yield send_to_device(item, device) if isinstance(item, Mapping) else item
    finally:
        state._remove_dataloader(loader)  # pyright: ignore[reportPrivateUsage]
