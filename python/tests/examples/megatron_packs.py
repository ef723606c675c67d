# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT of Megatron-core on packs, on CPUs: with tensor and data parallelism, then without the latter.

The second training goes on from a checkpoint of the first. Prints the loss of each step of both, and how many
steps came from the reader of the host, as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import run_ranks
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from torch import Tensor

from kubeflow_datacache import DataCache, Pack, PackedBatch, World

VOCABULARY, TOKENS, TENSOR = 64, 48, 2


class Attention(torch.nn.Module):
    """Attention within the sequences of a pack. Takes the place of Transformer Engine's, which wants CUDA."""

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__()
        self.config = config

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: PackedSeqParams, **__: Any
    ) -> Tensor:
        """query, key, value: shape (tokens, heads, width)."""
        ends: Any = packed_seq_params.cu_seqlens_q_padded
        parts = list[Tensor]()
        for begin, end in itertools.pairwise(ends.tolist()):
            q, k, v = (each[begin:end].transpose(0, 1) for each in (query, key, value))
            own = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            parts.append(own.transpose(0, 1))
        return torch.cat(parts).flatten(1)


def gpt() -> GPTModel:
    """A GPT of two layers, in double precision, so that losses do not depend on the order of sums."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=TENSOR,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float64,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
    )
    initialize_rng_tracker(inference_rng_tracker=True)  # without dropout: the other one wants CUDA
    layer: Any = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(config, layer, vocab_size=VOCABULARY, max_sequence_length=TOKENS).double()


def train_step(model: GPTModel, optimizer: torch.optim.Optimizer, batch: PackedBatch) -> float:
    """Trains on the packs of a step; returns the mean loss of its tokens over all ranks."""
    group: Any = parallel_state.get_data_parallel_group()
    total = torch.zeros((), dtype=torch.float64)
    optimizer.zero_grad()
    for packed in batch.packs:  # micro-batches
        data = packed.megatron()
        ends, padded, longest = data["cu_seqlens"], data["cu_seqlens_padded"], data["max_seqlen"]
        sequences = PackedSeqParams("thd", ends, ends, padded, padded, longest, longest)
        losses = model(
            data["tokens"], data["position_ids"], None, labels=data["labels"].clamp(min=0), packed_seq_params=sequences
        )
        loss = (losses * data["loss_mask"]).sum() * batch.weight
        loss.backward()
        total += loss.detach()
    for weights in model.parameters():
        assert weights.grad is not None
        dist.all_reduce(weights.grad, group=group)
        weights.grad /= parallel_state.get_data_parallel_world_size()
    optimizer.step()
    dist.all_reduce(total, group=group)
    return float(total / parallel_state.get_data_parallel_world_size())


def train(endpoint: str, folder: str, begin: int, stop: int, save_at: int) -> tuple[list[float], int]:
    """The losses of the steps from `begin`, that of the checkpoint, to `stop`, and how many the reader of the host
    gave. Saves before step `save_at`."""
    parallel_state.initialize_model_parallel(TENSOR)
    torch.manual_seed(1)
    model = gpt()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    loader = DataCache(endpoint).loader(
        pack=Pack("input_ids", tokens=TOKENS, packs=8, window=2, multiple=TENSOR),
        seed=3,
        world=World(rank, ranks, replicas=TENSOR),
        host="require",
    )
    path, losses = Path(folder, f"{parallel_state.get_tensor_model_parallel_rank()}.pt"), list[float]()
    if begin:
        saved = torch.load(path, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    for batch in loader:
        assert isinstance(batch, PackedBatch)
        losses.append(train_step(model, optimizer, batch))
        if loader.next_step == save_at and rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "loader": loader.state_dict()}, path)
        if loader.next_step == stop:
            break
    loader.close()
    return losses, loader.stats().shared


def main() -> None:
    """Runs both trainings."""
    endpoint, folder, saved, stop = json.loads(sys.argv[1])
    whole = run_ranks(2 * TENSOR, train, endpoint, folder, 0, stop, saved)
    resumed = run_ranks(TENSOR, train, endpoint, folder, saved, stop, 0)
    print(json.dumps([whole, resumed]))


if __name__ == "__main__":
    main()
