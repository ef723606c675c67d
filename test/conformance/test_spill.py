# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables larger than the memory: the same rows from spill files, whatever happens to those."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from client import Client
from seeds import seeds
from server import Cache

from kit.deadline import eventually

Connect = Callable[[Cache], Client]

ROWS, FILES = 160_000, 8
ROOM = 64 << 20  # half of the rows' bytes, besides what loading and decoding a row group again need
MEMORY = ROOM + (96 << 20)  # with what the process itself takes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet files with about 120 MB of rows, most of which is random bytes."""
    path, noise = tmp_path_factory.mktemp("large"), np.random.default_rng(49)
    for i in range(FILES):
        n = ROWS // FILES
        lengths = noise.integers(0, 1200, n)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        data = pa.py_buffer(noise.bytes(int(ends[-1])))
        binary = pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(ends), data])
        ids = pa.array(np.arange(i * n, (i + 1) * n))
        table = pa.table(
            {
                "id": ids,
                "class": pa.array(noise.integers(0, 100, n), pa.int32(), mask=noise.random(n) < 0.1),
                "data": binary,
            }
        )
        pq.write_table(table, path / f"{i}.parquet", compression="none", row_group_size=5_000)
    return path


def spilled(private: Callable[..., Cache], folder: Path, spill: Path, memory: int = MEMORY, **kwargs: Any) -> Cache:
    """A cache of the folder whose rows are in spill files too."""
    kwargs.setdefault("nodes", 1)
    return private(["--files", str(folder)], env={"SPILL_DIR": str(spill), "MEMORY_LIMIT": str(memory)}, **kwargs)


def epoch(client: Client, number: int, *, shuffle: bool = True, clump: int = 1, **fields: Any) -> pa.Table:
    """The rows of an epoch, in its order."""
    share = {"tail": "keep", "rank": 0, "world": 1}
    order = {"seed": 7, "epoch": number, "shuffle": shuffle, "clump": clump, "global_batch": 512}
    return client.read(client.command(kind="epoch", **order, **share, **fields))


def metric(cache: Cache, name: str) -> float:
    """The value of a metric without labels."""
    lines = cache.get("/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"datacache_{name} "))


def flip(spill: Path, bytes_: int, chooser: random.Random) -> None:
    """Flips bytes of the rows in the files."""
    files = sorted(spill.rglob("*.rows"))
    assert files, "there are no spill files"
    for _ in range(bytes_):
        with chooser.choice(files).open("r+b") as file:
            at = chooser.randrange(4096, file.seek(0, 2) // 2)  # in neither prefix nor head
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ 1 << chooser.randrange(8)]))


def test_the_same_rows_as_from_memory(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path
) -> None:
    plain, cache = private(["--files", str(folder)], nodes=1), spilled(private, folder, tmp_path / "spill")
    plain.wait("Ready")
    assert cache.wait("Ready")["bytes"] > 1.3 * ROOM
    want, got = connect(plain), connect(cache)
    assert got.table().equals(want.table())
    requests: list[dict[str, Any]] = [{"clump": 1}, {"clump": 64}, {"shuffle": False}]
    requests += [{"columns": ["id"]}, {"filter": "class = 3 OR id < 20000"}]
    for number in range(2):
        for fields in requests:
            assert epoch(got, number, **fields).equals(epoch(want, number, **fields)), (number, fields)
    asked = random.Random(1).choices(range(ROWS), k=1000)  # less than 1 MiB, which a client may take whatever is free
    taken = [client.take(client.command(kind="take").endpoints[0], asked, [5], []) for client in (want, got)]
    assert taken[0] == taken[1]
    assert metric(cache, "spill_read_bytes_total") > 0
    assert metric(cache, "spill_repaired_chunks_total") == 0


