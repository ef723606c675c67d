# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several ranks of a host that read the same rows, as a process: python host_rank.py '{...}'.

Prints, a line of JSON each: of every step its number, a hash of its rows and the seconds that it waited; at the end,
how many steps came from the reader of the host. Waits for a line of input before the step named `pause`.
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

import pyarrow as pa

from kubeflow_datacache import DataCache, Loader, World, mix


def hash_of(batch: pa.RecordBatch) -> str:
    """A hash of rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def loader_of(cache: DataCache, own: Mapping[str, Any]) -> Loader:
    """The loader of a rank."""
    world = World(own.get("rank", 0), own.get("size", 1), replicas=own["replicas"])
    options: Any = {**own["options"], "world": world, "host": own["host"]}
    parts: Any = {"a": (cache, 2), "b": (cache.select(filter="id < 100"), 1)}
    return mix(parts, **options) if own.get("mix") else cache.loader(**options)


def main(own: Mapping[str, Any]) -> None:
    """Reads epochs."""
    sys.executable = own.get("executable", sys.executable)
    with DataCache(own["endpoint"], retry_seconds=60) as cache:
        loader = loader_of(cache, own)
        for _ in range(own.get("epochs", 1)):
            asked = time.monotonic()
            for batch in loader:
                waited = time.monotonic() - asked
                line = {"step": batch.step, "rows": hash_of(batch.arrow()), "waited": waited}
                print(json.dumps(line), flush=True)
                if batch.step == own.get("pause"):
                    sys.stdin.readline()
                asked = time.monotonic()
        print(json.dumps({"shared": loader.stats().shared}), flush=True)
    # close() leaves no shared memory of the reader, open or mapped
    assert not [path for path in Path("/proc/self/fd").iterdir() if "memfd:datacache" in os.path.realpath(path)]
    assert "memfd:datacache" not in Path("/proc/self/maps").read_text()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
