# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs each loader uninterrupted, and resumed with the same and with another number of ranks; prints two tables."""

from __future__ import annotations

import argparse
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from lake import Lake, Made
from server import Caches

from elastic.data import BATCH, FILTERED, ROWS, WEIGHTS, Run, table
from elastic.loaders import KINDS, prepare

BEFORE, OTHER = 2, 3  # numbers of ranks: before the interruption; after it, in the run that changes it
SECONDS = 180  # limit of one run
Ranks = list[tuple[list[list[int]], bytes]]  # of each rank: its batches, and its state


class Failed(Exception):
    """A run that ended with an error."""


def train(name: str, run: Run, world: int, steps: int | None, states: list[bytes]) -> Ranks:
    """Runs a training, from the states of all ranks of another run or from the start."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as out:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = list[subprocess.Popen[bytes]]()
        for rank in range(world):
            own = Run(run.kind, run.data, run.endpoints, rank, world, steps, states)
            at = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
            env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            process = subprocess.Popen(
                [sys.executable, "-m", "elastic.child", f"{out}/{rank}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**env, **{key: str(value) for key, value in at.items()}},
            )
            assert process.stdin is not None
            process.stdin.write(pickle.dumps((name, own)))
            process.stdin.close()
            process.stdin = None
            ranks.append(process)
        try:
            said = [process.communicate(timeout=SECONDS)[0].decode() for process in ranks]
        except subprocess.TimeoutExpired as error:
            raise Failed(f"no end after {SECONDS} s") from error
        finally:
            for process in ranks:
                process.kill()
        for process, text in zip(ranks, said, strict=True):
            if process.returncode:
                raise Failed(text.strip().splitlines()[-1])
        return [pickle.loads(Path(out, str(rank)).read_bytes()) for rank in range(world)]


def ids(ranks: Ranks) -> Counter[int]:
    """How often each row was read."""
    return Counter(id for batches, _ in ranks for batch in batches for id in batch)


def steps(ranks: Ranks) -> list[list[int]]:
    """The rows of each step over all ranks, sorted."""
    return [
        sorted(id for batch in step for id in batch) for step in zip(*(batches for batches, _ in ranks), strict=False)
    ]


def compare(name: str, run: Run) -> str:
    """A line of the table."""
    try:
        whole = train(name, run, BEFORE, None, [])
    except Failed as error:
        return f"| {name} | fails: {error} | | |"
    read = ids(whole)
    cells = [name, described(run.kind, whole)]
    half = len(steps(whole)) // 2
    for world in (BEFORE, OTHER):
        try:
            first = train(name, run, BEFORE, half, [])
            rest = train(name, run, world, None, [state for _, state in first])
        except Failed as error:
            cells.append(f"fails: {error}"[:90])
            continue
        both = ids(first) + ids(rest)
        lost, extra = (read - both).total(), (both - read).total()
        same = steps(first) + steps(rest) == steps(whole)
        counts = "every row as without" if not lost + extra else f"{lost} rows lost, {extra} read again"
        cells.append(f"{counts}; steps {'equal' if same else 'differ'}")
    return f"| {' | '.join(cells)} |"


def described(kind: str, ranks: Ranks) -> str:
    """What an uninterrupted epoch has."""
    read = ids(ranks)
    twice = sum(count > 1 for count in read.values())
    lengths = {len(batches) for batches, _ in ranks}
    length = f"{lengths.pop()} steps a rank" if len(lengths) == 1 else "steps differ by rank"
    text = f"{read.total()} rows, {twice} of them twice; {length}"
    if kind == "filter":
        return f"{text} (of {FILTERED})"
    of_a = [sum(id < ROWS["a"] for id in step) for step in steps(ranks)]
    return f"{text}; rows of a in a step: {min(of_a)} to {max(of_a)} (wanted {WEIGHTS['a'] * BATCH:.0f})"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--loaders", default="", help="only these, joined by commas")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        prepare(data)
        (data / "lake").mkdir()
        lake, running = Lake(data / "lake"), Caches(own.server.resolve(), data / "logs")
        try:
            endpoints = dict[str, str]()
            for name in ROWS:
                made = Made(name, lake.create(name, table(name).schema, table(name)).metadata_location)
                endpoints[name] = running.of(made, nodes=2).endpoint
            for kind, loaders in KINDS.items():
                print(f"\n{kind}, {BATCH} rows a step, {BEFORE} ranks\n")
                print(f"| loader | without interruption | stopped half way, then {BEFORE} ranks | then {OTHER} ranks |")
                print("|---|---|---|---|")
                for name in [name for name in loaders if name in (own.loaders or name).split(",")]:
                    print(compare(name, Run(kind, data, endpoints, 0, BEFORE, None, [])), flush=True)
        finally:
            running.close()


if __name__ == "__main__":
    main()
