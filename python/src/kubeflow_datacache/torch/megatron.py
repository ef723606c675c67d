# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Micro-batches for Megatron-LM's external data loader.

from kubeflow_datacache.torch.megatron import megatron_batches

def train_valid_test_datasets_provider(sizes):  # with --dataloader-type external
    args = get_args()
    batches = megatron_batches(
        DataCache.from_env(),
        consumed_samples=args.consumed_train_samples,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        seed=7,
    )
    return batches, None, None
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.mixture import Mixture
from kubeflow_datacache.proof import Proof
from kubeflow_datacache.torch.sequences import MicroBatches, Sequences
from kubeflow_datacache.world import World

_IGNORED: Final = -100  # the label of tokens that do not count


def megatron_batches(
    cache: DataCache | Mixture,
    *,
    consumed_samples: int,
    global_batch_size: int,
    micro_batch_size: int,
    seq_length: int,
    seed: int,
    column: str = "input_ids",
    labels: str | None = None,
    verify: bool = False,
    group: Any = None,
    **options: Any,
) -> MegatronBatches:
    """An iterator over this rank's micro-batches from the row on that follows Megatron's consumed samples.

    Epochs follow each other. Each item has tokens, labels, loss_mask and position_ids, shape (micro_batch_size,
    seq_length); labels of -100 have a loss_mask of 0. The place in the order is that of consumed_samples, which
    Megatron's own checkpoints hold, so it resumes with any data-parallel size. A batch size that ramps up is refused.

    column: lists of seq_length + 1 tokens; with a column of labels, lists of seq_length each. verify: whether to prove
    that each row of an epoch was handed out once; see Proof. group: the data-parallel group; by default
    Megatron-core's. options: others of LoaderOptions.
    """
    steps, rest = divmod(consumed_samples, global_batch_size)
    if rest:
        raise ValueError(
            f"consumed_samples = {consumed_samples} is no multiple of global_batch_size = {global_batch_size}: the"
            " batch size may not ramp up or change, as a step of the loader is one global batch"
        )
    if group is None:
        from megatron.core import parallel_state

        group = parallel_state.get_data_parallel_group()
    world = World.of_group(group)
    sequences = Sequences(tokens=column, labels=labels, length=seq_length)
    loader = cache.loader(
        global_batch_size=global_batch_size, seed=seed, tail="drop", columns=sequences.columns, world=world, **options
    )
    loader.resize(world, steps)
    check = Proof(loader, group=group) if verify else None
    return MegatronBatches(
        loader,
        MicroBatches(loader, sequences, rows=micro_batch_size, global_batch_size=global_batch_size, check=check),
    )


class MegatronBatches(Iterator[dict[str, Tensor]]):
    """What megatron_batches returns. loader: the loader that it reads, whose state names the dataset."""

    def __init__(self, loader: Loader, batches: MicroBatches) -> None:
        self.loader, self._batches = loader, iter(batches)

    def __next__(self) -> dict[str, Tensor]:
        tokens, labels = next(self._batches)
        counts = labels != _IGNORED
        return {
            "tokens": tokens,
            "labels": labels.where(counts, 0),
            "loss_mask": counts.float(),
            "position_ids": torch.arange(tokens.shape[1]).expand(tokens.shape),
        }
