# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The functions that each rank runs. The SDK sends only a function's source, so each must contain its imports."""


def train(global_batch: int, epochs: int) -> None:
    """Learn each row's class by softmax regression; ranks train independently."""
    import json
    import time

    import numpy as np

    from kubeflow_datacache import DataCache

    loader = DataCache.from_env().loader(global_batch_size=global_batch, seed=7, tail="keep")
    weights, first = None, 0.0
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        right, rows, began = 0, 0, time.time()
        for batch in loader:
            first = first or time.time()
            columns = batch.numpy()
            labels = columns.pop("label")
            features = np.stack([np.asarray(values) for _, values in sorted(columns.items())], axis=1)
            if weights is None:
                weights = np.zeros((features.shape[1], 4), np.float32)
            scores = np.exp(features @ weights)
            scores /= scores.sum(axis=1, keepdims=True)
            right += int((scores.argmax(axis=1) == labels).sum())
            rows += len(labels)
            scores[np.arange(len(labels)), labels] -= 1
            weights -= 0.5 / len(labels) * features.T @ scores
        speed = rows / (time.time() - began)
        print(f"epoch {epoch + 1}: accuracy {right / rows:.1%}, {rows:,} rows, {speed:,.0f} rows/s", flush=True)
    stats = loader.stats()
    print(
        json.dumps({"first_batch": first, "rows": stats.rows, "bytes": stats.bytes, "seconds": stats.wall}), flush=True
    )


def alone() -> None:
    """Use a first batch of made-up rows, without a cache."""
    import json
    import time

    import numpy as np

    batch = np.random.default_rng(7).normal(size=(1024, 16)).astype(np.float32)
    # A second line: the Kubernetes client would decode a log that consists of one JSON value.
    print(f"{len(batch)} rows that are made up\n" + json.dumps({"first_batch": time.time()}), flush=True)
