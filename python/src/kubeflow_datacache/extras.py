# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Packages that only some users have, and how to install them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def needs(extra: str, user: str) -> Generator[None]:
    """Wraps imports of optional packages: ModuleNotFoundError names the extra to install, and its user."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(error, extra, user) from error


def missing(error: ModuleNotFoundError, extra: str, user: str) -> ModuleNotFoundError:
    """The error with the extra to install; as it is if a module of this package's own is missing."""
    name = (error.name or "").partition(".")[0]
    if not name or name == "kubeflow_datacache":
        return error
    text = f"{user} needs the package {name}: pip install 'kubeflow-datacache[{extra}]'"
    return ModuleNotFoundError(text, name=name)
