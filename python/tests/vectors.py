# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The golden vectors of orders (test/golden), which test the Go implementations too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def vectors(name: str) -> Any:
    """The contents of a file of golden vectors."""
    return json.loads((Path(__file__).parents[2] / "test/golden" / name).read_text())


def order_fields(vector: dict[str, Any]) -> dict[str, Any]:
    """The fields of an Epoch that a vector gives, but for its number of rows."""
    return {
        "seed": vector["seed"],
        "number": vector["epoch"],
        "shuffle": vector["shuffle"],
        "clump": vector["clump"],
        "window": vector.get("window", 0),
        "global_batch": vector["global_batch"],
        "tail": vector["tail"],
    }