def test_memory_for_a_tenth_of_the_rows(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path
) -> None:
    """Slow, but never refused and never wrong: rows by number too."""
    plain = private(["--files", str(folder)], nodes=1)
    cache = spilled(private, folder, tmp_path / "spill", MEMORY - (40 << 20))
    plain.wait("Ready")
    assert cache.wait("Ready")["bytes"] > 90 << 20
    want, got = connect(plain), connect(cache)
    asked = random.Random(1).choices(range(ROWS), k=1000)
    taken = [client.take(client.command(kind="take").endpoints[0], asked, [5]) for client in (want, got)]
    assert taken[0] == taken[1]
    assert epoch(got, 1).equals(epoch(want, 1))


@pytest.mark.night
@pytest.mark.parametrize("seed", seeds(2))
def test_flipped_bytes_are_never_served(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path, seed: int
) -> None:
    cache, chooser = spilled(private, folder, tmp_path / "spill"), random.Random(seed)
    cache.wait("Ready")
    client = connect(cache)
    want = client.table()
    for number in range(3):
        flip(tmp_path / "spill", 10, chooser)
        got = epoch(client, number)
        assert got.sort_by("id").equals(want), number
    assert metric(cache, "spill_repaired_chunks_total") > 0


def wait_for_spill(cache: Cache) -> list[dict[str, int]]:
    """What the head knows of the files of all data nodes, which report once a second."""

    def told() -> list[dict[str, int]] | None:
        nodes = cache.status()["nodes"]
        return [node["spill"] for node in nodes] if all("spill" in node for node in nodes) else None

    return eventually("the files of all data nodes in /status", told)


def test_a_restarted_node_serves_from_its_files(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    for path in folder.iterdir():
        (table / path.name).hardlink_to(path)
    cache = spilled(private, table, tmp_path / "spill", nodes=2, mode="cluster")
    cache.wait("Ready")
    want = epoch(connect(cache), 0)
    shown = wait_for_spill(cache)
    assert all(0 < node["resident"] < node["bytes"] < node["limit"] for node in shown), shown
    assert re.search(r"MiB of [\d.]+ .iB in files, [\d.]+ MiB of it in memory", cache.get("/")[1])
    table.rename(tmp_path / "away")  # nothing can be read from there
    cache.restart("node-0")
    cache.wait("Ready")
    assert epoch(connect(cache), 0).equals(want)


def test_too_little_room_is_explained(private: Callable[..., Cache], folder: Path, tmp_path: Path) -> None:
    cache = private(["--files", str(folder)], nodes=1, env={"MEMORY_LIMIT": str(ROOM)})
    reason = cache.wait("Failed")["reason"]
    small = {"MEMORY_LIMIT": str(MEMORY)}
    assert "--spill-dir (in a cluster, spec.arrow.spill or SPILL_LIMIT)" in reason
    needed = re.search(r"all take about (\d+) bytes", reason)
    assert needed is not None, reason
    enough = {**small, "SPILL_DIR": str(tmp_path / "enough"), "SPILL_LIMIT": str(int(1.1 * int(needed[1])))}
    private(["--files", str(folder)], nodes=1, env=enough).wait("Ready")
    cache = private(
        ["--files", str(folder)], nodes=1, env={**small, "SPILL_DIR": str(tmp_path / "less"), "SPILL_LIMIT": "20Mi"}
    )
    reason = cache.wait("Failed")["reason"]
    assert "--spill-limit" in reason
    assert "20.0 MiB" in reason
    assert not list((tmp_path / "less").rglob("*.rows")), "files of a cache that failed are left"


def test_a_stream_that_ends_early_leaves_nothing(
    private: Callable[..., Cache], connect: Connect, folder: Path, tmp_path: Path
) -> None:
    cache = spilled(private, folder, tmp_path / "spill")
    cache.wait("Ready")
    client = connect(cache)
    endpoint = client.command(
        kind="epoch", seed=1, epoch=0, shuffle=True, clump=1, global_batch=64, tail="keep", rank=0, world=1
    ).endpoints[0]
    for _ in range(20):
        reader = client.node(endpoint).do_get(endpoint.ticket)
        assert reader.read_chunk().data.num_rows > 0
        reader.cancel()
        del reader
    assert epoch(client, 1).num_rows == ROWS
