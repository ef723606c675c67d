# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""XGBoost reads an epoch by its own iterator of batches; prints the rows of each step and the loss of each round."""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

import json
import sys
from collections.abc import Callable
from typing import Any

import xgboost

from kubeflow_datacache import DataCache

endpoint, options = json.loads(sys.argv[1])
loader = DataCache(endpoint).loader(**options, columns=["id"])
steps: list[list[int]] = []


class Batches(xgboost.DataIter):
    """The batches of epoch 0, as often as XGBoost reads them."""

    def reset(self) -> None:
        """Begins again."""
        loader.set_epoch(0)
        self._batches = iter(loader)

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Gives XGBoost a batch; false at the end."""
        if (batch := next(self._batches, None)) is None:
            return False
        ids = batch.numpy()["id"]
        if batch.step == 0:
            steps.clear()
        steps.append(ids.tolist())
        input_data(data=ids[:, None], label=ids > 80)
        return True


matrix = xgboost.QuantileDMatrix(Batches())
seen: dict[str, dict[str, list[float]]] = {}
objective = {"objective": "binary:logistic", "nthread": 1, "max_depth": 2}
xgboost.train(objective, matrix, 3, evals=[(matrix, "train")], evals_result=seen, verbose_eval=False)
print(json.dumps({"rank": 0, "steps": steps, "losses": seen["train"]["logloss"]}))
