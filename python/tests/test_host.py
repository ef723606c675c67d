# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of one host that read through one reader: real processes against a real server."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chance import Chance
from host_rank import hash_of, loader_of
from kit.deadline import eventually, limit
from small import small_cache

from kubeflow_datacache import DataCache, Loader, World
from kubeflow_datacache.host import protocol
from ranks import rank_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory of a host is Linux'")

ROWS, RANKS = 4000, 2
OPTIONS: dict[str, Any] = {"global_batch_size": 64, "seed": 3, "tail": "keep", "prefetch_bytes": 1 << 18}
STEPS = -(-ROWS // 64)
PACKED = {"pack": {"column": "tokens", "tokens": 300, "packs": 41, "window": 3, "long": "split"}}
BALANCED = {"options": {**OPTIONS, "balance": "text"}}


@pytest.fixture(scope="module")
def endpoint(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real server with a table of 2 KB rows."""
    with small_cache(server, tmp_path_factory.mktemp("host"), ROWS) as address:
        yield address


@dataclass
class Rank:
    """A rank's process, and what it has printed."""

    process: subprocess.Popen[str]
    log: Path
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def step(self) -> dict[str, Any]:
        """Waits for the next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.lines.append(json.loads(line))
        return self.lines[-1]

    def go_on(self) -> None:
        """Ends a pause."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> Rank:
        """Waits for the end."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit(), self.process.kill)
        timer.start()
        self.lines += map(json.loads, self.process.stdout)  # communicate() would lose what step() has read ahead
        timer.cancel()
        assert self.process.wait() == 0, self.log.read_text()
        return self

    @property
    def rows(self) -> list[Any]:
        """The hashes of the steps."""
        return [(line["step"], line["rows"]) for line in self.lines if "step" in line]

    @property
    def shared(self) -> int:
        """How many steps came from the reader."""
        return self.lines[-1]["shared"]


class Host:
    """Starts ranks, and finds readers by the name of their job."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self._endpoint, self._folder = endpoint, folder
        self.job = f"test-{os.getpid()}-{folder.name}"
        self._ranks: list[Rank] = []

    def start(self, **own: Any) -> Rank:
        """Starts a rank."""
        told = {
            "endpoint": self._endpoint,
            "options": OPTIONS,
            "host": "require",
            "replicas": RANKS,
            "patience": limit(),
            **own,
        }
        log = self._folder / f"rank-{len(self._ranks)}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("host_rank.py"), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**rank_environment(), "TORCHELASTIC_RUN_ID": self.job},
            )
        self._ranks.append(Rank(process, log))
        return self._ranks[-1]

    def readers(self) -> list[int]:
        """The processes of readers of this job."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_reader(pid)]

    def reader(self) -> int:
        """Waits for the one reader."""
        (one,) = eventually("a reader", self.readers)
        return one

    def wait_gone(self) -> None:
        """Waits until no reader is left."""
        eventually("the end of all readers", lambda: not self.readers())

    def close(self) -> None:
        """Kills all ranks."""
        for rank in self._ranks:
            rank.process.kill()
            rank.process.communicate()

    def _is_reader(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            return b"kubeflow_datacache.host.reader" in command and f"_RUN_ID={self.job}\0".encode() in environment
        return False


@pytest.fixture
def host(endpoint: str, tmp_path: Path) -> Generator[Host]:
    """A host of ranks, none of which outlives the test."""
    with contextlib.closing(Host(endpoint, tmp_path)) as one:
        yield one


@pytest.fixture(scope="module")
def alone(endpoint: str) -> list[Any]:
    """The rows of an epoch as one rank reads them alone."""
    return read_alone(endpoint)


def read_alone(endpoint: str, **own: Any) -> list[Any]:
    """The rows that a rank reads alone."""
    told: dict[str, Any] = {"endpoint": endpoint, "options": OPTIONS, "host": "off", "replicas": 0, **own}
    with DataCache(endpoint, retry_seconds=limit()) as cache:
        loader = loader_of(cache, told)
        return [(batch.step, hash_of(batch)) for _ in range(told.get("epochs", 1)) for batch in loader]


@pytest.mark.parametrize(
    ("own", "counted"),
    [
        ({"rank": 1, "size": 2, "epochs": 2}, None),
        ({"mix": True}, None),
        (
            {
                "options": {
                    **OPTIONS,
                    "shuffle": False,
                    "columns": ["text", "id"],
                    "filter": "id >= 50",
                    "prefetch_bytes": 1,
                }
            },
            None,
        ),
        ({**PACKED, "rank": 1, "size": 2, "epochs": 2}, 2 * ROWS),
        ({**PACKED, "mix": True}, 300),  # all 100 rows of the second part, and twice as many
        ({**BALANCED, "rank": 1, "size": 3}, None),
    ],
    ids=[
        *("a share of two epochs", "mixture", "in order, filtered, with the least memory"),
        *("packs of two epochs", "packs of a mixture", "balanced"),
    ],
)
def test_ranks_read_the_same_rows_once(host: Host, endpoint: str, own: dict[str, Any], counted: int | None) -> None:
    """All steps come from one reader, with the rows that a rank reads alone."""
    want = read_alone(endpoint, **own)
    ranks = [host.start(**own) for _ in range(RANKS)]
    host.reader()
    for rank in ranks:
        assert rank.rest().rows == want
        assert rank.shared == len(want)
        assert rank.lines[-1]["counted"] == counted


def test_ranks_begin_within_a_window(host: Host, endpoint: str) -> None:
    """Packs go on at a state, with the reader."""
    want, begin = read_alone(endpoint, **PACKED), 62
    with DataCache(endpoint) as cache:
        loader = loader_of(cache, {"options": OPTIONS, "replicas": 0, "host": "off", **PACKED})
        for _ in zip(range(begin), loader, strict=False):
            pass
        state = loader.state_dict()
    assert state["pack"]["step"] == 2
    for rank in [host.start(**PACKED, state=state) for _ in range(RANKS)]:
        assert rank.rest().rows == want[begin:]
        assert rank.shared == len(want) - begin


def test_consecutive_ranks_read_once(host: Host, endpoint: str, chance: Chance) -> None:
    """Each rank gets the rows of its place, as alone, and all steps come from the reader."""
    for _, rng in chance.schedules(4):
        hosts, local, replicas = rng.randint(1, 3), rng.randint(2, 4), rng.choice([1, 1, 2])
        first, size = rng.randrange(hosts) * local, hosts * local
        options: dict[str, Any] = {**OPTIONS, "global_batch_size": rng.randint(2, 300), "shuffle": rng.random() < 0.7}
        options |= {"tail": rng.choice(["drop", "keep", "pad"]), "prefetch_bytes": rng.choice([1, 1 << 18, 1 << 26])}
        options |= {"clump": rng.choice([1, 1, 7]), "window": rng.choice([0, 0, 64]) * options["shuffle"]}
        if options["shuffle"] and not options["window"] and options["global_batch_size"] >= 64 and rng.random() < 0.5:
            options["order"] = 2
        own: dict[str, Any] = {"options": options, "size": size, "mix": "order" not in options and rng.random() < 0.3}
        print(own, first, local, replicas)
        here = {"replicas": replicas, "local": local, "connections": 1}
        places = [*range(first, first + local)] * replicas
        for rank, process in [(rank, host.start(**own, **here, rank=rank)) for rank in places]:
            want = read_alone(endpoint, **own, rank=rank)
            assert process.rest().rows == want
            assert process.shared == len(want)


def test_which_ranks_share_connections(endpoint: str) -> None:
    """With "auto", consecutive ranks have one reader where they would have more than 256 connections."""
    with DataCache(endpoint) as cache:
        for local, required, replicas, want in (
            *((128, False, 1, 1), (129, False, 1, 129), (8, True, 1, 8)),
            *((8, True, 2, 1), (129, True, 2, 129), (0, True, 1, 1)),
        ):
            world = World(0, 129 * 8 * 16, replicas=replicas, local=local)
            for loader, parts in ((cache.loader(**OPTIONS), want), (cache.loader(**OPTIONS, balance="text"), 1)):
                assert loader._parts(world, required=required) == parts  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("own", "places"),
    [
        ({}, [{}, {}]),
        pytest.param(PACKED, [{}, {}], marks=pytest.mark.night),
        pytest.param(BALANCED, [{}, {}], marks=pytest.mark.night),
        ({"size": 4, "local": 2}, [{"rank": 2}, {"rank": 3}]),
    ],
    ids=["rows", "packs", "balanced", "consecutive ranks"],
)
def test_a_killed_reader(host: Host, endpoint: str, chance: Chance, own: dict[str, Any], places: list[Any]) -> None:
    """Its ranks read alone from the next step on: the same rows."""
    here = {"replicas": RANKS // own.get("local", 1), "connections": 1, "hurry": ["_SILENT_SECONDS", "_JOIN_SECONDS"]}
    alone = [read_alone(endpoint, **own, **place) for place in places]
    for _, rng in chance.schedules(1):
        ranks = [host.start(**own, **here, **place, host="auto", pause=rng.randrange(STEPS - 1)) for place in places]
        reader = host.reader()
        if rng.random() < 0.8:  # otherwise while it starts
            assert ranks[0].step()["step"] == 0
        os.kill(reader, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]))
        for rank in ranks:
            rank.go_on()
        for rank, want in zip(ranks, alone, strict=True):
            assert rank.rest().rows == want
        with contextlib.suppress(ProcessLookupError):  # one that was stopped
            os.kill(reader, signal.SIGKILL)
        host.wait_gone()


def test_killed_ranks(host: Host, alone: list[Any], rng: random.Random) -> None:
    """The others go on with the reader, also if the lost rank had started it; it ends with the last of them."""
    ranks = [host.start(pause=0, replicas=3) for _ in range(3)]
    for rank in ranks:
        assert rank.step()["step"] == 0
    rng.shuffle(ranks)
    first, second, third = ranks
    first.process.kill()
    second.go_on()
    third.go_on()
    assert second.rest().rows == alone
    assert second.shared == STEPS
    third.process.kill()
    host.wait_gone()


def test_an_idle_rank(host: Host, alone: list[Any]) -> None:
    """The others wait once, for about 5 s, and read on alone, also the next epoch; the idle rank later reads the same
    rows."""
    idle = host.start(pause=0)
    assert idle.step()["step"] == 0  # the reader has started
    other = host.start(host="auto", epochs=2, hurry=["_LAG_SECONDS"]).rest()
    assert other.rows[:STEPS] == alone
    assert 0 < other.shared < STEPS
    assert max(line["waited"] for line in other.lines if "step" in line) > 4
    assert other.log.read_text().count("took no rows") == 1
    idle.go_on()
    assert idle.rest().rows == alone


@pytest.mark.parametrize("how", ["auto", "require"])
def test_a_reader_that_does_not_start(host: Host, alone: list[Any], how: str) -> None:
    """Ranks read alone with "auto", once and for all, and "require" is an error."""
    rank = host.start(host=how, epochs=2, executable="/bin/false")
    if how == "require":
        rank.process.communicate(timeout=limit())
        assert "DataCacheError: host: the reader of this host does not start" in rank.log.read_text()
        return
    assert (rank.rest().rows[:STEPS], rank.shared) == (alone, 0)
    assert rank.log.read_text().count("does not start") == 1


@pytest.mark.parametrize("how", ["auto", "require"])
def test_rows_too_long_for_packs(host: Host, how: str) -> None:
    """The reader finds them before the first step, and ranks say what it said."""
    ranks = [host.start(pack={**PACKED["pack"], "long": "refuse"}, host=how) for _ in range(RANKS)]
    for rank in ranks:
        assert rank.process.communicate(timeout=limit())[0] == ""
        by_reader = "DataCacheError: host: the reader of this host failed: " if how == "require" else ""
        want = f'{by_reader}ColumnError: column "tokens": 4000 of 4000 rows are too long'
        assert want in rank.log.read_text().splitlines()[-1]


def test_what_require_and_auto_want(endpoint: str) -> None:
    """Without other ranks on the host, "auto" reads alone at once and "require" is an error that says what to give."""
    with DataCache(endpoint) as cache:
        for name, want in (("auto", None), ("require", r'host = "require": .*replicas=8')):
            own: Any = {**OPTIONS, "world": World(0, 1), "host": name}
            loader: Loader = cache.loader(**own)
            if want is None:
                assert len(list(loader)) == STEPS
                assert loader.stats().shared == 0
            else:
                with pytest.raises(ValueError, match=want):
                    next(iter(loader))
        wrong: Any = {**OPTIONS, "host": "on"}
        with pytest.raises(ValueError, match="host = 'on': want"):
            cache.loader(**wrong)


def test_memory_is_sealed() -> None:
    """A rank can neither write nor shrink the memory of a reader, and takes no other memory."""
    memory, mapped = protocol.create_memory(1 << 16)
    mapped[:4] = b"rows"
    assert protocol.map_memory(memory, 1 << 16)[:4] == b"rows"
    for attack in (lambda: os.write(memory, b"x"), lambda: os.ftruncate(memory, 0), lambda: mmap.mmap(memory, 1 << 16)):
        with pytest.raises(OSError, match="not permitted"):
            attack()
    plain = os.memfd_create("plain")
    os.ftruncate(plain, 1 << 16)
    with pytest.raises(protocol.HostError, match="not sealed"):
        protocol.map_memory(plain, 1 << 16)
    os.close(plain)
    os.close(memory)


def test_a_process_of_another_user() -> None:
    """Both ends look who is at the other."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        protocol.check_peer(one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 1 << 20)
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, other, pytest.raises(protocol.HostError, match="not one of user"):
            protocol.check_peer(one)
