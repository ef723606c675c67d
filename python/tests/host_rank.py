# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several ranks of a host that one reader serves, as a process: python host_rank.py '{...}'.

Prints, a line of JSON each: of every step its number, a hash of its rows and the seconds that it waited; at the end,
how many steps came from the reader of the host. Waits for a line of input before the step named `pause`.
`hurry` has the names in PATIENCE that keep their values; the others get `patience`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubeflow_datacache import Batch, DataCache, Loader, Pack, PackedBatch, PackLoader, World, mix
from kubeflow_datacache import loader as loader_module
from kubeflow_datacache.host import link, merge

# How long ranks wait for each other and their reader: as long as a test may take, if it isn't about that.
PATIENCE = (
    (link, "_SILENT_SECONDS"),
    (link, "_LAG_SECONDS"),
    (merge, "_JOIN_SECONDS"),
    (merge, "_REQUIRED_SECONDS"),
)


def hash_of(batch: Batch) -> str:
    """A hash of a batch's rows, and of what a rank knows of them."""
    rows = batch.arrow()
    found = hashlib.sha256(repr([rows.schema.to_string(), rows.to_pydict()]).encode())
    found.update(repr([batch.indices.tolist(), batch.weight]).encode())
    if isinstance(batch, PackedBatch):
        packs = [None if pack is None else [part.tolist() for part in pack] for pack in batch.planned.packs]
        found.update(repr([packs, batch.tokens]).encode())
    return found.hexdigest()


def loader_of(cache: DataCache, own: Mapping[str, Any]) -> Loader:
    """The loader of a rank."""
    world = World(own.get("rank", 0), own.get("size", 1), replicas=own["replicas"], local=own.get("local", 1))
    options: Any = {**own["options"], "world": world, "host": own["host"]}
    if pack := own.get("pack"):
        options = {name: value for name, value in options.items() if name not in ("global_batch_size", "tail")}
        options["pack"] = Pack(**pack)
    parts: Any = {"a": (cache, 2), "b": (cache.select(filter="id < 100"), 1)}
    return mix(parts, **options) if own.get("mix") else cache.loader(**options)


def main(own: Mapping[str, Any]) -> None:
    """Reads epochs."""
    sys.executable = own.get("executable", sys.executable)
    loader_module.__dict__["_MOST_CONNECTIONS"] = own.get("connections", 256)
    for module, name in PATIENCE:
        if name not in own.get("hurry", ()):
            module.__dict__[name] = own["patience"]
    with DataCache(own["endpoint"], retry_seconds=own["patience"]) as cache:
        loader = loader_of(cache, own)
        if "state" in own:
            loader.load_state_dict(own["state"])
        for _ in range(own.get("epochs", 1)):
            asked = time.monotonic()
            for batch in loader:
                waited = time.monotonic() - asked
                line = {"step": batch.step, "rows": hash_of(batch), "waited": waited}
                print(json.dumps(line), flush=True)
                if batch.step == own.get("pause"):
                    sys.stdin.readline()
                asked = time.monotonic()
        counted = loader.counts.rows if isinstance(loader, PackLoader) else None
        print(json.dumps({"shared": loader.stats().shared, "counted": counted}), flush=True)
    # close() leaves no shared memory of the reader, open or mapped
    assert not [path for path in Path("/proc/self/fd").iterdir() if "memfd:datacache" in os.path.realpath(path)]
    assert "memfd:datacache" not in Path("/proc/self/maps").read_text()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
