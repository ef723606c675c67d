# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of cacheserver."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest
from lake import Made
from server import Cache, Caches, Mode

from kit.deadline import eventually
from kit.ports import free_port

Table = Callable[[str], Made]


@pytest.mark.parametrize(
    "command", [[], ["head"], ["node"], ["local"], ["inspect"], ["audit"], ["version"]], ids="".join
)
def test_help_describes_every_command(command: list[str], caches: Caches) -> None:
    done = caches.run(*command, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    if command and command != ["version"]:
        assert "--metadata" in done.stdout
        assert "METADATA_LOC" in done.stdout


def test_version_names_the_contract(caches: Caches) -> None:
    done = caches.run("version")
    assert done.returncode == 0
    assert "wire contract v1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such-command"], "no-such-command"),
        (["local", "--no-such-flag"], "no-such-flag"),
        (["local", "--nodes", "many"], "nodes"),
        (["local", "--nodes", "0", "--metadata", "x"], "nodes"),
        (["local", "--memory-limit", "plenty", "--metadata", "x"], "memory-limit"),
        (["local", "--memory-limit", "90MiB", "--spill-dir", "x", "--metadata", "x"], "96 MiB without rows"),
        (["local", "--first-epoch", '{"seed":7}', "--metadata", "x"], "--first-epoch: command: global_batch: missing"),
        (["local", "--listen", "256.0.0.1:1", "--metadata", "x"], "listen"),
        (["local", "--as-of", "yesterday", "--metadata", "x"], "as-of"),
        (["node", "--head", "127.0.0.1:1", "--index", "-5"], "index"),
        (["head", "--nodes", "1", "--metadata", "x", "--listen", ":0", "--http", "127.0.0.1:0"], "CACHE_SECRET"),
        (["inspect", "--metadata", "/no/such.metadata.json"], "/no/such.metadata.json"),
        (["audit", "/no/such.metadata.json"], "/no/such.metadata.json"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_with_its_name_and_a_code(arguments: list[str], says: str, caches: Caches) -> None:
    if arguments[0] not in ("inspect", "audit") and "--listen" not in arguments:
        arguments = [*arguments, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    done = caches.run(*arguments)
    assert done.returncode not in (0, 2), "success, or a crash"
    assert says in done.stderr
    assert "goroutine" not in done.stderr
    assert len(done.stderr) < 1000, "a wall of text for a wrong word"


def test_ready_is_one_line_on_standard_output(table: Table, private: Callable[..., Cache]) -> None:
    cache = private(["--metadata", table("one_file").metadata])
    line = f"ready {cache.endpoint} {cache.http}\n"
    eventually("the line", lambda: cache.output("local") == line)
    with cache.client() as client:
        assert client.status()["state"] == "Ready"
    cache.stop()
    assert cache.output("local") == line, "one line, and nothing after it"


def test_the_environment_stands_for_flags(table: Table, private: Callable[..., Cache]) -> None:
    made = table("one_file")
    cache = private([], env={"METADATA_LOC": made.metadata, "TABLE_COLUMNS": "id,name", "FILTER": "id < 5"})
    assert cache.wait("Ready")["rows"] == 5
    with cache.client() as client:
        assert client.table().schema.names == ["id", "name"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_process_with_0(
    how: signal.Signals, mode: Mode, table: Table, private: Callable[..., Cache]
) -> None:
    cache = private(["--metadata", table("one_file").metadata], mode=mode)
    cache.wait("Ready")
    assert not any(cache.stop(how).values())


def test_inspect_prints_the_plan_without_loading(table: Table, caches: Caches) -> None:
    made = table("plain")
    done = caches.run("inspect", "--metadata", made.metadata, "--nodes", "3")
    assert done.returncode == 0
    assert all(uri in done.stdout for uri in made.files())
    assert re.search(r"\b10,?001\b", done.stdout), "the number of rows"
    assert "connections" not in done.stdout


def test_inspect_prints_what_stays_in_memory(table: Table, caches: Caches) -> None:
    command = ["inspect", "--metadata", table("plain").metadata, "--memory-limit"]
    done = caches.run(*command, "1GiB")
    assert re.search(r"^NODE +BYTES +IN MEMORY +READ AN EPOCH\n0 +(\d+) +\1 +0$", done.stdout, re.M), done.stdout
    done = caches.run(*command, "64MiB")
    assert "takes 96 MiB without rows" in done.stderr


def test_inspect_prints_what_the_cache_takes(table: Table, caches: Caches) -> None:
    made = table("plain")
    done = caches.run("inspect", "--metadata", made.metadata, "--nodes", "3", "--ranks", "40", "--rate", "500MB/s")
    assert done.returncode == 0
    assert re.search(r"^connections, .* 120$", done.stdout, re.MULTILINE)
    assert re.search(r"^cores of all data nodes +\d+\.\d$", done.stdout, re.MULTILINE)
    assert caches.run("inspect", "--metadata", made.metadata, "--ranks", "4", "--rate", "fast").stderr == (
        'error: --rate: "fast", want bytes a second, such as 20MB/s\n'
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--metadata", "/no/such/1.metadata.json"], "/no/such/1.metadata.json: not found"),
        (["--metadata", "/etc"], "/etc"),
        (["--columns", "nope"], '"nope"'),
        (["--filter", "id >"], 'filter "id >"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_local_ends_with_one_sentence(flags: list[str], says: str, table: Table, caches: Caches) -> None:
    made = [] if "--metadata" in flags else ["--metadata", table("one_file").metadata]
    done = caches.run("local", *made, *flags, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode in (1, 3)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_a_metadata_file_that_is_not_there_fails_the_cache(private: Callable[..., Cache]) -> None:
    cache = private(["--metadata", "/no/such/table/metadata/1.metadata.json"], mode="cluster")
    assert "/no/such/table/metadata/1.metadata.json" in cache.wait("Failed")["reason"]
    assert cache.get("/ready")[0] == 503
    assert cache.get("/healthz")[0] == 200, "the process is well, the cache is not"


def test_memory_too_small_fails_the_cache_with_both_numbers(table: Table, private: Callable[..., Cache]) -> None:
    cache = private(["--metadata", table("wide_values").metadata, "--memory-limit", "10MiB"])
    assert "10485760" in cache.wait("Failed")["reason"].replace(",", "")


def test_a_port_that_is_taken_is_said(table: Table, private: Callable[..., Cache], caches: Caches) -> None:
    running = private(["--metadata", table("one_file").metadata])
    running.wait("Ready")
    taken = running.endpoint.removeprefix("grpc://")
    done = caches.run("local", "--metadata", "x", "--listen", taken, "--http", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert taken in done.stderr


def test_the_step_waits_for_two_caches(table: Table, private: Callable[..., Cache], caches: Caches) -> None:
    web, code = (private(["--metadata", table(name).metadata]) for name in ("one_file", "plain"))
    heads = f"web={web.http.removeprefix('http://')},team-b/code={code.http.removeprefix('http://')}"
    done = caches.run("initializer", env={"CACHE_HEAD": heads, "TRAIN_JOB_NAME": "train"})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[1]: line.split()[3] for line in done.stdout.splitlines() if ": ready: " in line}
    assert rows == {"web:": str(web.status()["rows"]), "team-b/code:": "10001"}


def test_the_step_ends_when_one_of_two_caches_fails(private: Callable[..., Cache], caches: Caches) -> None:
    broken = private(["--metadata", "/no/such/table/metadata/1.metadata.json"], mode="cluster", nodes=1)
    heads = f"web=127.0.0.1:{free_port()},code={broken.http.removeprefix('http://')}"
    done = caches.run("initializer", "--head", heads)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the cache code failed: " in done.stderr
    assert "/no/such/table/metadata/1.metadata.json" in done.stderr
