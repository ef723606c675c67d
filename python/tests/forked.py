# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of a training as forks of one process, which imports the frameworks once."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kit.deadline import limit

from ranks import rank_environment

EPOCHS, SAVED = 2, 3  # of the trainings; SAVED: number of steps before the checkpoint


def run_script(script: str, *orders: Any) -> Any:
    """Runs a script of this folder with orders as JSON; returns the last line that it printed, as JSON."""
    environment, tests = rank_environment(), Path(__file__).parent
    run = subprocess.Popen(
        [sys.executable, tests / script, json.dumps(orders)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(tests)]),
            "CUDA_VISIBLE_DEVICES": "",
        },
    )
    try:
        out, errors = run.communicate(timeout=3 * limit())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # with the processes that it forked
    assert run.returncode == 0, out + errors
    return json.loads(out.splitlines()[-1])


def run_ranks(world: int, rank_main: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs rank_main in `world` forked processes of one gloo group; returns its results, JSON values, by rank.

    This process must not have connected to a cache.
    """
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            fork.Process(target=_rank, args=(Path(folder), rank, world, rank_main, arguments)) for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(3 * limit())
        codes = [rank.exitcode for rank in ranks]
        for rank in ranks:
            rank.kill()
        assert codes == [0] * world, f"exit codes {codes}: see the captured standard error"
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def _rank(folder: Path, rank: int, world: int, rank_main: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    )
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})  # asked for, not used
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=world, timeout=dt.timedelta(seconds=3 * limit())
    )
    (folder / f"{rank}.json").write_text(json.dumps(rank_main(*arguments)))
    dist.barrier()
    dist.destroy_process_group()
