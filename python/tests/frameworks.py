# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training with Lightning, Accelerate or Hugging Face's Trainer, written as users would.

It trains two epochs, then resumes in a new trainer from a checkpoint after three steps of the first epoch, and writes
the row ids of all steps of both trainings as JSON. After each epoch it evaluates, with the ids of the rows below 40.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from kubeflow_datacache import DataCache, World, verify
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

EPOCHS, SAVED = 2, 3  # SAVED: number of steps before the checkpoint

Steps = list[list[int]]


class Proved(logging.Handler):
    """The epochs that a proof's log says were verified: number, rows, first step."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.epochs: list[Any] = []
        logger = logging.getLogger("kubeflow_datacache")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps what a record says."""
        self.epochs.append(record.args)


class Model(torch.nn.Module):
    """Records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: Steps = []
        self.evaluated: list[int] = []

    def forward(self, id: torch.Tensor, return_loss: bool = True) -> dict[str, torch.Tensor]:
        """A loss so small that the weights hardly change."""
        if self.training:
            self.seen.append(id.tolist())
        else:
            self.evaluated += id.tolist()
        return {"loss": 1e-9 * self.line(id.float().unsqueeze(1)).sum()}


def evaluation(dataset: Any) -> Any:
    """A dataset of the rows below 40, in their order."""
    return dataset(filter="id < 40", shuffle=False, global_batch_size=8)


def check(evaluated: list[int], rounds: int) -> None:
    """Asserts that each evaluation of this rank read its rows of all steps, in order."""
    world = World.detect()
    share = [i for i in range(40) if 8 // world.size * world.rank <= i % 8 < 8 // world.size * (world.rank + 1)]
    assert evaluated == share * rounds, evaluated


def lightning(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """Lightning's Trainer."""
    import lightning

    from kubeflow_datacache.torch.lightning import VerifyRows

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(batch["id"])["loss"]

        def validation_step(self, batch: Any, index: int) -> None:
            self.model(batch["id"])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    world = int(os.environ.get("WORLD_SIZE", "1"))

    def fit(checkpoint: Path | None) -> Steps:
        loader = StreamingDataLoader(dataset(), num_workers=workers)
        proof = VerifyRows(loader)
        saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=SAVED)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=world, strategy="ddp",
            callbacks=[saves, proof], logger=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        module = Module()
        validation = StreamingDataLoader(evaluation(dataset), num_workers=workers, restart=True)
        trainer.fit(module, loader, validation, ckpt_path=checkpoint, weights_only=False)
        if checkpoint is None:
            sanity = int(trainer.num_sanity_val_steps) * 8 // world
            check(module.model.evaluated[sanity:], EPOCHS)
        return module.model.seen

    return fit(None), fit(folder / f"step={SAVED}.ckpt")


def accelerate(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """A training loop with Accelerate."""
    from accelerate import Accelerator

    def fit(resumed: bool) -> Steps:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model, seen = Model(), []
        loader = StreamingDataLoader(dataset(), num_workers=workers)
        validation = StreamingDataLoader(evaluation(dataset), num_workers=workers, restart=True)
        own, optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader, validation = accelerator.prepare(model, optimizer, loader, validation)
        proof = verify(loader)
        accelerator.register_for_checkpointing(proof)
        if resumed:
            accelerator.load_state(str(folder))
        for _ in range(EPOCHS):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["id"])["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
                seen.append(accelerator.sync_gradients)
                proof(batch)
                if len(seen) == SAVED and not resumed:
                    accelerator.save_state(str(folder))
            model.eval()
            for batch in validation:
                model(batch["id"])
            model.train()
            assert accelerator.sync_gradients, "the last step of an epoch is one of the optimizer"
        check(own.evaluated, EPOCHS)
        accelerator.free_memory()
        return own.seen

    accelerator = Accelerator(cpu=True)
    for dispatch in (False, None):
        divided = DataLoader(dataset(), batch_size=None)
        try:
            accelerator.dataloader_config.dispatch_batches = dispatch
            divided = accelerator.prepare(divided)
            read = [i for batch in divided for i in batch["id"].tolist()] if accelerator.is_main_process else []
            assert accelerator.num_processes == 1 or not read, f"the rows of a rank are divided again: {len(read)}"
        except TypeError as error:
            if "StreamingDataLoader" not in str(error):
                raise
    accelerator.free_memory()  # load_state counts loaders in the order in which they were prepared
    return fit(resumed=False), fit(resumed=True)


def huggingface(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """Hugging Face's Trainer."""
    from transformers import TrainingArguments

    from kubeflow_datacache.torch.huggingface import CacheTrainer

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, save_steps=SAVED, use_cpu=True, report_to=[],
        disable_tqdm=True, eval_strategy="epoch",
        dataloader_num_workers=workers, ddp_backend="gloo" if "RANK" in os.environ else None,
    )  # fmt: skip

    def fit(checkpoint: Path | None) -> Steps:
        model, held = Model(), evaluation(dataset)
        trainer = CacheTrainer(model=model, args=arguments, train_dataset=dataset(), eval_dataset=held, verify=True)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        check(model.evaluated, EPOCHS)
        metrics = trainer.evaluate()
        assert metrics["eval_loss"] != 0
        assert (trainer.predict(held).metrics or {})["test_loss"] == metrics["eval_loss"]
        return model.seen

    return fit(None), fit(folder / f"checkpoint-{SAVED}")


def main() -> None:
    """Runs the training that the command line describes."""
    endpoint, options, kind, folder, workers = json.loads(sys.argv[1])
    cache = DataCache(endpoint, retry_seconds=60)

    def dataset(**own: Any) -> StreamingDataset:
        given: dict[str, Any] = {**options, "columns": ["id"], **own}
        return StreamingDataset(cache, **given)

    proved = Proved()
    whole, rest = globals()[kind](dataset, Path(folder), workers)
    assert proved.epochs == [(epoch, len(cache), 0) for epoch in range(EPOCHS)] * 2, proved.epochs
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    (Path(folder) / f"read-{rank}.json").write_text(json.dumps([whole, rest]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # without this, gloo's threads may abort the process at exit


if __name__ == "__main__":
    main()
