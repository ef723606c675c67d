# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws how full packs are, and what each rank of a micro-batch costs: docs/pictures/packs.svg."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

_SHOWN = 30  # packs of which each sequence is drawn
_WIDTH, _FULL, _COST, _GAP = (
    240,
    130,
    90,
    26,
)  # of a panel; heights of a full pack, and of a cost of 1.5 times the mean
_STYLE = """
    svg { --paper: #ffffff; --edge: #d0d5e0; --ink: #1f2430; --soft: #5a6275; --one: #3f51b5; --two: #00897b; }
    @media (prefers-color-scheme: dark) {
      svg { --paper: #171a21; --edge: #3a4152; --ink: #e8ebf2; --soft: #a5adbf; --one: #8c9eff; --two: #4db6ac; }
    }
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
    .title { font-weight: 600; font-size: 14px; fill: var(--ink); }
    .paper { fill: var(--paper); stroke: var(--edge); }
    .packs { fill: var(--one); } .costs { fill: var(--two); opacity: .8; }
    .line { stroke: var(--soft); stroke-dasharray: 3 3; fill: none; }"""


def picture(ways: dict[str, list[Int64]], tokens: int, costs: dict[str, list[int]], *, ranks: int, data: str) -> str:
    """An SVG with a panel for each way.

    ways: the lengths of the sequences of each pack, micro-batch by micro-batch of `ranks` ranks. costs: of each pack.
    data: which rows these are.
    """
    width = _GAP + len(ways) * (_WIDTH + _GAP)
    panels = "\n".join(
        _panel(_GAP + at * (_WIDTH + _GAP), name, ways[name], tokens, np.array(costs[name]).reshape(-1, ranks))
        for at, name in enumerate(ways)
    )
    said = f"Packs of {tokens:,} tokens, {data}: fill, and cost of each rank"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 366" width="{width}" height="366" \
role="img" aria-labelledby="title">
  <!-- Copyright The Kubeflow Authors. SPDX-License-Identifier: Apache-2.0
       Drawn by make bench NAME=pack (test/bench/pack_picture.py). -->
  <title id="title">{said}</title>
  <style>{_STYLE}
  </style>
  <rect class="paper" x=".5" y=".5" width="{width - 1}" height="365" rx="6"/>
{panels}
</svg>
"""


def _panel(x: int, name: str, packs: list[Int64], tokens: int, costs: Int64) -> str:
    fill = sum(int(own.sum()) for own in packs) / (tokens * len(packs))
    relative = np.sort(costs / costs.mean(), axis=1).mean(axis=0)[::-1]  # of the dearest rank, of the next
    chosen = packs[: costs.shape[1]][:: costs.shape[1] // _SHOWN][:_SHOWN]
    top, base = 64, 64 + _FULL + 62 + _COST
    step, unit = _WIDTH / _SHOWN, _COST / 1.5
    bars, wide = list[str](), step - 1.5
    for at, own in enumerate(chosen):
        y = float(top + _FULL)
        for length in own.tolist():
            high = length / tokens * _FULL
            y -= high
            bars.append(f"M{x + at * step:.1f} {y:.1f}h{wide:.1f}v{max(0.4, high - 0.5):.1f}h-{wide:.1f}z")
    ranks = " ".join(
        f"{x + at * _WIDTH / len(relative):.1f} {base - cost * unit:.1f}" for at, cost in enumerate(relative.tolist())
    )
    end = x + _WIDTH
    return f"""  <text class="title" x="{x}" y="28">{name}</text>
  <text x="{x}" y="50">{fill:.1%} of the tokens are used</text>
  <rect class="paper" x="{x - 1}" y="{top}" width="{_WIDTH}" height="{_FULL}"/>
  <path class="packs" d="{"".join(bars)}"/>
  <text x="{x}" y="{top + _FULL + 32}">dearest rank: {relative[0]:.3f} of the mean</text>
  <path class="costs" d="M{x} {base}L{ranks} {end} {base}z"/>
  <path class="line" d="M{x} {base - unit:.1f}H{end}"/>"""
