# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A head and its data nodes as separate processes, as in a cluster."""

from __future__ import annotations

from typing import Any

from demo.progress import Progress
from kit.caches import Cache


class Cluster(Cache):
    """Running servers. Clients need only endpoint; the rest is for observing and stopping the servers."""

    def wait_ready(self) -> None:
        """Shows the load's progress until all rows are in memory. Raises with the reason if the cache fails."""
        progress = Progress("load", 1)

        def show(status: dict[str, Any]) -> None:
            if (splits := status.get("splits")) and splits["total"]:
                progress.update(splits["done"] / splits["total"], f"{splits['done']}/{splits['total']} splits")

        status = self.wait("Ready", seen=show)
        nodes = ", ".join(f"node {n['index']}: {n['rows']:,}" for n in status["nodes"])
        progress.close(f"{status['rows']:,} rows, {status['bytes'] / 1e6:.0f} MB in memory ({nodes})")
