# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts whose writers, data nodes and head are killed at random times: a dataset is whole or absent."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from chance import Chance
from server import Cache, Caches

from kubeflow_datacache import DataCache, DataCacheError, DatasetChangedError, Put, RefusedError

KILLS = 4  # of each way to keep rows; 300 in all: make test-loader PYTEST='-k random_kills --thorough 25'
PARTS, ROWS, WRITERS = 8, 1500, 2  # rows of a part
SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])


def part_of(version: int, part: int) -> pa.Table:
    """The rows of a part."""
    ids = range(part * ROWS, (part + 1) * ROWS)
    return pa.table({"id": ids, "version": [version] * ROWS, "text": [f"{version} {i}" for i in ids]}, SCHEMA)


def write(put: str, version: str, parts: str) -> None:
    """A writer: sends parts, a second time too, as a scheduler does that speculates."""
    started: Put = pickle.loads(Path(put).read_bytes())
    for part in map(int, parts.split(",")):
        for attempt in (1, 2):
            batches = part_of(int(version), part).to_batches(max_chunksize=100 * attempt)
            started.send(part, lambda batches=batches: batches, attempt=attempt)


class Reader(threading.Thread):
    """Reads the dataset all the time, and notes what it should not have found."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint, self.ended, self.reads, self.wrong = endpoint, threading.Event(), 0, ""

    def run(self) -> None:
        """Reads until it is told to end."""
        while not self.ended.wait(0.02) and not self.wrong:
            with (
                contextlib.suppress(DataCacheError, pa.ArrowException),
                DataCache(self.endpoint, dataset="a", retry_seconds=0.5) as cache,
            ):
                self.wrong = wrong(cache.head(2 * PARTS * ROWS))
                self.reads += 1


def wrong(rows: pa.RecordBatch) -> str:
    """What is wrong with the rows of a dataset, if anything is."""
    versions = set(rows["version"].to_pylist())
    if len(versions) != 1 or rows["id"].to_pylist() != list(range(PARTS * ROWS)):
        return f"{rows.num_rows} rows of versions {versions}, want {PARTS * ROWS} of one, each once and in order"
    return ""


class Round:
    """One put of a version: kills something at a random time, and goes on until it is published."""

    def __init__(self, cache: Cache, client: DataCache, version: int, folder: Path, chance: random.Random) -> None:
        self.cache, self.client, self.version, self.folder, self.chance = cache, client, version, folder, chance
        self.killed = ""

    def kill(self, writers: list[subprocess.Popen[bytes]], names: list[str]) -> None:
        """Kills one process after a random time; servers are started again."""
        time.sleep(self.chance.random() ** 2 * 1.5)
        self.killed = self.chance.choice(["writer", *names])
        if self.killed == "writer":
            self.chance.choice(writers).kill()
        else:
            self.cache.restart(self.killed)

    def run(self) -> str:
        """Returns the fingerprint, after something was killed."""
        names, killer = list(self.cache.processes), None
        end = time.monotonic() + 120
        while time.monotonic() < end:
            started = Put.begin(self.client, "a", SCHEMA, parts=PARTS, mode="replace")
            (self.folder / "put").write_bytes(pickle.dumps(started))
            with contextlib.suppress(RefusedError):  # the cache has forgotten the put: all that had it were killed
                while (missing := self.missing(started)) and time.monotonic() < end:
                    writers = [self.writer(missing[i::WRITERS]) for i in range(WRITERS) if missing[i::WRITERS]]
                    if killer is None:
                        killer = threading.Thread(target=self.kill, args=(writers, names))
                        killer.start()
                    for writer in writers:
                        writer.wait()
                fingerprint = started.publish().fingerprint
                if killer is not None:
                    killer.join()
                return fingerprint
        raise TimeoutError(f"not published within 120 s, after {self.killed or 'nothing'} was killed")

    def missing(self, started: Put) -> list[int]:
        """The parts that are not there."""
        there = {part["part"] for part in started.status()["parts"]}
        return [part for part in range(PARTS) if part not in there]

    def writer(self, parts: list[int]) -> subprocess.Popen[bytes]:
        """Starts a writer of parts."""
        command = [sys.executable, __file__, str(self.folder / "put"), str(self.version), ",".join(map(str, parts))]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.night
@pytest.mark.parametrize("keep", ["memory", "disk", "replica"])
def test_random_kills(keep: str, server: Path, chance: Chance, tmp_path: Path) -> None:
    caches = Caches(server, tmp_path / "logs")
    env = {"PUT_KEEP": keep} | ({"SPILL_DIR": str(tmp_path / "spill")} if keep == "disk" else {})
    cache = caches.start(["--puts"], mode="cluster", env=env)
    cache.wait("Ready")
    reader = Reader(cache.endpoint)
    reader.start()
    try:
        with DataCache(cache.endpoint, retry_seconds=60) as client:
            prints: dict[int, str] = {}
            for number, rng in chance.schedules(KILLS):
                version = number % 3
                one = Round(cache, client, version, tmp_path, rng)
                fingerprint = one.run()
                assert prints.setdefault(version, fingerprint) == fingerprint, (
                    f"other rows after {one.killed} was killed"
                )
                check(cache, f"a@{fingerprint}", version, keep, one.killed)
    finally:
        reader.ended.set()
        reader.join()
        cache.stop(signal.SIGKILL)
        caches.close()
    assert not reader.wrong, reader.wrong
    assert reader.reads, "nothing was read meanwhile"
    chance.note(f"kills while a dataset is put, kept with {keep}: {KILLS * chance.thorough}, none half there")


def check(cache: Cache, reference: str, version: int, keep: str, killed: str) -> None:
    """Reads what was published. In memory alone, a node that is killed after that has lost it, which must be said."""
    lost = ""
    with DataCache(cache.endpoint, dataset=reference, retry_seconds=60) as one:
        try:
            rows = one.head(2 * PARTS * ROWS)
        except (RefusedError, DatasetChangedError) as error:
            lost = str(error)
        else:
            assert not wrong(rows), f"{killed} was killed: {wrong(rows)}"
            assert rows["version"][0].as_py() == version, f"{killed} was killed"
    if lost:
        assert (keep, killed[:4]) == ("memory", "node"), f"{killed} was killed: {lost}"
        assert "lost: put it again" in lost


if __name__ == "__main__":
    write(*sys.argv[1:])
