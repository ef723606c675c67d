# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""From proportions to the integer weights and the length of a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from kubeflow_datacache.order.epoch import Tail
from kubeflow_datacache.order.mix import Mix, Part, Unit

Exact = Literal["epoch", "step"]
Until = Literal["first", "all"] | int


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The proportions of a mixture, by part and phase, before the parts' rows and the global batch size are known.

    proportions[name] has one number per phase, at least 0; each phase has one above 0. phases: the number of steps of
    each phase but the last. See mixture.mix for the others.
    """

    proportions: Mapping[str, tuple[Fraction, ...]]
    phases: tuple[int, ...]
    exact: Exact
    per: Unit
    until: Until

    def __post_init__(self) -> None:
        for name, value, words in (("exact", self.exact, get_args(Exact)), ("per", self.per, get_args(Unit))):
            if value not in words:
                raise ValueError(f"{name} = {value!r}: want {' or '.join(map(repr, words))}")
        if self.exact == "step" and self.per == "batch":
            raise ValueError(
                'exact = "step" with per = "batch": all rows of a step are of one part; want exact="epoch"'
            )
        if isinstance(self.until, str) and self.until not in ("first", "all"):
            raise ValueError(f'until = {self.until!r}: want "first", "all" or the number of rows of an epoch')
        if not isinstance(self.until, str) and self.until < 1:
            raise ValueError(f'until = {self.until}: want "first", "all" or a number of rows of at least 1')
        if self.phases and isinstance(self.until, str):
            raise ValueError(f"until = {self.until!r} with phases: want the number of rows of an epoch")
        for phase, steps in enumerate(self.phases):
            if steps < 1:
                raise ValueError(f"phases[{phase}] = {steps}: want a number of steps of at least 1")

    def order(
        self,
        rows: Sequence[int],
        *,
        seed: int,
        shuffle: bool,
        clump: int,
        window: int = 0,
        global_batch: int,
        tail: Tail,
    ) -> Mix:
        """Epoch 0 of the mixture of parts with these numbers of rows."""
        unit = global_batch if self.per == "batch" else 1
        length = self._length(rows, unit, global_batch, tail)
        phases = [steps * global_batch for steps in self.phases]
        columns: list[list[int]] = []
        for phase, draws in enumerate([*phases, length]):
            total = global_batch if self.exact == "step" else (draws if draws % length else length) // unit
            columns.append(self._weights(phase, total))
        parts = [Part(rows=n, weights=weights) for n, weights in zip(rows, zip(*columns, strict=True), strict=True)]
        return Mix(
            rows=length,
            seed=seed,
            shuffle=shuffle,
            clump=clump,
            window=window,
            global_batch=global_batch,
            tail=tail,
            parts=tuple(parts),
            phases=tuple(phases),
            unit=self.per,
        )

    def _length(self, rows: Sequence[int], unit: int, global_batch: int, tail: Tail) -> int:
        """The rows of an epoch."""
        multiple = global_batch if self.exact == "step" or unit > 1 else 1
        if not isinstance(self.until, str):
            if self.until % multiple:
                near = max(1, round(self.until / multiple)) * multiple
                raise ValueError(
                    f"until = {self.until}: want a multiple of global_batch_size = {multiple}, such as {near}, as"
                    f" exact={self.exact!r} and per={self.per!r} count by step"
                )
            return self.until
        if tail == "drop":  # else the rows that are left out would change the counts
            multiple = global_batch
        first = self.until == "first"
        if self.exact == "step":
            weights = self._weights(0, global_batch)
            blocks = [n // w if first else -(-n // w) for n, w in zip(rows, weights, strict=True)]
            length = (min(blocks) if first else max(blocks)) * global_batch
        else:
            shares = self._shares(0)
            draws = [n // unit if first else -(-n // unit) for n in rows]
            ratios = [n / share for n, share in zip(draws, shares, strict=True)]
            length = (int(min(ratios)) if first else -int(-max(ratios) // 1)) * unit
            length = length // multiple * multiple if first else -(-length // multiple) * multiple
        if length == 0:
            least = min(zip(rows, self.proportions, strict=True))
            raise ValueError(
                f"until = 'first': part {least[1]!r} has {least[0]} rows, too few for one step of"
                f' global_batch_size = {global_batch}: want until="all" or a number of rows, or a smaller batch'
            )
        return length

    def _shares(self, phase: int) -> list[Fraction]:
        """The parts' shares of a phase; their sum is 1."""
        column = [proportions[phase] for proportions in self.proportions.values()]
        return [proportion / sum(column) for proportion in column]

    def _weights(self, phase: int, total: int) -> list[int]:
        """Integers in proportion to the shares of a phase, by largest remainder; their sum is total."""
        exact = [share * total for share in self._shares(phase)]
        weights = [int(weight) for weight in exact]
        by_remainder = sorted(range(len(exact)), key=lambda i: weights[i] - exact[i])  # stable: ties in order of parts
        for i in by_remainder[: total - sum(weights)]:
            weights[i] += 1
        for name, weight, share in zip(self.proportions, weights, exact, strict=True):
            if share and not weight:
                raise ValueError(
                    f"part {name!r} has {float(share):.3g} of the {total} draws for which counts are exact, less than"
                    f' one: want a larger weight, a larger global_batch_size, or exact="epoch" with a longer epoch'
                )
        return weights


def fraction(name: str, weight: object) -> Fraction:
    """A weight as written in decimal: 0.7 is 7/10. Raises ValueError or TypeError, naming the part."""
    if isinstance(weight, bool) or not isinstance(weight, int | float | Fraction):
        raise TypeError(f"weight of {name!r} = {weight!r}: want a number, not {type(weight).__name__}")
    try:
        value = Fraction(repr(float(weight))) if isinstance(weight, float) else Fraction(weight)
    except ValueError:
        value = Fraction(-1)  # inf or nan
    if value < 0:
        raise ValueError(f"weight of {name!r} = {weight!r}: want a number of at least 0")
    return value
