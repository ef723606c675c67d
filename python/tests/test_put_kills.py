# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts whose writers, data nodes and head are killed at random events: a dataset is whole or absent."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from chance import Chance
from kit.deadline import Wait, eventually, limit
from server import Cache, Caches

from kubeflow_datacache import DataCache, DataCacheError, DatasetChangedError, Put, RefusedError

KILLS = 4  # of each way to keep rows; 300 in all: make test-loader PYTEST='-k random_kills --thorough 25'
PARTS, ROWS, WRITERS, NODES = 8, 1500, 2, 2  # rows of a part
BATCH = 100  # rows
Moment = Literal["sending", "sent", "published"]
SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])


def part_of(version: int, part: int) -> pa.Table:
    """The rows of a part."""
    ids = range(part * ROWS, (part + 1) * ROWS)
    return pa.table({"id": ids, "version": [version] * ROWS, "text": [f"{version} {i}" for i in ids]}, SCHEMA)


def write(put: str, version: str, parts: str, pause_at: str) -> None:
    """A writer: sends parts, a second time too, as a scheduler does that speculates.

    pause_at: the number of the batch before which it says that it has come so far, and waits until it may go on; none
    if negative. At its end it says how often it began to send a part.
    """
    started: Put = pickle.loads(Path(put).read_bytes())
    sent = begun = 0

    def batches(table: pa.Table, attempt: int) -> Iterator[pa.RecordBatch]:
        nonlocal sent, begun
        begun += 1
        for batch in table.to_batches(max_chunksize=BATCH * attempt):
            if sent == int(pause_at):
                print("paused", flush=True)
                sys.stdin.readline()
            sent += 1
            yield batch

    for part in map(int, parts.split(",")):
        table = part_of(int(version), part)
        for attempt in (1, 2):
            started.send(part, lambda table=table, attempt=attempt: batches(table, attempt), attempt=attempt)
    print(begun, flush=True)


def batches_of(parts: int) -> int:
    """The batches that a writer sends at least."""
    return parts * sum(-(-ROWS // (BATCH * attempt)) for attempt in (1, 2))


class Reader(threading.Thread):
    """Reads the dataset all the time, and notes what it should not have found."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint, self.ended, self.reads, self.wrong, self.limit = endpoint, threading.Event(), 0, "", limit()

    def run(self) -> None:
        """Reads until it is told to end."""
        while not self.ended.wait(0.02) and not self.wrong:
            with (
                contextlib.suppress(DataCacheError, pa.ArrowException),
                DataCache(self.endpoint, dataset="a", retry_seconds=self.limit) as cache,
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
    """One put of a version: kills something at a random event, and goes on until it is published."""

    def __init__(self, cache: Cache, client: DataCache, version: int, folder: Path, chance: random.Random) -> None:
        self.cache, self.client, self.version, self.folder, self.chance = cache, client, version, folder, chance
        self.moment: Moment = chance.choice(["sending", "sending", "sent", "published"])
        names = list(cache.processes)
        self.kills = chance.choice(["writer", *names] if self.moment == "sending" else names)
        self.killed = ""

    def kill(self, moment: Moment) -> None:
        """Kills a server at its moment and starts it again, once."""
        if moment == self.moment and not self.killed:
            self.cache.restart(self.kills)
            self.killed = self.kills

    def run(self) -> str:
        """Returns the fingerprint, after something was killed."""
        wait = Wait()
        while not wait.over():
            started = Put.begin(self.client, "a", SCHEMA, parts=PARTS, mode="replace")
            (self.folder / "put").write_bytes(pickle.dumps(started))
            with contextlib.suppress(RefusedError):  # the cache has forgotten the put: all that had it were killed
                while (missing := self.missing(started)) and not wait.over():
                    self.write(missing)
                self.kill("sent")
                fingerprint = started.publish().fingerprint
                self.kill("published")
                assert self.killed == self.kills, f"{self.kills} was not killed"
                return fingerprint
        raise TimeoutError(f"not published, after {self.killed or 'nothing'} was killed")

    def write(self, parts: list[int]) -> None:
        """Sends parts by several writers, of which the first one is interrupted if that is the moment."""
        shares = [parts[i::WRITERS] for i in range(WRITERS) if parts[i::WRITERS]]
        at = -1
        if self.moment == "sending" and not self.killed:
            at = self.chance.randrange(batches_of(len(shares[0])))
        writers = [self.writer(share, -1 if i else at) for i, share in enumerate(shares)]
        if at >= 0:
            self.interrupt(writers[0], shares[0], at)
        for writer in writers:
            writer.communicate()

    def interrupt(self, writer: subprocess.Popen[str], parts: list[int], at: int) -> None:
        """Kills the writer, or a server, while the writer waits before a batch; it must then send the part again."""
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "paused\n"
        if self.kills == "writer":
            writer.kill()
            assert writer.wait() == -signal.SIGKILL
            self.killed = self.kills
            return
        self.kill("sending")
        writer.stdin.write("\n")
        writer.stdin.flush()
        part = parts[at // batches_of(1)]
        if self.kills == f"node-{part * NODES // PARTS}":
            begun = writer.stdout.readline()
            assert int(begun) > 2 * len(parts), f"{self.kills} was killed, but had part {part} already"

    def missing(self, started: Put) -> list[int]:
        """The parts that are not there."""
        there = {part["part"] for part in started.status()["parts"]}
        return [part for part in range(PARTS) if part not in there]

    def writer(self, parts: list[int], pause_at: int) -> subprocess.Popen[str]:
        """Starts a writer of parts."""
        own = [str(self.folder / "put"), str(self.version), ",".join(map(str, parts)), str(pause_at)]
        return subprocess.Popen(
            [sys.executable, __file__, *own],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.mark.night
@pytest.mark.parametrize("keep", ["memory", "disk", "replica"])
def test_random_kills(keep: str, server: Path, chance: Chance, tmp_path: Path) -> None:
    caches = Caches(server, tmp_path / "logs")
    env = {"PUT_KEEP": keep} | ({"SPILL_DIR": str(tmp_path / "spill")} if keep == "disk" else {})
    cache = caches.start(["--puts"], nodes=NODES, mode="cluster", env=env)
    cache.wait("Ready")
    reader = Reader(cache.endpoint)
    reader.start()
    try:
        with DataCache(cache.endpoint, retry_seconds=limit()) as client:
            prints: dict[int, str] = {}
            for number, rng in chance.schedules(KILLS):
                version = number % 3
                one = Round(cache, client, version, tmp_path, rng)
                fingerprint = one.run()
                assert prints.setdefault(version, fingerprint) == fingerprint, (
                    f"other rows after {one.killed} was killed"
                )
                check(cache, f"a@{fingerprint}", version, keep, one.killed)
            eventually("a read of the dataset", lambda: reader.reads or reader.wrong)
    finally:
        reader.ended.set()
        reader.join()
        cache.stop(signal.SIGKILL)
        caches.close()
    assert not reader.wrong, reader.wrong
    chance.note(f"kills while a dataset is put, kept with {keep}: {KILLS * chance.thorough}, none half there")


def check(cache: Cache, reference: str, version: int, keep: str, killed: str) -> None:
    """Reads what was published. In memory alone, a node that is killed after that has lost it, which must be said."""
    lost = ""
    with DataCache(cache.endpoint, dataset=reference, retry_seconds=limit()) as one:
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
