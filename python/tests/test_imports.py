# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The package's modules have no import cycles, counting imports in functions and for type checking."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import kubeflow_datacache

PACKAGE = kubeflow_datacache.__name__
ROOT = Path(next(iter(kubeflow_datacache.__path__)))


def modules() -> dict[str, Path]:
    """All modules of the package by full name."""
    found: dict[str, Path] = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join([PACKAGE, *(part for part in parts if part != "__init__")])] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """The full names that a module imports anywhere, of modules or of their members."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import, which this test does not resolve"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_imports_have_no_cycle() -> None:
    paths = modules()
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        named = (each if each in paths else each.rpartition(".")[0] for each in imported(path))
        graph[name] = {each for each in named if each in paths and each != name}
    assert sum(map(len, graph.values())) > len(graph)  # the test found imports
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" -> ".join(reversed(error.args[1]))) from None
