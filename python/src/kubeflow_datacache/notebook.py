# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HTML for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable


def html_table(title: str, shown: Iterable[tuple[str, str]]) -> str:
    """An HTML table with a caption and one row per name and value. Names and values are escaped."""
    rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in shown)
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
