# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emulated accelerators: DLIO's benchmark in the processes that mpiexec starts, configured by the variable MLPERF."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any


class Profile:
    """Stands in for dftracer.logger.dft_fn, whose own replacement in DLIO takes no positional arguments."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Profiles nothing."""

    def log(self, function: Any) -> Any:
        """Decorates a function."""
        return function

    log_init = log_static = iter = log

    def update(self, **_: Any) -> None:
        """Names the current step."""

    def __enter__(self) -> None:
        """Begins a section."""

    def __exit__(self, *_: object) -> None:
        """Ends a section."""


class Patient:
    """A communicator whose barrier sleeps: MPI would keep a core busy that loaders and servers need."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def barrier(self) -> None:
        """Waits for all ranks."""
        waits = self._world.Ibarrier()
        while not waits.Test():
            time.sleep(0.0005)


def main() -> None:
    """Runs the benchmark."""
    logger: Any = ModuleType("dftracer.logger")
    logger.dftracer, logger.dft_fn, logger.DFTRACER_ENABLE = None, Profile, False
    sys.modules["dftracer"], sys.modules["dftracer.logger"] = ModuleType("dftracer"), logger
    sys.modules["tensorflow"] = ModuleType("tensorflow")  # DLIO imports it for profiles that it does not take here

    from dlio_benchmark.main import DLIOBenchmark  # pyright: ignore[reportMissingImports] - by make bench NAME=mlperf
    from dlio_benchmark.utils.utility import DLIOMPI  # pyright: ignore[reportMissingImports] - as above
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports] - as above

    from mlperf.loaders import SETTINGS

    mpi = DLIOMPI.get_instance()
    mpi.initialize()
    mpi.mpi_world = Patient(mpi.mpi_world)
    benchmark = DLIOBenchmark(OmegaConf.create(SETTINGS["workload"]))
    benchmark.initialize()
    begun = time.process_time()
    benchmark.run()
    Path(SETTINGS["out"], f"cpu-{mpi.rank()}").write_text(str(time.process_time() - begun))
    benchmark.finalize()
    mpi.finalize()
    os._exit(0)  # a thread of a loader may still read, and the interpreter would not wait for it


if __name__ == "__main__":
    main()
