# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trainings with TRL's SFTTrainer of two ranks, then of other numbers of ranks from a checkpoint.

Prints the row ids of all steps of each as JSON. The rows are texts of one word, the row's id, which TRL tokenizes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from forked import EPOCHS, SAVED, run_ranks
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOTrainer, SFTConfig, SFTTrainer  # pyright: ignore[reportPrivateImportUsage] - its documented names

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch import StreamingDataset
from kubeflow_datacache.torch.huggingface import CacheTrainer

ROWS = 161


class CacheSFTTrainer(CacheTrainer, SFTTrainer):  # pyright: ignore[reportIncompatibleMethodOverride] - TRL names more parameters
    """As on the page."""

    seen: list[list[int]]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Records the ids."""
        self.seen.append(args[1]["input_ids"][:, 0].tolist())
        return super().training_step(*args, **kwargs)


def texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The ids as texts."""
    return pa.RecordBatch.from_arrays([pc.cast(rows["id"], pa.string())], ["text"])


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of one token a number, the number itself."""
    words = Tokenizer(models.WordLevel({**{str(i): i for i in range(ROWS)}, "<end>": ROWS, "<pad>": ROWS + 1}))
    words.pre_tokenizer = pre_tokenizers.Split("<end>", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", pad_token="<pad>")


def trainer(endpoint: str, options: dict[str, Any], folder: str, **arguments: Any) -> CacheSFTTrainer:
    """A trainer of a tiny model."""
    config = LlamaConfig(
        vocab_size=ROWS + 2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    own = SFTConfig(
        output_dir=folder, num_train_epochs=EPOCHS, save_steps=SAVED, use_cpu=True, report_to=[], disable_tqdm=True,
        bf16=False, gradient_checkpointing=False, ddp_backend="gloo", eval_strategy="epoch", save_only_model=False,
        **arguments,
    )  # fmt: skip
    cache = DataCache(endpoint, retry_seconds=600)
    given: dict[str, Any] = {**options, "columns": ["id"], "transform": texts}
    held: dict[str, Any] = {**given, "filter": "id < 48", "shuffle": False, "global_batch_size": 12}
    made = CacheSFTTrainer(
        model=LlamaForCausalLM(config),
        args=own,
        processing_class=tokenizer(),
        train_dataset=StreamingDataset(cache, **given),
        eval_dataset=StreamingDataset(cache, **held),
    )
    made.seen = []
    return made


def train(endpoint: str, options: dict[str, Any], folder: str, resume: str | None) -> list[list[int]]:
    """The ids of this rank's steps."""
    one = trainer(endpoint, options, folder)
    one.train(resume_from_checkpoint=resume)
    assert one.evaluate()["eval_loss"] > 0
    return one.seen


def refusals(endpoint: str, options: dict[str, Any], folder: str) -> list[str]:
    """What CacheTrainer says of what would lose its place."""
    said: list[str] = []
    for arguments in ({"packing": True}, {"shuffle_dataset": True}):
        try:
            trainer(endpoint, options, folder, max_length=8, **arguments)
        except ValueError as error:
            said.append(str(error))
    try:
        type("CacheGRPOTrainer", (CacheTrainer, GRPOTrainer), {})
    except TypeError as error:
        said.append(str(error))
    return said


def main() -> None:
    """Runs the trainings that the command line describes."""
    endpoint, options, folder, saved_with, worlds = json.loads(sys.argv[1])
    done = {"whole": run_ranks(saved_with, train, endpoint, options, folder, None)}
    for world in worlds:
        checkpoint = str(Path(folder) / f"checkpoint-{SAVED}")
        done[str(world)] = run_ranks(world, train, endpoint, options, str(Path(folder) / str(world)), checkpoint)
    (done["refusals"],) = run_ranks(1, refusals, endpoint, options, folder)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
