# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measures each workload with each loader and prints the table."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server import Cache, Caches
from take import cpu_of

from mlperf.report import EMPTY, HEAD, OURS, Row, accelerators, line, shortest, verdict
from mlperf.workloads import BY_SAMPLE, EPOCHS, WORKLOADS, Workload

_RANKS: Final = 2
_CORES: Final = len(os.sched_getaffinity(0))
_LOADERS: Final = {
    EMPTY: "Empty",
    BY_SAMPLE: "BySample",
    "pyarrow by row group": "ByRowGroup",
    OURS: "Ours",
}
_SOON: Final = 0.001  # seconds of a step in which loaders are as fast as they can be
_NOTES: Final = """
No MLPerf result: {cores} cores for accelerators' processes, servers and network, which is loopback; all data are in
memory (flux has 2.7 TB); accelerators sleep. {ranks} processes stand for more accelerators by a shorter step. flux: a
quarter of the batch and of the step. dlrm: the step is 200 times as long, so its accelerators count as 1/200 of one.
retinanet and unet3d read no tables. DLIO's reader decodes nothing; here all columns of a sample become tensors.
Readers of pyarrow read in order, with a thread that reads {ahead} batches ahead; datacache shuffles all rows.
CPU: DLIO's loop, as the empty loader has it, is not counted; servers and, divided by the epochs, the load are.
"""


@dataclass(frozen=True)
class Run:
    """One run of DLIO: utilization of the accelerators (0 to 1), batches per second and rank, CPU seconds.

    cpu has those of the ranks once all is imported, and those of the server.
    """

    used: float
    rate: float
    cpu: float


class Bench:
    """The runs of one workload."""

    def __init__(self, workload: Workload, folder: Path, cache: Cache, scratch: Path) -> None:
        self._workload, self._folder, self._cache, self._scratch = workload, folder, cache, scratch
        links = scratch / "data" / "train"  # DLIO counts files by a format that it knows, and opens none
        links.mkdir(parents=True)
        links.with_name("valid").mkdir()
        for path in workload.paths(folder):
            (links / f"{path.stem}.npz").symlink_to(path)

    def run(self, loader: str, seconds: float) -> Run:
        """Runs DLIO with a loader and a step."""
        workload, out = self._workload, self._scratch / "out"
        files, epochs = workload.read_by(loader)
        configuration = {
            "framework": "pytorch",
            "workflow": {"generate_data": False, "train": True},
            "dataset": {
                "data_folder": str(self._scratch / "data"),
                "format": "npz",
                "num_files_train": files,
                "num_samples_per_file": workload.file_rows,
                "record_length": workload.row_bytes,
            },
            "reader": {
                "data_loader": "pytorch",
                "data_loader_classname": f"mlperf.loaders.{_LOADERS[loader]}",
                "data_loader_sampler": "iterative",
                "batch_size": workload.rows,
                "read_threads": 0,
            },
            "train": {"epochs": epochs, "computation_time": seconds},
            "metric": {"au": workload.bar},
            "output": {"folder": str(out)},
        }
        settings = {
            "workload": configuration,
            "paths": [str(path) for path in workload.paths(self._folder)][:files],
            "columns": list(workload.columns),
            "endpoint": self._cache.endpoint,
            "out": str(out),
        }
        own = {**os.environ, "MLPERF": json.dumps(settings), "OMP_NUM_THREADS": "1"}
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(_RANKS)]
        server = cpu_of(self._cache)
        done = subprocess.run(
            [*command, sys.executable, "-m", "mlperf.accelerator"],
            env=own, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(
                f"{loader}: DLIO ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            )
        metric = json.loads((out / "summary.json").read_text())["metric"]
        return Run(
            used=metric["train_au_mean_percentage"] / 100,
            rate=metric["train_throughput_mean_samples_per_second"] / _RANKS / workload.rows,
            cpu=sum(float((out / f"cpu-{rank}").read_text()) for rank in range(_RANKS)) + cpu_of(self._cache) - server,
        )


def measure(workload: Workload, server: Path, folder: Path) -> None:
    """Prints the rows of a workload."""
    workload.write(folder)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        caches = Caches(server, Path(scratch) / "logs")
        stack.callback(caches.close)
        source = ["--files", str(folder / "data"), "--columns", ",".join(workload.columns)]
        cache = caches.start(source, nodes=1)
        stack.callback(cache.stop)
        cache.wait("Ready")
        load = cpu_of(cache) / workload.gigabytes(workload.files)
        bench = Bench(workload, folder, cache, Path(scratch))
        idle = bench.run(EMPTY, _SOON)
        rows = []
        for loader in _LOADERS:
            fastest = idle if loader == EMPTY else bench.run(loader, _SOON)
            step, used = shortest(
                lambda at, of=loader: bench.run(of, at).used, workload.bar / fastest.rate, workload.bar
            )
            most = accelerators(workload, step, _RANKS, _CORES)
            files, epochs = workload.read_by(loader)
            epoch = (fastest.cpu / epochs - idle.cpu / EPOCHS) / workload.gigabytes(files)
            rows.append(Row(loader, most, used, epoch, load if loader == OURS else 0.0))
            print(line(workload, rows[-1]), flush=True)
    print(verdict(workload, rows), flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--data", type=Path, help="where the files are kept (default: in the cache folder)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="which ones")
    arguments = parser.parse_args()
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datacache/bench-mlperf"
    print(HEAD)
    for name in arguments.workloads.split(","):
        measure(WORKLOADS[name], arguments.server.resolve(), (arguments.data or kept) / name)
    print(_NOTES.format(cores=_CORES, ranks=_RANKS, ahead=2))


if __name__ == "__main__":
    main()
