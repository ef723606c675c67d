# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a small BERT with several numbers of ranks at one global batch size; prints each training's losses as JSON.

Three ways to sum gradients: "means" averages the means of ranks, as DistributedDataParallel does by itself; "weight"
averages sums of losses times batch.weight; "tree" sums equal micro-batches of the global batch in a fixed binary tree,
so that the number of ranks does not change the order of any addition.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from forked import run_ranks
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from kubeflow_datacache import DataCache

WORDS, LENGTH = 1024, 24
STEPS, GLOBAL, MICRO = 12, 32, 8  # MICRO: number of micro-batches of a global batch


def bert() -> Any:
    """A BERT of 0.5 M parameters with the same random weights in every process, without dropout."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def loss_sum(model: Any, columns: dict[str, Tensor], rows: slice = slice(None)) -> Tensor:
    """The sum of the losses of some rows."""
    tokens, labels = columns["tokens"][rows, :LENGTH].long() % WORDS, columns["id"][rows] % 2
    return cross_entropy(model(input_ids=tokens).logits, labels, reduction="sum")


def tree_sum(parts: list[Tensor]) -> Tensor:
    """The sum of a power of 2 of tensors, neighbours first."""
    while len(parts) > 1:
        parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def flat(model: Any, loss: Tensor) -> Tensor:
    """The gradients and the loss in one vector."""
    return torch.cat([*(weight.grad.flatten() for weight in model.parameters()), loss.detach().view(1)])


def micro_batches(model: Any, columns: dict[str, Tensor]) -> float:
    """Sets the gradients of the whole step's mean and returns its loss: a rank's part of the tree, then the rest."""
    rows = GLOBAL // MICRO
    parts: list[Tensor] = []
    for begin in range(0, len(columns["id"]), rows):
        model.zero_grad()
        loss = loss_sum(model, columns, slice(begin, begin + rows))
        loss.backward()
        parts.append(flat(model, loss))
    own = tree_sum(parts)
    of_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, own)
    mean = tree_sum(of_ranks) / GLOBAL
    at = 0
    for weight in model.parameters():
        weight.grad = mean[at : at + weight.numel()].view_as(weight).clone()
        at += weight.numel()
    return float(mean[-1])


def train(endpoint: str, way: str) -> tuple[list[float], str]:
    """The loss of each step over all ranks, and a hash of the weights at the end."""
    own = bert()
    model = own if way == "tree" else DistributedDataParallel(own)
    optimizer = torch.optim.AdamW(own.parameters(), 1e-3)
    losses: list[float] = []
    loader = DataCache(endpoint).loader(global_batch_size=GLOBAL, seed=7, columns=["id", "tokens"])
    for batch in loader:
        columns = batch.torch()
        if way == "tree":
            losses.append(micro_batches(own, columns))
        else:
            optimizer.zero_grad()
            loss = loss_sum(model, columns) * (batch.weight if way == "weight" else 1 / batch.num_rows)
            loss.backward()
            mean = loss.detach()
            dist.all_reduce(mean)
            losses.append(float(mean) / dist.get_world_size())
        optimizer.step()
        if len(losses) == STEPS:
            break
    weights = torch.cat([weight.detach().flatten() for weight in own.parameters()])
    return losses, hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def main() -> None:
    """Runs the trainings that the command line describes."""
    endpoint, trainings = json.loads(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    print(json.dumps([run_ranks(world, train, endpoint, way) for way, world in trainings]))


if __name__ == "__main__":
    main()
