# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What Hugging Face Accelerate's own data loaders do, and what they must not do with a StreamingDataset."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from kubeflow_datacache.world import World


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


def refuse_division(dataset: IterableDataset[Any]) -> None:
    """Raises TypeError if the data loader that Accelerate now iterates over divides the dataset's rows among ranks."""
    if "accelerate.data_loader" not in sys.modules or World.detect().size == 1:
        return
    from accelerate.data_loader import DataLoaderDispatcher, IterableDatasetShard
    from accelerate.state import GradientState

    loader: Any = GradientState().active_dataloader
    read = getattr(loader, "dataset", None)
    shared = isinstance(read, IterableDatasetShard) and read.dataset is dataset
    if shared or (isinstance(loader, DataLoaderDispatcher) and read is dataset):
        raise TypeError(
            "a StreamingDataset gives each rank its own rows, and Accelerate would divide them among the ranks once"
            " more: give prepare() a StreamingDataLoader(dataset) in place of a DataLoader"
        )
