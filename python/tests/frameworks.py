# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training with Lightning, Accelerate or Hugging Face's Trainer, written as users would.

It trains two epochs, then resumes in a new trainer from a checkpoint after three steps of the first epoch, and writes
the row ids of all steps of both trainings as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataLoader, StreamingDataset

EPOCHS, SAVED = 2, 3  # SAVED: number of steps before the checkpoint

Steps = list[list[int]]


class Model(torch.nn.Module):
    """Records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: Steps = []

    def forward(self, id: torch.Tensor) -> dict[str, torch.Tensor]:
        """A loss so small that the weights hardly change."""
        self.seen.append(id.tolist())
        return {"loss": 1e-9 * self.line(id.float().unsqueeze(1)).sum()}


def lightning(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """Lightning's Trainer."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(batch["id"])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    world = int(os.environ.get("WORLD_SIZE", "1"))

    def fit(checkpoint: Path | None) -> Steps:
        saves = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=SAVED)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=world, strategy="ddp",
            callbacks=[saves], logger=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        module = Module()
        loader = StreamingDataLoader(dataset(), num_workers=workers)
        trainer.fit(module, loader, ckpt_path=checkpoint, weights_only=False)
        return module.model.seen

    return fit(None), fit(folder / f"step={SAVED}.ckpt")


def accelerate(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """A training loop with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    def fit(state: dict[str, Any] | None) -> tuple[Steps, dict[str, Any]]:
        model, seen, saved = Model(), [], {}
        loader = StreamingDataLoader(dataset(), num_workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        noted = model.seen
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        for _ in range(EPOCHS):
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch["id"])["loss"])
                    optimizer.step()
                    optimizer.zero_grad()
                seen.append(accelerator.sync_gradients)
                if len(seen) == SAVED:
                    saved = loader.state_dict()
            assert accelerator.sync_gradients, "the last step of an epoch is one of the optimizer"
        return noted, saved

    whole, saved = fit(None)
    return whole, fit(saved)[0]


def huggingface(dataset: Any, folder: Path, workers: int) -> tuple[Steps, Steps]:
    """Hugging Face's Trainer."""
    from transformers import TrainingArguments

    from kubeflow_datacache.torch.huggingface import CacheTrainer

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, save_steps=SAVED, use_cpu=True, report_to=[],
        disable_tqdm=True, dataloader_num_workers=workers, ddp_backend="gloo" if "RANK" in os.environ else None,
    )  # fmt: skip

    def fit(checkpoint: Path | None) -> Steps:
        model = Model()
        CacheTrainer(model=model, args=arguments, train_dataset=dataset()).train(
            resume_from_checkpoint=None if checkpoint is None else str(checkpoint)
        )
        return model.seen

    return fit(None), fit(folder / f"checkpoint-{SAVED}")


def main() -> None:
    """Runs the training that the command line describes."""
    endpoint, options, kind, folder, workers = json.loads(sys.argv[1])
    cache = DataCache(endpoint, retry_seconds=60)
    whole, rest = globals()[kind](lambda: StreamingDataset(cache, **options, columns=["id"]), Path(folder), workers)
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    (Path(folder) / f"read-{rank}.json").write_text(json.dumps([whole, rest]))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # without this, gloo's threads may abort the process at exit


if __name__ == "__main__":
    main()
