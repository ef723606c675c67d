# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors for missing optional packages that say how to install them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


@contextlib.contextmanager
def needs(extra: str, user: str) -> Generator[None]:
    """Wraps imports of optional packages. A ModuleNotFoundError then names the extra to install, and `user`, which
    needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing_extra(error, extra, user) from error


def missing_extra(error: ModuleNotFoundError, extra: str, user: str) -> ModuleNotFoundError:
    """An error that names the extra to install; the same error if the missing module is one of this package."""
    name = (error.name or "").partition(".")[0]
    if not name or name == "kubeflow_datacache":
        return error
    text = f"{user} needs the package {name}: pip install 'kubeflow-datacache[{extra}]'"
    return ModuleNotFoundError(text, name=name)
