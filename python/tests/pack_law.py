# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The law of packing, version 1, as docs/order.md has it: for clarity, not for speed. Packs are lists of positions."""

from __future__ import annotations

from dataclasses import dataclass

from order import Permutation, mix

MASK = (1 << 64) - 1
Packs = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Law:
    """What packs depend on."""

    tokens: int
    packs: int
    window: int = 1
    multiple: int = 1
    quadratic: int = 61_035
    seed: int = 0
    epoch: int = 0

    def sizes(self, lengths: list[int]) -> list[int]:
        """The tokens that rows take."""
        return [-(-length // self.multiple) * self.multiple for length in lengths]

    def cost(self, sizes: list[int]) -> int:
        """The cost of a pack."""
        return self.quadratic * sum(sizes) + sum(size * size for size in sizes)

    def fit(self, sizes: dict[int, int], packs: int) -> Packs | None:
        """sizes: by position. Looks at every pack for every row."""
        made: Packs = [[] for _ in range(packs)]
        when = [-1] * packs  # when a pack got its last row
        own = lambda pack: [sizes[p] for p in pack]  # noqa: E731
        for time, (size, position) in enumerate(
            sorted(((s, p) for p, s in sizes.items()), key=lambda x: (-x[0], x[1]))
        ):
            room = [self.tokens - sum(own(pack)) for pack in made]
            best = min(range(packs), key=lambda i: (self.cost(own(made[i])), i))
            if room[best] < size:
                fitting = [i for i in range(packs) if room[i] >= size]
                if not fitting:
                    return None
                best = min(fitting, key=lambda i: (room[i], -when[i]))
            made[best].append(position)
            when[best] = time
        return [sorted(pack) for pack in made if pack]

    def window_at(self, position: int, lengths: list[int]) -> tuple[Packs, int]:
        """The packs of the window that begins at a position, in the order of their first positions, and its end."""
        most = self.window * self.packs
        sizes = {p: s for p, s in enumerate(self.sizes(lengths)) if p >= position and s}
        rows = list(sizes)
        held = max(n for n in range(len(rows) + 1) if sum(sizes[p] for p in rows[:n]) <= most * self.tokens)
        counts = [held]
        less = max(1, held // 1024)
        while counts[-1] > min(most, held):
            counts.append(max(held - less, min(most, held)))
            less *= 2
        tries = [(n, most) for n in counts]
        if held == len(rows):
            tries = [(held, n) for n in range(1, most + 1)] + tries
        for count, packs in tries:
            if (made := self.fit({p: sizes[p] for p in rows[:count]}, packs)) is not None:
                return sorted(made), rows[count] if count < len(rows) else len(lengths)
        raise AssertionError("as many rows as packs always fit")

    def steps(self, lengths: list[int]) -> list[tuple[int, int, Packs]]:
        """All steps of an epoch: where the window begins, the number in the window, and the packs."""
        position, out = 0, list[tuple[int, int, Packs]]()
        while position < len(lengths):
            packs, end = self.window_at(position, lengths)
            slots: Packs = [[]] * len(packs)
            if packs:
                seed = (self.seed + 0xA0761D6478BD642F) & MASK
                order = Permutation(len(packs), mix(seed), (mix(self.epoch) + position) & MASK)
                for i, pack in enumerate(packs):
                    slots[order.at(i)] = pack
            for i, first in enumerate(range(0, len(slots), self.packs)):
                out.append((position, i, slots[first : first + self.packs]))
            position = end
        return out

    def deal(self, packs: Packs, lengths: list[int], world: int) -> list[list[int]]:
        """For each rank the packs of its micro-batches, by number; -1 for none."""
        sizes = self.sizes(lengths)
        costs = [self.cost([sizes[p] for p in pack]) for pack in packs]
        dearest, sums = sorted(range(len(packs)), key=lambda i: (-costs[i], i)), [0] * world
        ranks: list[list[int]] = [[] for _ in range(world)]
        for first in range(0, len(dearest), world):
            own = dict(
                zip(sorted(range(world), key=lambda r: (sums[r], r)), dearest[first : first + world], strict=False)
            )
            for rank in range(world):
                ranks[rank].append(own.get(rank, -1))
                sums[rank] += costs[own[rank]] if rank in own else 0
        return ranks
