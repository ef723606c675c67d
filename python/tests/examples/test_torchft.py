# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""torchft's replicas commit each global batch of the order once, while one of them is killed and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked import run_script
from kit.deadline import Wait, limit, pause
from small import small_cache, steps_of

from kubeflow_datacache import World
from kubeflow_datacache.torch.torchft import Follow
from ranks import rank_environment

ROWS = 3_216
OPTIONS: dict[str, Any] = {"global_batch_size": 16, "seed": 7, "tail": "keep"}
RUNTIME = Path(__file__).parents[3] / "runtimes" / "torchft-with-cache.yaml"


def check_commits(logs: list[list[dict[str, Any]]]) -> set[int]:
    """Checks the rows and the weights of each step that was committed; returns the numbers of replicas that did it."""
    read: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}  # by step and quorum, then by rank
    committed: dict[int, set[int]] = {}  # the quorums that committed a step
    weights: dict[int, list[list[float]]] = {}
    for one in (line for log in logs for line in log):
        if "ids" in one:
            read.setdefault((one["step"], one["quorum"]), {})[one["rank"]] = one
        else:
            committed.setdefault(one["step"], set()).add(one["quorum"])
            weights.setdefault(one["step"], []).append(one["weights"])
    epochs = len(committed) * OPTIONS["global_batch_size"] // ROWS + 1
    want = [step for epoch in range(epochs) for step in steps_of(OPTIONS, epoch, rows=ROWS)]
    assert sorted(committed) == list(range(len(committed)))
    sizes = set[int]()
    for step, quorums in committed.items():
        (quorum,) = quorums
        ranks = read[step, quorum]
        assert {one["size"] for one in ranks.values()} == {len(ranks)}, (step, ranks)
        assert [i for rank in range(len(ranks)) for i in ranks[rank]["ids"]] == want[step], step
        assert weights[step].count(weights[step][0]) == len(weights[step]), step
        sizes.add(len(ranks))
    return sizes


def test_a_replica_is_killed_and_comes_back(server: Path, tmp_path: Path) -> None:
    with small_cache(server, tmp_path, ROWS) as endpoint:
        logs = run_script("examples/torchft_training.py", endpoint, OPTIONS, str(tmp_path / "replicas"))
    assert {2, 3} <= check_commits(logs)
    attempts = Counter(one["step"] for one in logs[0] if "ids" in one)
    assert max(attempts.values()) > 1, "a step was aborted and read again"


def container_of(job: str) -> dict[str, Any]:
    """The container of a job of the runtime."""
    jobs = yaml.safe_load(RUNTIME.read_text())["spec"]["template"]["spec"]["replicatedJobs"]
    return next(one for one in jobs if one["name"] == job)["template"]["spec"]["template"]["spec"]["containers"][0]


@contextlib.contextmanager
def running(log: Path, command: list[str], environment: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    """A pod's command, killed at the end with the processes that it started."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        yield process
    finally:
        for pid in family_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def family_of(pid: int) -> list[int]:
    """A process and those that it started, in sessions of their own as torchrun's are."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return [pid, *(one for child in children for one in family_of(child))]


def await_that(condition: Callable[[], Any], what: str, logs: Path) -> Any:
    """Polls until a condition holds, and returns it."""
    wait = Wait()
    while not (value := condition()):
        texts = "\n".join(one.read_text()[-3000:] for one in logs.glob("*.log"))
        assert not wait.over(), f"{what}:\n{texts}"
        pause(0.05)
    return value


def test_the_runtimes_own_commands(server: Path, tmp_path: Path) -> None:
    """The lighthouse and two replicas as runtimes/torchft-with-cache.yaml starts them, a pod lost and replaced.

    What the cluster does is done here: names of pods resolve, and Trainer's PET_ variables are those of a job of two.
    """
    environment = {**rank_environment(), "CUDA_VISIBLE_DEVICES": ""}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    folder = tmp_path / "replicas"
    folder.mkdir()
    command = [part.replace("[::]:29510", "127.0.0.1:0") for part in container_of("lighthouse")["command"]]
    node = container_of("node")
    assert command != container_of("lighthouse")["command"]
    assert node["command"][0] == "torchrun"

    def pod(endpoint: str, address: str, index: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        values = {one["name"]: one.get("value", "") for one in node["env"]}
        name = "http://$(TRAIN_JOB_NAME)-lighthouse-0-0.$(TRAIN_JOB_NAME):29510"
        assert values["TORCHFT_LIGHTHOUSE"] == name
        cluster = {"TRAIN_JOB_NAME": "train", "REPLICA_GROUP_ID": str(index), "TORCHFT_LIGHTHOUSE": address}
        trainer = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(index), "PET_MASTER_PORT": "1"}
        trainer |= {"PET_MASTER_ADDR": "train-node-0-0.train", "PET_LOCAL_ADDR": "127.0.0.1"}
        script, orders = Path(__file__).parent / "torchft_pod.py", json.dumps([endpoint, OPTIONS, str(folder)])
        return running(
            tmp_path / f"{index}.log",
            [sys.executable, "-m", "torch.distributed.run", *node["command"][1:], str(script), orders],
            {**environment, **values, **cluster, **trainer},
        )

    def logged(index: int) -> list[dict[str, Any]]:
        file = folder / f"{index}.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # a killed replica's last may be cut

    def together(since: int) -> int:
        """The last step that both committed in one quorum, once there are four of them after `since`."""
        first, second = ({one["step"] for one in logged(i) if "weights" in one and one["step"] > since} for i in (0, 1))
        return max(both) if len(both := first & second) > 3 else 0

    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(small_cache(server, tmp_path, ROWS))
        stack.enter_context(running(tmp_path / "lighthouse.log", command, environment))

        def listens() -> str | None:
            found = re.search(r"listening on: http://.*:(\d+)", (tmp_path / "lighthouse.log").read_text())
            return f"http://127.0.0.1:{found[1]}" if found else None

        address = await_that(listens, "the lighthouse's address", tmp_path)
        first = stack.enter_context(pod(endpoint, address, 0))
        with pod(endpoint, address, 1):
            killed_at = await_that(lambda: together(0), "two replicas train", tmp_path)
        alone = lambda: any(one["step"] > killed_at + 3 and one.get("size") == 1 for one in logged(0))  # noqa: E731
        await_that(alone, "the other one goes on", tmp_path)
        back = logged(0)[-1]["step"]
        second = stack.enter_context(pod(endpoint, address, 1))
        last = await_that(lambda: together(back), "the lost pod is back", tmp_path) + 20
        (folder / "last.tmp").write_text(str(last))
        (folder / "last.tmp").rename(folder / "last")
        assert [first.wait(limit()), second.wait(limit())] == [0, 0]
        assert check_commits([logged(0), logged(1)]) == {1, 2}


def test_a_group_of_several_processes_says_which_rows_each_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    nobody: Any = None
    with pytest.raises(ValueError, match=r"2 processes: give group=World.detect\(\) if each trains on rows of its own"):
        Follow(nobody, nobody)
    Follow(nobody, nobody, group=World())
