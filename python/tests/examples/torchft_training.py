# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training with torchft of three replicas, one of which is killed and comes back.

Prints, as JSON, what each replica logged: the rows that it read in each attempt of a step, and its commits.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kit.deadline import Wait, limit, pause
from torch.nn.functional import cross_entropy
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from kubeflow_datacache import DataCache
from kubeflow_datacache.torch.torchft import Follow

REPLICAS, KILLED = 3, 1
BEFORE, AFTER = 12, 12  # committed steps before the kill, and with all replicas after it
FORK = multiprocessing.get_context("fork")


def lighthouse(folder: Path) -> None:
    """torchft's lighthouse, which makes quorums, until this process is killed."""
    server = LighthouseServer("127.0.0.1:0", min_replicas=1, join_timeout_ms=10000, heartbeat_timeout_ms=2000)
    (folder / "address.tmp").write_text(f"http://127.0.0.1:{server.address().rpartition(':')[2].strip('/')}")
    (folder / "address.tmp").rename(folder / "address")
    threading.Event().wait()


def forked(endpoint: str, options: dict[str, Any], folder: Path, me: int) -> None:
    """A replica group of one process without torchrun."""
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    replica(
        endpoint,
        options,
        folder,
        me,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=(folder / "address").read_text(),
        replica_id=f"replica_{me}",
        hostname="127.0.0.1",
    )


def replica(endpoint: str, options: dict[str, Any], folder: Path, me: int, fails: bool = True, **place: Any) -> None:
    """Trains until the driver's last step. fails: replica 0 reports an error once. place: arguments of the Manager."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 2)
    inner = torch.optim.SGD(model.parameters(), 0.01)

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager: Any = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=3)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=60),
        **place,
    )
    optimizer = Optimizer(manager, inner)
    loader = DataCache(endpoint, retry_seconds=600).loader(**options, columns=["id"])
    batches, failed = Follow(loader, manager), not fails
    with (folder / f"{me}.jsonl").open("a", buffering=1) as log:
        while manager.current_step() < last_step(folder):
            optimizer.zero_grad()
            batch = batches.next()
            ids, step = batch.torch()["id"], manager.current_step()
            attempt = {"step": step, "quorum": manager._quorum_id}
            if (rank := manager.participating_rank()) is not None:
                log.write(
                    json.dumps({**attempt, "rank": rank, "size": manager.num_participants(), "ids": ids.tolist()})
                    + "\n"
                )
            if me == 0 and not failed and rank is not None and manager.num_participants() == REPLICAS:
                failed = True  # once, so that all replicas repeat the step
                manager.report_error(RuntimeError("this attempt fails"))
            losses = cross_entropy(model(ids.float()[:, None] / 1000), ids % 2, reduction="sum")
            (losses * batch.weight).backward()
            for weight in model.parameters():  # torchft 0.2.0's DistributedDataParallel ends the process after an error
                manager.allreduce(weight.grad).wait()
            optimizer.step()
            if manager.current_step() > step:
                weights = [value for weight in model.parameters() for value in weight.flatten().tolist()]
                log.write(json.dumps({**attempt, "weights": weights}) + "\n")
            pause(0.02)
    manager.shutdown(wait=False)
    os._exit(0)  # torchft's threads would not end


def last_step(folder: Path) -> int:
    """The step to stop at, which the driver writes when it has seen enough."""
    file = folder / "last"
    return int(file.read_text()) if file.exists() else 1 << 30


def end_at(folder: Path, step: int) -> None:
    """Sets the last step."""
    (folder / "last.tmp").write_text(str(step))
    (folder / "last.tmp").rename(folder / "last")


def logged(folder: Path, me: int) -> list[dict[str, Any]]:
    """What a replica has logged."""
    file = folder / f"{me}.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # a killed replica's last may be cut


def wait(condition: Any, what: str, processes: list[BaseProcess]) -> None:
    """Polls until a condition holds, while the processes run."""
    patience = Wait()
    while not condition():
        assert not patience.over(), what
        assert all(process.is_alive() for process in processes), f"{what}: a process ended"
        pause(0.05)


def main() -> None:
    """Runs the training that the command line describes."""
    endpoint, options, name = json.loads(sys.argv[1])
    folder = Path(name)
    folder.mkdir()

    def start(*call: Any) -> BaseProcess:
        process = FORK.Process(target=call[0], args=call[1:])
        process.start()
        return process

    def commits_of_all(since: int) -> int:
        """Steps that all replicas took part in and committed, of those after `since`."""
        steps = [{one["step"] for one in logged(folder, me) if "weights" in one} for me in range(REPLICAS)]
        return len([step for step in set.intersection(*steps) if step > since])

    light = start(lighthouse, folder)
    processes = [light]
    try:
        wait((folder / "address").exists, "the lighthouse's address", processes)
        processes += [start(forked, endpoint, options, folder, me) for me in range(REPLICAS)]
        wait(lambda: commits_of_all(0) >= BEFORE, "steps of three replicas", processes)
        processes[1 + KILLED].kill()
        processes[1 + KILLED].join()
        killed_at = max(one["step"] for me in range(REPLICAS) for one in logged(folder, me))
        others = [me for me in range(REPLICAS) if me != KILLED]

        def went_on() -> bool:
            return all(
                any(one["step"] > killed_at + 3 for one in logged(folder, me) if "weights" in one) for me in others
            )

        wait(went_on, "the others go on", [processes[1 + me] for me in others])
        processes[1 + KILLED] = start(forked, endpoint, options, folder, KILLED)
        wait(lambda: commits_of_all(killed_at) >= AFTER, "the killed replica is back", processes)
        latest = max(one["step"] for me in range(REPLICAS) for one in logged(folder, me))
        end_at(folder, latest + 20)
        for process in processes[1:]:
            process.join(limit())
    finally:
        for process in processes:
            process.kill()
    print(json.dumps([logged(folder, me) for me in range(REPLICAS)]))


if __name__ == "__main__":
    main()
