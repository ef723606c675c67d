# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache serves every version of Delta tables as delta-rs reads them, whether delta-rs or Spark wrote them.

make test-delta runs it; it is no part of make test.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from canon import difference, rows_of
from client import Client
from seeds import SEED
from server import Cache

PROGRAM = Path(__file__).with_name("tables.py")


def test_every_version_is_as_delta_rs_reads_it(
    tmp_path: Path, private: Callable[..., Cache], connect: Callable[[Cache], Client]
) -> None:
    """Compares the rows of all versions, in any order."""
    python, jars = os.environ["DATACACHE_DELTA_PYTHON"], os.environ["DATACACHE_DELTA_JARS"]
    count = os.environ.get("DELTA_TABLES", "30")
    command = [python, str(PROGRAM), jars, str(tmp_path), str(SEED), count]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    wrong, rows = [], 0
    made = json.loads((tmp_path / "made.json").read_text())
    for one in made:
        with pa.OSFile(one["rows"]) as file:
            want = pa.ipc.open_file(file).read_all()
        cache = private(["--delta", one["table"], "--snapshot-id", str(one["version"])])
        cache.wait("Ready")
        client = connect(cache)
        got = client.table()
        client.close()
        cache.stop()
        rows += want.num_rows
        differs = difference(rows_of(got), rows_of(want))
        if got.column_names != want.column_names or differs:
            wrong.append(f"{one['table']} version {one['version']}: {differs}; {got.column_names}, {want.column_names}")
    print(f"{len(made)} versions, {rows} rows")
    assert not wrong, "\n".join(wrong)
