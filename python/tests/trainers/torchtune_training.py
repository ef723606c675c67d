# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small Llama of torchtune with its loss, on columns of tokens; prints the rows and the loss of each step."""
# pyright: reportMissingImports=false

import json
import sys

import torch
from torchtune.models.llama3_2 import llama3_2
from torchtune.modules.loss import CEWithChunkedOutputLoss

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

endpoint, options = json.loads(sys.argv[1])
torch.manual_seed(0)
model = llama3_2(
    vocab_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    embed_dim=16,
    max_seq_len=64,
    intermediate_dim=32,
)
optimizer = torch.optim.AdamW(model.parameters(), 0.05)
loss_of = CEWithChunkedOutputLoss()
model.set_num_output_chunks(loss_of.num_output_chunks)
dataset = StreamingDataset(DataCache(endpoint), **options, columns=["id", "tokens"])
steps, losses = [], []
for batch in StreamingDataLoader(dataset):
    tokens = batch["tokens"].long()[:, :32] % 64
    labels = torch.hstack((tokens[:, 1:], torch.full((len(tokens), 1), loss_of.ignore_index)))
    loss = loss_of(model(tokens), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps.append(batch["id"].tolist())
    losses.append(loss.item())
print(json.dumps({"rank": 0, "steps": steps, "losses": losses}))
