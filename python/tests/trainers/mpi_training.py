# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A rank that mpirun started, with torch's gloo; prints its rows of each step and the loss over all ranks."""

import json
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from kubeflow_datacache import DataCache, World
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

endpoint, options, meeting = json.loads(sys.argv[1])
world = World.detect()  # from the variables of Open MPI
found = DataCache.from_env().endpoint
assert found == "grpc://train-cache-service:50051", found
dist.init_process_group("gloo", meeting, rank=world.rank, world_size=world.size)
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
dataset = StreamingDataset(DataCache(endpoint), **options, columns=["id"])
steps, losses = [], []
for batch in StreamingDataLoader(dataset):
    ids = batch["id"]
    loss = cross_entropy(model(ids.float()[:, None] / 161), (ids > 80).long(), reduction="sum") * batch.weight
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss := loss.detach())
    steps.append(ids.tolist())
    losses.append(loss.item() / world.size)
print(json.dumps({"rank": world.rank, "steps": steps, "losses": losses}))
dist.destroy_process_group()
