# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of each section of docs/frameworks.md run as a script, after those of the page's beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PageCache, guarded, page_cache, run_script, sections_of
from ray_environment import ray_environment

# What the page takes as given: the reader's own model and storage.
MODEL = """
import torch

torch.manual_seed(0)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(5, 1)

    def forward(self, input_ids, labels):
        return {"loss": 1e-6 * (self.line(input_ids.float()).sum() + labels.sum())}

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
MODULE = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Model()

    def training_step(self, batch, index):
        return self.model(**batch)["loss"]

    def validation_step(self, batch, index):
        self.model(**batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

module = Module()
"""
LANGUAGE_MODEL = """
import functools
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[UNK]": 0, "[END]": 1, "text": 2}, "[UNK]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[END]")
sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
language_model = LlamaForCausalLM(LlamaConfig(vocab_size=3, **sizes))
import trl

trl.SFTConfig = functools.partial(trl.SFTConfig, use_cpu=True, bf16=False)  # its defaults want a GPU
"""
TITAN = """
titan = config.dataloader.build(dp_world_size=2, dp_rank=0, seq_len=4, local_batch_size=64)
assert next(iter(titan))[0]["input"].shape == (64, 4)
"""
MEGATRON = """
import os
import sys
import types
import torch.distributed as dist
from megatron.core import parallel_state

args = types.SimpleNamespace(consumed_train_samples=1024, global_batch_size=1024, micro_batch_size=64, seq_length=4)
sys.modules["megatron.training"] = types.SimpleNamespace(get_args=lambda: args)  # Megatron-LM is in no package
dist.init_process_group("gloo", f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
assert next(train_valid_test_datasets_provider([])[0])["tokens"].shape == (64, 4)
dist.destroy_process_group()
"""
ARRAYS = 'assert arrays["input_ids"].shape == (1024, 5) and arrays["labels"].shape == (1024,) and right == 1050'
SECTIONS = {  # by title: code that runs before the section's blocks, and code that checks what they did
    "Lightning": (MODEL + MODULE, "assert trainer.global_step == loader.stats().steps == 6"),
    "Accelerate": (MODEL, "import os\nassert os.path.exists('out/model.safetensors')"),
    "Hugging Face's Trainer": (
        MODEL,
        "assert trainer.state.global_step == 6 and metrics['eval_loss'] == trainer.evaluate()['eval_loss'] != 0",
    ),
    "TRL": (LANGUAGE_MODEL, "assert trainer.state.global_step == 3"),
    "torchtitan": ("", TITAN),
    "Megatron-LM and Megatron-Bridge": ("", MEGATRON),
    "Ray Train": ("import os\nstorage = os.getcwd()", 'assert result.metrics == {"epoch": 2, "right": 1050}'),
    "JAX": ("", ARRAYS),
    "pandas": ("", "assert frame.shape == (1024, 1)"),
}
BEGIN, *TITLES = (blocks := sections_of("docs/frameworks.md"))


@pytest.fixture(scope="module")
def cache(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageCache]:
    """A cache of a table with the columns that the page names."""
    with page_cache(server, tmp_path_factory.mktemp("page")) as one:
        yield one


@pytest.mark.parametrize("title", TITLES)
def test_the_blocks_of_a_section_are_a_script(title: str, cache: PageCache, tmp_path: Path) -> None:
    given, holds = SECTIONS[title]
    with ray_environment() as environment:
        run_script("\n".join([given, blocks[BEGIN], blocks[title], guarded(holds)]), cache, tmp_path, **environment)
