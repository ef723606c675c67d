# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning's Trainer.

from kubeflow_datacache.torch.lightning import VerifyRows

lightning.Trainer(callbacks=[VerifyRows(loader)]).fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from kubeflow_datacache.extras import needs
from kubeflow_datacache.proof import Verifiable, verify

with needs("lightning", "kubeflow_datacache.torch.lightning"):
    from lightning.pytorch import Callback


class VerifyRows(Callback):
    """Proves at the end of each epoch that its rows were each trained on exactly once; see Proof.

    loader: the StreamingDataLoader that Trainer.fit gets. Checkpoints keep the sums of an epoch that is not complete.
    """

    def __init__(self, loader: Verifiable, *, group: Any = None) -> None:
        self._proof = verify(loader, group=group)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Counts the rows of the batch."""
        self._proof(batch)

    def state_dict(self) -> dict[str, Any]:
        """The proof's state."""
        return self._proof.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues with a saved state."""
        self._proof.load_state_dict(state_dict)
