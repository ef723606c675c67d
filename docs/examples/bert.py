# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train a BERT on reviews in an Iceberg table, with a TrainJob that the Kubeflow SDK creates.

Needs datacache in the cluster, and here: pip install 'kubeflow-datacache[sdk]'
"""

import argparse

from kubeflow.trainer import CustomTrainer, Initializer, TrainerClient
from kubeflow.trainer.options import (
    Annotations,
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    RuntimePatch,
    TrainingRuntimeSpecPatch,
)

from kubeflow_datacache.sdk import ArrowCacheDatasetInitializer, step_logs


def train_bert(
    folder: str,
    epochs: int = 2,
    global_batch_size: int = 32,
    every: int = 16,
    trace: bool = False,
) -> None:
    """Train, from the last checkpoint in the folder if there is one.

    Runs on every node, so it imports what it needs.
    folder: a volume that all nodes share. every: steps between checkpoints.
    trace: print each step's rows and loss.
    """
    import json
    import os
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from tokenizers import BertWordPieceTokenizer, Tokenizer
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel
    from transformers import BertConfig, BertForSequenceClassification

    from kubeflow_datacache import DataCache, World

    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    words, checkpoint = Path(folder, "tokenizer.json"), Path(folder, "checkpoint.pt")
    cache = DataCache.from_env()

    # A tokenizer of the table's own words: rank 0 reads the texts once.
    if rank == 0 and not words.exists():
        loader = cache.loader(
            global_batch_size=1024,
            shuffle=False,
            tail="keep",
            columns=["content"],
            world=World(0, 1),
        )
        texts = (batch["content"].to_pylist() for batch in loader)
        tokenizer = BertWordPieceTokenizer()
        tokenizer.train_from_iterator(texts, vocab_size=2048, show_progress=False)
        tokenizer.save(f"{words}.part")
        Path(f"{words}.part").rename(words)
    dist.barrier()
    tokenizer = Tokenizer.from_file(str(words))
    tokenizer.enable_truncation(64)
    tokenizer.enable_padding(length=64)

    def encode(rows):  # on the loader's threads, ahead of the training
        encoded = tokenizer.encode_batch(rows["content"].to_pylist())
        return {
            "input_ids": torch.tensor([e.ids for e in encoded]),
            "attention_mask": torch.tensor([e.attention_mask for e in encoded]),
            "labels": torch.tensor(rows["label"].to_pylist()),
        }

    torch.manual_seed(0)  # the same first weights on every rank
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with device:
        bert = BertForSequenceClassification(config)
    model = DistributedDataParallel(bert)
    optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-3)

    loader = cache.loader(
        global_batch_size=global_batch_size,
        seed=7,
        columns=["content", "label"],
        transform=encode,
    )
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        bert.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # with any number of ranks
        print(f"resumed: epoch {loader.epoch}, step {loader.next_step}", flush=True)

    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)  # another order every epoch
        for batch in loader:
            inputs = {name: tensor.to(device) for name, tensor in batch.data.items()}
            labels = inputs.pop("labels")
            losses = cross_entropy(model(**inputs).logits, labels, reduction="sum")
            # DDP divides the sum of the ranks' gradients by their number; shares of a
            # batch may differ by a row.
            loss = losses * world / global_batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step = batch.step + 1
            if trace:
                rows = {"epoch": epoch, "step": batch.step, "ids": batch.indices.tolist()}
                print(json.dumps({**rows, "loss": losses.item()}), flush=True)
            elif rank == 0 and step % every == 0:
                position = f"epoch {epoch}, step {step} of {loader.steps}"
                print(f"{position}: loss {loss.item():.3f}", flush=True)
            if rank == 0 and step % every == 0:
                state = {
                    "model": bert.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                }
                torch.save(state, f"{checkpoint}.part")
                Path(f"{checkpoint}.part").rename(checkpoint)  # whole or not at all
    if rank == 0:
        print(loader.stats(), flush=True)  # what the training waited for
    dist.destroy_process_group()


def volumes(folders: dict[str, str]) -> RuntimePatch:
    """Mount PersistentVolumeClaims in the training containers: folders by claim."""
    claims = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in folders]
    mounts = [{"name": claim, "mountPath": folder} for claim, folder in folders.items()]
    node = ContainerPatch("node", volume_mounts=mounts)
    pod = PodTemplatePatch(spec=PodSpecPatch(volumes=claims, containers=[node]))
    job = ReplicatedJobPatch("node", JobTemplatePatch(spec=JobSpecPatch(pod)))
    jobs = JobSetTemplatePatch(spec=JobSetSpecPatch([job]))
    return RuntimePatch(TrainingRuntimeSpecPatch(jobs))


def main() -> None:
    """Create the TrainJob and show its log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("metadata", help="URI of the table's *.metadata.json")
    parser.add_argument("--image", default="pytorch/pytorch:latest", help="has torch")
    parser.add_argument("--claim", default="checkpoints", help="all nodes can mount it")
    parser.add_argument("--keys", help="Secret with the bucket's keys, if it wants any")
    parser.add_argument("--nodes", type=int, default=2)
    args = parser.parse_args()
    options: list[RuntimePatch | Annotations] = [volumes({args.claim: "/checkpoints"})]
    if args.keys:
        secret = "datacache.kubeflow.org/credentials-secret"
        options.append(Annotations({secret: args.keys}))
    client = TrainerClient()
    job = client.train(
        runtime="torch-distributed",
        initializer=Initializer(
            dataset=ArrowCacheDatasetInitializer(
                cluster_size=3,
                metadata_loc=args.metadata,
                schema_name="demo",
                table_name="reviews",
                columns=["content", "label"],
            )
        ),
        trainer=CustomTrainer(
            func=train_bert,
            func_args={"folder": "/checkpoints"},
            image=args.image,
            num_nodes=args.nodes,
            packages_to_install=["kubeflow-datacache", "transformers"],
        ),
        options=options,
    )
    for line in step_logs(client, job):
        print(line)


if __name__ == "__main__":
    main()
