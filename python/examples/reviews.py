# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a small BERT on text rows from a datacache. Cells begin with "# %%": run it, or open it as a notebook.

    make build training-venv
    PYTHONPATH=python/src $(make -s print-TRAINING) python/examples/reviews.py

Cells 1 and 3 make what a cluster has already: an Iceberg table, and a cache that serves it. There the same train()
runs on every node of a TrainJob, and finds its cache by itself: see the last cell, and docs/use.md.
"""

# %% 1. A table of reviews: real Iceberg, written by pyiceberg. On a cluster it is in your object store.
import argparse
import random
import tempfile
from pathlib import Path

import pyarrow as pa

from kubeflow_datacache import DataCache

GOOD = ["great", "lovely", "warm", "funny", "moving", "bright", "tender", "clever", "charming", "superb"]
BAD = ["dull", "cold", "boring", "broken", "noisy", "cheap", "stale", "clumsy", "awful", "tiresome"]
PLAIN = [
    "the",
    "a",
    "film",
    "book",
    "story",
    "actor",
    "plot",
    "scene",
    "ending",
    "music",
    "voice",
    "room",
    "page",
    "hour",
    "of",
    "with",
    "and",
    "was",
    "felt",
    "seemed",
]


def review(chance: random.Random, label: int) -> str:
    """Random words, more of the label's mood than of the other: the label depends on both counts."""
    mood, other = (GOOD, BAD) if label else (BAD, GOOD)
    words = chance.choices(PLAIN, k=chance.randint(5, 25)) + chance.choices(mood, k=3) + chance.choices(other, k=1)
    chance.shuffle(words)
    return " ".join(words)


def write_table(folder: Path, rows: int) -> str:
    """Write the table demo.reviews (content, label) and return where its metadata file is."""
    from pyiceberg.catalog.sql import SqlCatalog

    chance = random.Random(7)
    labels = [chance.randint(0, 1) for _ in range(rows)]
    data = pa.table({"content": [review(chance, label) for label in labels], "label": pa.array(labels, pa.int64())})
    catalog = SqlCatalog("demo", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("demo")
    table = catalog.create_table("demo.reviews", schema=data.schema)
    table.append(data)
    return table.metadata_location


# %% 2. The training function, which a TrainJob runs on every node. It imports all it needs: its source is sent alone.
def train(endpoint: str | None = None, epochs: int = 2, batch: int = 64, steps: int | None = None) -> float:
    """Train on the cache's reviews; return rank 0's accuracy in the last epoch. steps bounds an epoch."""
    import itertools
    import os
    import zlib
    from typing import Any

    import pyarrow as pa
    import torch
    import torch.distributed as dist

    from kubeflow_datacache import DataCache

    length, words = 32, 1024

    def tokenize(rows: pa.RecordBatch) -> dict[str, torch.Tensor]:
        """Token ids (rows, length), 1 for [CLS], 0 for none; labels (rows,). Runs on threads, ahead of training."""
        padded: list[list[int]] = []
        for text in rows.column("content").to_pylist():
            tokens = [2 + zlib.crc32(word.encode()) % (words - 2) for word in text.lower().split()[: length - 1]]
            padded.append([1, *tokens] + [0] * (length - 1 - len(tokens)))
        return {"ids": torch.tensor(padded), "labels": torch.tensor(rows.column("label").to_pylist())}

    class Bert(torch.nn.Module):
        """Embeddings, two encoder layers, and a head over [CLS]."""

        def __init__(self, width: int = 64) -> None:
            super().__init__()
            self.words, self.places = torch.nn.Embedding(words, width, 0), torch.nn.Embedding(length, width)
            layer = torch.nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, 2)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            return self.head(self.encoder(x, src_key_padding_mask=ids == 0)[:, 0])

    if "RANK" in os.environ and not dist.is_initialized():  # under torchrun, as in a TrainJob
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model: Any = Bert()
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # The two lines that bring the data: rank and world size come from torch.distributed.
    cache = DataCache(endpoint) if endpoint else DataCache.from_env()
    loader = cache.loader(global_batch_size=batch, seed=7, columns=["content", "label"], transform=tokenize)

    accuracy = 0.0
    for epoch in range(epochs):
        loader.set_epoch(epoch)  # another order every epoch
        right = seen = 0
        for step in itertools.islice(loader, steps):
            scores = model(step.data["ids"])
            loss = torch.nn.functional.cross_entropy(scores, step.data["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right, seen = right + int((scores.argmax(1) == step.data["labels"]).sum()), seen + step.num_rows
        accuracy = right / max(seen, 1)
        if loader.world.rank == 0:
            print(f"epoch {epoch}: {seen} rows on rank 0, accuracy {accuracy:.1%}\n{loader.stats()}", flush=True)
        # A checkpoint is torch.save({"model": ..., "loader": loader.state_dict()}): any rank's state serves all ranks,
        # and any number of them; loader.load_state_dict(state) goes on at the next row that was not trained on.
    cache.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    return accuracy


# %% 3. Here and now, from a cache on this machine. On a cluster, datacache starts one for the TrainJob.
def main() -> None:
    """Create the table, serve it, and train on it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--server", type=Path, default=Path("bin/cacheserver"), help="the cacheserver binary (make build)"
    )
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        DataCache.local(write_table(Path(folder), args.rows), program=args.server) as cache,
    ):
        accuracy = train(cache.endpoint, epochs=args.epochs)
    print(f"accuracy of the last epoch: {accuracy:.1%}")


if __name__ == "__main__":
    main()

# %% 4. On a cluster: two changed lines beside any other TrainJob, the runtime and the initializer.
#
#   from kubeflow.trainer import CustomTrainer, Initializer, TrainerClient
#   from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, cache_logs
#
#   client = TrainerClient()
#   job = client.train(
#       runtime="torch-distributed-with-cache",
#       initializer=Initializer(dataset=ArrowCacheDatasetInitializer(
#           cluster_size=5, metadata_loc="s3://bucket/reviews/metadata/00003.metadata.json",
#           schema_name="demo", table_name="reviews", columns=["content", "label"])),
#       trainer=CustomTrainer(func=train, num_nodes=8, packages_to_install=["kubeflow-datacache"]))
#   for line in cache_logs(client, job, follow=True):   # the load's progress
#       print(line)
