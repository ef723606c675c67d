# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache of a random folder has the rows that pyarrow.dataset, DuckDB and datasets read, in their order, or fails.

make test runs a few folders of pyarrow and DuckDB; make test-folders runs many, of polars, Spark and datasets too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import folders
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from canon import row_digests
from client import Client
from seeds import SEED
from server import Cache
from test_files import check_equal

PROGRAM = Path(__file__).with_name("random_folders.py")


@pytest.fixture(scope="session")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function that returns where the folders of a writer are, and has it write them when it is called first."""
    roots: dict[str, Path] = {}

    def write(writer: str) -> Path:
        if writer not in roots:
            roots[writer] = root = tmp_path_factory.mktemp(writer)
            others = {
                "datasets": "DATACACHE_HUB_PYTHON",
                "polars": "DATACACHE_FOLDERS_PYTHON",
                "spark": "DATACACHE_FOLDERS_PYTHON",
            }
            python = os.environ[others[writer]] if writer in others else sys.executable
            count = str(request.config.getoption("--folders"))
            done = subprocess.run(
                [python, str(PROGRAM), writer, str(root), count, str(SEED)],
                capture_output=True, text=True, check=False, cwd=root,
                env={**os.environ, "HF_HOME": str(root / "home"), "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-6000:]
        return roots[writer]

    return write


def test_random_folders(
    writer: str,
    folder_number: int,
    written: Callable[[str], Path],
    private: Callable[..., Cache],
    connect: Callable[[Cache], Client],
) -> None:
    folder = written(writer) / str(folder_number)
    cache = private(["--files", str(folder)], nodes=1 + folder_number % 3)
    status = cache.wait("Ready", "Failed")
    if status["state"] == "Failed":
        check_refused(folder, status["reason"])
        return
    got = connect(cache).table()
    check_plain(got, folders.scan_by_duckdb(folder))
    if writer == "datasets":
        with pa.OSFile(f"{folder}.arrow") as file:
            check_equal(got, pa.ipc.open_file(file).read_all())
    try:
        want = folders.scan(folder)
    except OSError:
        assert writer == "duckdb"  # pyarrow can't read its pages of version 2 that have only nulls
        return
    for name in want.column_names:  # INT96 has nanoseconds in pyarrow
        at = want.column_names.index(name)
        if pa.types.is_timestamp(want[name].type) and pa.types.is_timestamp(got[name].type):
            want = want.set_column(at, name, want[name].cast(pa.timestamp(got[name].type.unit, want[name].type.tz)))
    check_equal(got, want)


def check_refused(folder: Path, reason: str) -> None:
    """Asserts that the column "changing" has numbers and texts, and that the reason names it and two files."""
    files: list[str] = ds.dataset(folder, format="parquet", exclude_invalid_files=False).files
    types = [schema.field("changing").type for schema in map(pq.read_schema, files) if "changing" in schema.names]
    assert {pa.types.is_integer(one) for one in types} == {True, False}, reason
    assert '"changing"' in reason
    assert sum(file in reason for file in files) == 2, reason


def check_plain(got: pa.Table, want: pa.Table) -> None:
    """Asserts that the columns that DuckDB has in the same types have the same values."""
    assert set(got.column_names) == set(want.column_names)
    assert got.num_rows == want.num_rows
    same = [
        name
        for name in got.column_names
        if is_plain(got.schema.field(name).type) and is_plain(want.schema.field(name).type)
    ]
    assert row_digests(got.select(same)) == row_digests(want.select(same))


def is_plain(of: pa.DataType) -> bool:
    """Whether a type means the same to all engines."""
    if pa.types.is_list(of):
        return is_plain(of.value_type)
    plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal128)
    return any(is_of(of) for is_of in (*plain, pa.types.is_float64, pa.types.is_binary, pa.types.is_float32))
