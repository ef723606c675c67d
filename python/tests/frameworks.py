# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training with Lightning, Accelerate or Hugging Face's Trainer, written as users would.

It trains two epochs, resumes in a new trainer from a checkpoint after three steps of the first epoch, or does both, and
writes the row ids of all steps of each training as JSON. After each epoch it evaluates, with the ids of the rows below
40.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from kubeflow_datacache import DataCache, World, verify
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

ROWS = 161  # of the cache
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


def lightning(dataset: Any, folder: Path, workers: int, resumed: bool) -> Steps:
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

    def trainer(**options: Any) -> Any:
        return lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=world, strategy="ddp",
            logger=False, enable_progress_bar=False, enable_model_summary=False, **options,
        )  # fmt: skip

    loader = StreamingDataLoader(dataset(), num_workers=workers)
    saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=SAVED)
    one = trainer(callbacks=[saves, VerifyRows(loader)])
    module, plain = Module(), Module()
    validation = StreamingDataLoader(evaluation(dataset), num_workers=workers, restart=True)
    checkpoint = folder / f"step={SAVED}.ckpt" if resumed else None
    one.fit(module, loader, validation, ckpt_path=checkpoint, weights_only=False)
    if not resumed:
        sanity = int(one.num_sanity_val_steps) * 8 // world
        check(module.model.evaluated[sanity:], EPOCHS)
        trainer(enable_checkpointing=False).fit(plain, DataLoader(dataset(), batch_size=None))
        assert plain.model.seen == module.model.seen, "a plain DataLoader reads another order in every epoch too"
    return module.model.seen


def accelerate(dataset: Any, folder: Path, workers: int, resumed: bool) -> Steps:
    """A training loop with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    divided_again(accelerator, dataset)
    accelerator.free_memory()  # load_state counts loaders in the order in which they were prepared
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


def divided_again(accelerator: Any, dataset: Any) -> None:
    """Asserts that a plain DataLoader, whose rows Accelerate divides among ranks once more, is refused."""
    for dispatch in (False, None):
        accelerator.dataloader_config.dispatch_batches = dispatch
        divided = accelerator.prepare(DataLoader(dataset(), batch_size=None))
        if not accelerator.is_main_process:
            continue
        if accelerator.num_processes == 1:
            assert sorted(i for batch in divided for i in batch["id"].tolist()) == list(range(ROWS))
            continue
        with pytest.raises(TypeError, match=r"give prepare\(\) a StreamingDataLoader"):
            next(iter(divided))
    accelerator.dataloader_config.dispatch_batches = None


def huggingface(dataset: Any, folder: Path, workers: int, resumed: bool) -> Steps:
    """Hugging Face's Trainer."""
    from transformers import TrainingArguments

    from kubeflow_datacache.torch.huggingface import CacheTrainer

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, save_steps=SAVED, use_cpu=True, report_to=[],
        disable_tqdm=True, eval_strategy="epoch",
        dataloader_num_workers=workers, ddp_backend="gloo" if "RANK" in os.environ else None,
    )  # fmt: skip

    model, held = Model(), evaluation(dataset)
    trainer = CacheTrainer(model=model, args=arguments, train_dataset=dataset(), eval_dataset=held, verify=True)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{SAVED}") if resumed else None)
    check(model.evaluated, EPOCHS)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] != 0
    assert (trainer.predict(held).metrics or {})["test_loss"] == metrics["eval_loss"]
    return model.seen


def main() -> None:
    """Runs the trainings that the command line describes: in `runs`, whether each resumes."""
    endpoint, options, kind, folder, workers, runs = json.loads(sys.argv[1])
    cache = DataCache(endpoint, retry_seconds=600)

    def dataset(**own: Any) -> StreamingDataset:
        given: dict[str, Any] = {**options, "columns": ["id"], **own}
        return StreamingDataset(cache, **given)

    proved = Proved()
    read = [globals()[kind](dataset, Path(folder), workers, resumed) for resumed in runs]
    assert proved.epochs == [(epoch, len(cache), 0) for epoch in range(EPOCHS)] * len(runs), proved.epochs
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    (Path(folder) / f"read-{rank}.json").write_text(json.dumps(read))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # without this, gloo's threads may abort the process at exit


if __name__ == "__main__":
    main()
