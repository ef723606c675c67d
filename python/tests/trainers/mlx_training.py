# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""MLX on the CPU; prints the rows and the loss of each step."""
# pyright: reportMissingImports=false

import json
import sys

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers

from kubeflow_datacache import DataCache

endpoint, options = json.loads(sys.argv[1])
mx.random.seed(0)
model = nn.Linear(1, 2)
optimizer = optimizers.SGD(0.1)
step = nn.value_and_grad(model, lambda x, y: nn.losses.cross_entropy(model(x), y, reduction="mean"))
steps, losses = [], []
for batch in DataCache(endpoint).loader(**options, columns=["id"]):
    ids = batch.numpy()["id"]
    loss, gradients = step(mx.array(ids[:, None] / 161, mx.float32), mx.array((ids > 80).astype("int32")))
    optimizer.update(model, gradients)
    mx.eval(model.parameters(), loss)
    steps.append(ids.tolist())
    losses.append(loss.item())
print(json.dumps({"rank": 0, "steps": steps, "losses": losses}))
