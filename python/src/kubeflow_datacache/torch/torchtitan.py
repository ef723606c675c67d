# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A data loader for torchtitan.

from kubeflow_datacache.torch.torchtitan import CacheDataLoader

config.dataloader = CacheDataLoader.Config(global_batch_size=512, seed=7)
config.training.global_batch_size = 512
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from kubeflow_datacache.cache import DataCache
from kubeflow_datacache.errors import StateError
from kubeflow_datacache.extras import needs
from kubeflow_datacache.proof import Proof
from kubeflow_datacache.torch.sequences import MicroBatches, Sequences
from kubeflow_datacache.world import World

with needs("torchtitan", "kubeflow_datacache.torch.torchtitan"):
    from torchtitan.components.dataloader import BaseDataLoader


class CacheDataLoader(BaseDataLoader):
    """The token sequences of a cache for torchtitan's trainer and validator.

    A checkpoint holds one state for all ranks, at the key dataloader, which counts whole steps: it resumes at the exact
    row with any data-parallel degree that divides the batch. Ranks of context, tensor and pipeline parallelism get the
    same rows.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Where the sequences are and in which order.

        global_batch_size: that of training.global_batch_size. column: lists of seq_len + 1 tokens; with a column of
        labels, lists of seq_len each. endpoint: of the cache; None for DataCache.from_env(). verify: whether to prove
        that each row of an epoch was handed out once; see Proof. infinite: whether epochs follow each other; the
        validator sets it. options: others of LoaderOptions, such as filter.
        """

        global_batch_size: int = 0
        seed: int = 0
        column: str = "input_ids"
        labels: str | None = None
        endpoint: str | None = None
        verify: bool = False
        infinite: bool = True
        options: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **others: Any,
    ) -> None:
        del others  # torchtitan also passes its tokenizer and the interval of states
        cache = DataCache.from_env() if config.endpoint is None else DataCache(config.endpoint)
        sequences = Sequences(tokens=config.column, labels=config.labels, length=seq_len)
        loader = cache.loader(
            global_batch_size=config.global_batch_size,
            seed=config.seed,
            tail="drop",
            columns=sequences.columns,
            world=World(dp_rank, dp_world_size),
            **config.options,
        )
        self._batches = MicroBatches(
            loader,
            sequences,
            rows=local_batch_size,
            global_batch_size=config.global_batch_size,
            infinite=config.infinite,
            check=Proof(loader, group=_gathered) if config.verify else None,
        )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for inputs, labels in self._batches:
            positions = torch.arange(inputs.shape[1]).expand(inputs.shape)
            yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        """The position after the last whole step, as one JSON string."""
        if not self._batches.whole:
            raise StateError(
                "the training's step ended within a step of the loader: give CacheDataLoader.Config the"
                " global_batch_size of training.global_batch_size"
            )
        return {"state": json.dumps(self._batches.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moves to a saved position."""
        if state_dict:
            self._batches.loader.load_state_dict(json.loads(state_dict["state"]))


def _gathered(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of all ranks, equal ones once: those of ranks that hold parts of one model and read the same rows."""
    values = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return list({json.dumps(one): one for one in values}.values())
