# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""CacheTrainer seeks to its step after a resume: the steps before it are not read."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from peer import Peer
from small import steps_of

from kubeflow_datacache import DataCache, StateError

pytest.importorskip("transformers")
from transformers import TrainingArguments

from frameworks import Model
from kubeflow_datacache.torch import StreamingDataset
from kubeflow_datacache.torch.huggingface import CacheTrainer

OPTIONS: dict[str, Any] = {"global_batch_size": 9, "seed": 4}
ROWS = 100


def train(cache: DataCache, folder: Path, resume: str | None, **options: Any) -> list[list[int]]:
    """The ids of each step of a training of two epochs, which saves after 2 updates of 2 steps."""
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=2, save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
        gradient_accumulation_steps=2, dataloader_num_workers=options.pop("workers", 0),
    )  # fmt: skip
    model = Model()
    given: dict[str, Any] = {**OPTIONS, "columns": ["id"], **options}
    dataset = StreamingDataset(cache, **given)
    CacheTrainer(model=model, args=arguments, train_dataset=dataset).train(resume_from_checkpoint=resume)
    return model.seen


def test_a_resume_seeks(peer: Peer, cache: DataCache, tmp_path: Path) -> None:
    want = list(itertools.chain(*(steps_of({**OPTIONS, "tail": "drop"}, epoch, rows=ROWS) for epoch in range(2))))
    assert train(cache, tmp_path, None) == want
    for saved, start in [(2, (0, 4)), (8, (1, 4))]:
        peer.requests.clear()
        assert train(cache, tmp_path, str(tmp_path / f"checkpoint-{saved}")) == want[4 if saved == 2 else 15 :]
        read = [(request["epoch"], request["start_step"]) for request in peer.requests if request["kind"] == "epoch"]
        assert read[0] == start, "the steps before are not read again"
    with pytest.raises(StateError, match="seed = 4, but this loader has 5"):
        train(cache, tmp_path, str(tmp_path / "checkpoint-2"), seed=5)
