# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The notebook runs from its first to its last cell and shows what it promises; no outputs are in the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from kit.deadline import limit
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "examples"
WIDGET = "application/vnd.jupyter.widget-view+json"


def read() -> Any:
    """The notebook of the repository."""
    return nbformat.read(FOLDER / "first-look.ipynb", as_version=4)


def test_the_repository_has_no_outputs() -> None:
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if cell.outputs or cell.execution_count is not None] == []


def test_every_cell_shows_what_it_promises(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHESERVER", str(server))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent / "src"), prepend=":")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    client = NotebookClient(read(), timeout=int(3 * limit()), resources={"metadata": {"path": str(FOLDER)}})
    cells: dict[str, list[Any]] = {cell.id: cell.get("outputs", []) for cell in client.execute().cells}

    # Of Python alone: ipykernel does not show what a child process writes when it runs under pytest.
    assert [output for outputs in cells.values() for output in outputs if output.get("name") == "stderr"] == []
    html = {
        name: outputs[-1].data.get("text/html", "")
        for name, outputs in cells.items()
        if outputs[-1:] and "data" in outputs[-1]
    }
    assert "<th>content</th>" in html["head"]
    assert "<caption>DataCache</caption>" in html["repr"]
    assert "<th>rows</th><td>20,000</td>" in html["repr"]
    assert "<td>epoch 0, step 0 of 78</td>" in html["loader"]
    bar, printed = cells["epoch"]
    assert WIDGET in bar.data, "tqdm's bar for notebooks"
    assert printed.text.endswith("of 19,968 reviews are positive\n")
    assert "<th>step</th><td>77</td>" in html["batch"]
    assert html["stats-table"].startswith("<pre>stage")
    assert "'next_step': 10" in cells["save"][-1].data["text/plain"]
    assert "<th>epoch</th><td>1</td></tr><tr><th>step</th><td>10</td>" in html["load"]
