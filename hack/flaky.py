# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs tests again and again in random order, with much and little processor time, and prints how often each passed.

flaky.py --runs 20 SUITE...: a suite is a Go package or a pattern (./cacheserver/...), or a file or folder of pytest
(test/conformance/test_wire.py). 'make flaky' passes what the suites need in the environment. Odd runs have 30 % of the
machine's processors (a control group, as root), and GOMAXPROCS goes through 1, 2 and 8.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from kit.deadline import eventually

_SHARE = 0.3
_PERIOD = 100_000  # microseconds, of a control group's quota

Results = dict[str, list[tuple[bool, float]]]  # of each test: of each run whether it passed, and seconds


@contextlib.contextmanager
def share(part: float) -> Iterator[Callable[[], None]]:
    """A control group with that part of the machine's processors; gives a function by which a new process joins it."""
    root = Path("/sys/fs/cgroup")
    two = (root / "cgroup.controllers").exists()
    group = (root if two else root / "cpu") / f"datacache-flaky-{os.getpid()}"
    group.mkdir()
    members = (group / "cgroup.procs").read_text
    quota = int(part * len(os.sched_getaffinity(0)) * _PERIOD)
    if two:
        (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(quota))

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield join
    finally:
        for process in members().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        eventually("processes of the control group to go", lambda: not members())
        group.rmdir()


def of_go(patterns: list[str], seed: int, join: Callable[[], None] | None, found: Results) -> str:
    """Runs Go packages once; returns what the tests that failed said."""
    command = ["go", "test", "-race", "-short", "-count=1", "-timeout=0", f"-shuffle={seed}", "-json", *patterns]
    environment = {**os.environ, "CGO_ENABLED": "1"}
    # Compile first, with all processors: what is measured is how tests run.
    subprocess.run(
        ["go", "test", "-race", "-run=^$", *patterns], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    run = subprocess.run(command, env=environment, preexec_fn=join, stdout=subprocess.PIPE, text=True, check=False)
    said: dict[str, list[str]] = defaultdict(list)
    failed = []
    for line in run.stdout.splitlines():
        event = json.loads(line)
        name = f"{event['Package'].partition('datacache/')[2]} {event.get('Test', '')}".strip()
        if event["Action"] == "output":
            said[name].append(event["Output"])
        elif event["Action"] in ("pass", "fail") and ("Test" in event or event["Action"] == "fail"):
            found[name].append((event["Action"] == "pass", event["Elapsed"]))
            if event["Action"] == "fail":
                failed.append(name)
    return "".join(f"--- {name}\n{''.join(said[name])[-4000:]}" for name in failed)


def of_pytest(path: str, seed: int, join: Callable[[], None] | None, found: Results) -> str:
    """Runs a file or folder of pytest once; returns what the tests that failed said."""
    options = "FLAKY_LOADER" if path.startswith("python/") else "FLAKY_CONFORMANCE"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [*shlex.split(os.environ[options]), path, "-m", "not night", "-q", "-p", "kit.shuffle"]
        command += ["--shuffle", str(seed), f"--junitxml={report}"]
        environment = {**os.environ, "PYTHONPATH": "hack:python/src"}
        run = subprocess.run(
            command,
            env=environment,
            preexec_fn=join,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"flaky: {shlex.join(command)}: {run.stdout[-2000:]}")
        for case in ElementTree.parse(report).iter("testcase"):
            if case.find("skipped") is None:
                passed = case.find("failure") is None and case.find("error") is None
                found[f"{case.get('classname')} {case.get('name')}"].append((passed, float(case.get("time", 0))))
        return run.stdout[run.stdout.find("= FAILURES") :][-8000:] if run.returncode not in (0, 5) else ""


def table(found: Results) -> str:
    """Each test's passes of runs: those that failed first, then the slowest and the most varying."""
    rows = []
    for name, runs in found.items():
        seconds = [took for _, took in runs]
        spread = statistics.pstdev(seconds) if len(seconds) > 1 else 0.0
        passes = sum(passed for passed, _ in runs)
        rows.append((passes / len(runs), -statistics.mean(seconds) - spread, name, passes, len(runs), seconds))
    rows.sort()
    lines = ["passes   mean s   least    most  test"]
    shown = [row for row in rows if row[0] < 1]
    shown += [row for row in rows if row[0] == 1][:40]
    for _, _, name, passes, runs, seconds in shown:
        lines.append(
            f"{passes:3}/{runs:<3} {statistics.mean(seconds):8.2f} {min(seconds):7.2f} {max(seconds):7.2f}  {name}"
        )
    always = sum(row[0] == 1 for row in rows)
    lines.append(f"{always} of {len(rows)} tests passed every time they ran; the slowest 40 of these are above")
    return "\n".join(lines)


def main() -> int:
    """Runs the suites; returns 1 if a test failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--seed", type=int, default=int(time.time()), help="of the first run's order")
    options.add_argument("suites", nargs="+")
    asked = options.parse_args()
    packages = [suite for suite in asked.suites if suite.startswith(("./", "github.com/"))]
    found: Results = defaultdict(list)
    for run in range(asked.runs):
        processors = (1, 2, 8)[run // 2 % 3]
        os.environ["GOMAXPROCS"] = str(processors)
        part, seed, began = (1.0, _SHARE)[run % 2], asked.seed + run, time.monotonic()
        with contextlib.ExitStack() as stack:
            join = stack.enter_context(share(part)) if part < 1 else None
            said = of_go(packages, seed, join, found) if packages else ""
            for suite in asked.suites:
                if suite not in packages:
                    said += of_pytest(suite, seed, join, found)
        print(said, end="")
        how = f"order {seed}, {part:.0%} of the processors, GOMAXPROCS={processors}"
        took = f"{'FAILED' if said else 'passed'} in {time.monotonic() - began:.0f} s"
        print(f"run {run + 1} of {asked.runs}: {took} ({how})", flush=True)
    print(table(found))
    return int(any(not passed for runs in found.values() for passed, _ in runs))


if __name__ == "__main__":
    sys.exit(main())
