# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every Python block of docs/frameworks.md runs, in the page's order, against a real cache."""

from __future__ import annotations

from pathlib import Path

from pages import page_cache, run_page
from ray_environment import ray_environment

# What the page takes as given: the reader's own model and storage.
MODEL = """
import functools
import os
import torch
import lightning

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(5, 1)

    def forward(self, input_ids, labels):
        return {"loss": 1e-6 * (self.line(input_ids.float()).sum() + labels.sum())}

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

from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

words = Tokenizer(models.WordLevel({"[UNK]": 0, "[END]": 1, "text": 2}, "[UNK]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[END]")
sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
language_model = LlamaForCausalLM(LlamaConfig(vocab_size=3, **sizes))
import trl

trl.SFTConfig = functools.partial(trl.SFTConfig, use_cpu=True, bf16=False)  # whose default wants a GPU
storage = os.getcwd()
model, module = Model(), Module()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
HOLDS = """
titan = config.dataloader.build(dp_world_size=2, dp_rank=0, seq_len=4, local_batch_size=64)
assert next(iter(titan))[0]["input"].shape == (64, 4)
assert loader.stats().steps == 6
assert result.metrics == {"epoch": 2}, result.metrics
assert arrays["input_ids"].shape == (1024, 5) and arrays["labels"].shape == (1024,)
assert frame.shape == (1024, 1)
"""


def test_every_block_runs(server: Path, tmp_path: Path) -> None:
    with page_cache(server, tmp_path) as cache, ray_environment() as environment:
        run_page("docs/frameworks.md", MODEL, HOLDS, cache, tmp_path, **environment)
