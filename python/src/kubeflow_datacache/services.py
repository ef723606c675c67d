# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where the caches of a TrainJob are found, as in internal/reference of the control plane."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
FOLDER: Final = Path("/var/run/secrets/datacache")  # where a training container has a folder for each cache
_NAME = re.compile(f"({_LABEL}/)?{_LABEL}|{_LABEL}/{_LABEL}/[A-Za-z0-9][A-Za-z0-9._-]{{0,62}}")


def service_name(job: str, name: str | None = None) -> str:
    """The Service of a TrainJob's first or only cache, or that of the cache with a name, if the TrainJob has several.

    name: as the TrainJob's storageUri writes it, <name>, <namespace>/<name> or <namespace>/<name>/<dataset>.
    """
    service = f"{job}-cache-service"
    return service if name is None else f"{service}-{_digest(name)}"


def job_name(environ: Mapping[str, str]) -> str:
    """The name of this process's TrainJob, "" if it is of none. Open MPI starts ranks on other pods without the
    variables of its launcher, except those whose names begin with OMPI_."""
    return environ.get("TRAIN_JOB_NAME") or environ.get("OMPI_TRAIN_JOB_NAME", "")


def locate(environ: Mapping[str, str], name: str | None) -> tuple[str, str]:
    """The address of a cache that the environment has, "" if none, and the host of the TrainJob's cache otherwise.

    See DataCache.from_env. Raises ValueError if the environment has neither.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(
            f"name = {name!r}: want the name of a cache as the TrainJob's storageUri writes it, <name>,"
            " <namespace>/<name> or <namespace>/<name>/<dataset>"
        )
    variable = _variable("DATACACHE_ENDPOINT", name)
    job, endpoint = job_name(environ), environ.get(variable, "")
    if name is not None and not endpoint and environ.get("DATACACHE_ENDPOINT"):
        raise ValueError(
            f"DATACACHE_ENDPOINT is the address of one cache, and {name!r} is asked for by its name:"
            f" set {variable} to its address"
        )
    if not job and not endpoint:
        raise ValueError(
            f"neither TRAIN_JOB_NAME nor {variable} is set: a TrainJob with a cache sets the first;"
            ' elsewhere give the address, as DataCache("grpc://HOST:50051")'
        )
    return endpoint, service_name(job, name)


def credentials_folder(environ: Mapping[str, str], name: str | None) -> tuple[Path, bool]:
    """The folder with the token and the CA for a cache, and whether the environment names it. It may not exist."""
    if given := environ.get(_variable("DATACACHE_CREDENTIALS", name)):
        return Path(given), True
    return FOLDER / ("own" if name is None else _digest(name)), False


def dataset_of(folder: Path, name: str | None) -> str | None:
    """The dataset that the TrainJob's storageUri names, <namespace>/<name>/<dataset>; None if it names none.

    folder: that of credentials_folder, in which admission writes the one of the first or only cache.
    """
    if name is not None:
        return name.split("/")[2] if name.count("/") == 2 else None
    file = folder / "dataset"
    return file.read_text().strip() or None if file.exists() else None


def _variable(stem: str, name: str | None) -> str:
    return stem + ("" if name is None else "_" + re.sub("[-/.]", "_", name).upper())


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
