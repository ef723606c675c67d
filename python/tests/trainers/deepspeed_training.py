# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on the CPU, with its own engine and ZeRO 1; prints the rows and the loss of each step."""
# pyright: reportMissingImports=false

import json
import os
import sys
from typing import Any

os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})

import deepspeed
import torch
from torch.nn.functional import cross_entropy

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

endpoint, options = json.loads(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Linear(1, 2)
zero: dict[str, Any] = {"stage": 1}
config = {"train_micro_batch_size_per_gpu": options["global_batch_size"], "zero_optimization": zero}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
deepspeed.init_distributed("gloo")
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, config={**config, "zero_allow_untested_optimizer": True}
)
dataset = StreamingDataset(DataCache(endpoint), **options, columns=["id"])
steps, losses = [], []
for batch in StreamingDataLoader(dataset):
    ids = batch["id"]
    loss = cross_entropy(engine(ids.float()[:, None] / 161), (ids > 80).long())
    engine.backward(loss)
    engine.step()
    steps.append(ids.tolist())
    losses.append(loss.item())
print(json.dumps({"rank": 0, "steps": steps, "losses": losses}))
