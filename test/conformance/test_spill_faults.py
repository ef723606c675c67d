# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Spill files on disks that are full, read-only or broken; the memory of a data node with a limit."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from client import Client
from server import Cache, Caches
from test_spill import MEMORY, epoch, folder, metric

__all__ = ["folder"]  # the fixture

Connect = Callable[[Cache], Client]
Start = Callable[[str, Path], Cache]

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="mounting and control groups need root")


@pytest.fixture
def start(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Start]:
    """A function that starts a cache in a mount namespace, after commands there, with spill files in a folder."""
    given: Path = request.config.getoption("--server")  # pyright: ignore[reportAssignmentType]
    started = list[Cache]()

    def run(before: str, spill: Path) -> Cache:
        program = tmp_path / "cacheserver"
        program.write_text(f'#!/usr/bin/env -S unshare --mount sh -e\n{before}\nexec "{given.resolve()}" "$@"\n')
        program.chmod(0o700)
        spill.mkdir()
        env = {"SPILL_DIR": str(spill), "SPILL_LIMIT": "1Gi", "MEMORY_LIMIT": str(MEMORY), "PATH": os.environ["PATH"]}
        started.append(Caches(program, tmp_path / "logs").start(["--files", str(folder)], nodes=1, env=env))
        return started[-1]

    yield run
    for cache in started:
        cache.processes["local"].kill()
        cache.processes["local"].wait()


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose processes may use MEMORY bytes."""
    for parent, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        try:
            path = Path(tempfile.mkdtemp(prefix="datacache-test-", dir=parent))
        except OSError:
            continue
        if (path / limit).exists():
            (path / limit).write_text(str(MEMORY))
            yield path
            path.rmdir()
            return
        path.rmdir()
    pytest.skip("no hierarchy of control groups is writable, or it has no memory controller")


def test_a_full_disk_fails_the_cache(start: Start, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    reason = start(f"mount -t tmpfs -o size=40m none {spill}", spill).wait("Failed")["reason"]
    assert "the disk is full: needed " in reason
    assert f"spill folder {spill}" in reason
    assert " are free: use a larger volume, add data nodes, or cache fewer columns or rows" in reason


def test_a_disk_that_takes_no_writes_fails_the_cache(start: Start, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    reason = start(f"mount -t tmpfs -o ro none {spill}", spill).wait("Failed")["reason"]
    assert "read-only file system" in reason
    assert str(spill) in reason


def test_what_a_broken_disk_lost_is_decoded_again(start: Start, connect: Connect, tmp_path: Path) -> None:
    image, spill = tmp_path / "disk", tmp_path / "spill"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    cache = start(f"mount -o loop {image} {spill}", spill)
    cache.wait("Ready")
    client = connect(cache)
    want = epoch(client, 0)
    os.truncate(image, 48 << 20)  # the device answers reads behind it with an error
    for number in range(2):
        assert epoch(client, number).sort_by("id").equals(want.sort_by("id")), number
    assert metric(cache, "spill_repaired_chunks_total") > 0
    assert "input/output error" in (cache.logs / "local.log").read_text()


def test_a_process_stays_within_its_limit(group: Path, start: Start, connect: Connect, tmp_path: Path) -> None:
    cache = start(f"echo $$ > {group}/cgroup.procs", tmp_path / "spill")  # which ends a process that needs more
    cache.wait("Ready")
    client = connect(cache)
    want = client.table()
    assert epoch(client, 0, clump=1).sort_by("id").equals(want)
    assert epoch(client, 0, clump=64).sort_by("id").equals(want)
    assert epoch(client, 0, shuffle=False).sort_by("id").equals(want)
    status = Path(f"/proc/{cache.processes['local'].pid}/status").read_text()
    peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak <= MEMORY
