# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tensors of packs are those of transformers' DataCollatorWithFlattening."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import DataCollatorWithFlattening

from kubeflow_datacache import Pack, Packed
from kubeflow_datacache.order.packed import Spans


@pytest.mark.parametrize("labels", [None, "labels"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "pieces"])
def test_hf_is_what_the_collator_returns(*, labels: str | None, whole: bool) -> None:
    lengths = np.array([5, 1, 9, 3])
    tokens = [list(range(10 * i, 10 * i + n)) for i, n in enumerate(lengths.tolist())]
    rows = pa.RecordBatch.from_pydict({"input_ids": tokens, "labels": [[-t for t in row] for row in tokens]})
    starts = np.array([0, 0, 0, 0] if whole else [1, 0, 4, 0])
    pieces = Spans(starts, lengths - starts)
    packed = Packed(rows.slice(0), pieces, Pack("input_ids", 32, 1, labels=labels), full=32)
    names = ["input_ids", *([labels] if labels else [])]
    features = [
        {name: rows[name][i].as_py()[int(start) :] for name in names} for i, start in enumerate(starts.tolist())
    ]
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    want: dict[str, Any] = dict(collate(features, return_tensors="pt"))
    got = packed.hf()
    assert got.keys() == want.keys()
    for name, value in want.items():
        if isinstance(value, torch.Tensor):
            assert got[name].dtype == value.dtype, name
            assert torch.equal(got[name], value), name
        else:
            assert got[name] == value, name
    padded = packed.hf(pad=True)
    assert padded["input_ids"].shape == (1, 32)
    assert padded["cu_seq_lens_q"].tolist() == [*want["cu_seq_lens_q"].tolist(), 32]
