# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Benchmark pack: how full and equal packs are beside TRL's, which rows a resume loses, what an epoch costs."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import datasets  # pyright: ignore[reportMissingImports] - in the examples' environment
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lake import Lake, Made
from pack_picture import picture
from pack_resume import resumes
from pack_starts import starts
from server import Cache, Caches
from take import cpu_of
from trl import pack_dataset  # pyright: ignore[reportMissingImports] - as above

from kubeflow_datacache import DataCache, Loader, Pack, PackLoader, World
from kubeflow_datacache.order.pack import Packer, deal

Int64 = npt.NDArray[np.int64]
RANKS, QUADRATIC, STEPS, TOKENS = 256, 61_035, 4, 8192


def lengths_of(kind: str, rows: int, tokens: int) -> Int64:
    """Lengths of rows, at most `tokens`."""
    rng = np.random.default_rng(1)
    logs = {
        "lognormal": 6.4 + rng.standard_normal(rows),
        "chat": np.where(
            rng.random(rows) < 0.8, 5.5 + 0.8 * rng.standard_normal(rows), 8 + 0.5 * rng.standard_normal(rows)
        ),
        "code": 6.5 + 1.6 * rng.standard_normal(rows),
    }[kind]
    return np.clip(np.exp(logs), 16, tokens).astype(np.int64)


def costs_of(packs: list[Int64]) -> list[int]:
    """The cost of each pack."""
    return [int((own * (QUADRATIC + own)).sum()) for own in packs]


def figures(packs: list[Int64], tokens: int) -> tuple[float, float]:
    """The share of tokens that steps of packs use, and the cost of the dearest rank of a micro-batch over the mean."""
    costs = costs_of(packs)
    dealt = [max(costs[i : i + RANKS]) for i in range(0, len(costs), RANKS)]
    return sum(int(own.sum()) for own in packs) / (tokens * len(packs)), sum(dealt) * RANKS / sum(costs)


def ours(lengths: Int64, tokens: int, count: int) -> list[Int64]:
    """Packs in the order of micro-batches and ranks."""
    packer = Packer(Pack("x", tokens, count), rows=len(lengths), seed=1, epoch=0, refused=lambda p, n: None)
    out = list[Int64]()
    for _, step in zip(range(STEPS), packer.steps(0, iter([lengths])), strict=False):
        order = [pack for row in deal(step.costs, RANKS) for pack in row if pack is not None]
        out += [step.packs[pack].lengths for pack in order]
    return out


def next_fit(lengths: Int64, tokens: int, count: int) -> list[Int64]:
    """Each rank packs its own rows one after the other, as loaders with a buffer for each rank do."""
    ranks = [iter(lengths[rank::RANKS]) for rank in range(RANKS)]
    left, out = [next(rank) for rank in ranks], list[Int64]()
    for _ in range(STEPS * count // RANKS):
        for rank, rows in enumerate(ranks):
            own, room = [left[rank]], tokens - left[rank]
            while (row := next(rows)) <= room:
                own.append(row)
                room -= row
            left[rank] = row
            out.append(np.array(own))
    return out


def trls(lengths: Int64, tokens: int, count: int) -> list[Int64]:
    """Packs of TRL's default strategy, shuffled as its trainer does."""
    rows = lengths[: int(1.1 * STEPS * count * tokens / lengths.mean())]
    column = pa.ListArray.from_arrays(
        pa.array(np.append(0, np.cumsum(rows)).astype(np.int32)), pa.nulls(rows.sum(), pa.int8())
    )
    packed = pack_dataset(datasets.Dataset(pa.table({"input_ids": column})), tokens, "bfd")["seq_lengths"]
    chosen = np.random.default_rng(1).permutation(len(packed))[: STEPS * count]
    return [np.array(packed[at]) for at in chosen.tolist()]


WAYS = {"next-fit a rank": next_fit, "TRL, bfd": trls, "pack=": ours}


def fill_and_balance(drawn: Path | None) -> None:
    """Prints fill and imbalance of steps of packs on RANKS ranks, and draws those of one table."""
    print(f"{STEPS} steps on {RANKS} ranks: share of tokens used; dearest rank of a micro-batch / mean")
    for tokens, count in ((8192, 512), (32_768, 256)):
        for kind in ("lognormal", "chat", "code"):
            lengths = lengths_of(kind, 60_000 if tokens == 8192 else 120_000, tokens)
            lengths = np.tile(lengths, 1 + int(2.5 * STEPS * count * tokens / lengths.sum()))
            ways = {name: make(lengths, tokens, count) for name, make in WAYS.items()}
            shown = (
                f"{name} {fill:.4f} {most:.3f}" for name, own in ways.items() for fill, most in [figures(own, tokens)]
            )
            print(f"{tokens:6} tokens, {count} packs, {kind:9}: " + "; ".join(shown), flush=True)
            if drawn is not None and (tokens, kind) == (8192, "chat"):
                each = {name: costs_of(own) for name, own in ways.items()}
                drawn.write_text(picture(ways, tokens, each, ranks=RANKS, data=f"lengths of chats, {RANKS} ranks"))


def read(loader: Loader, cache: Cache) -> tuple[float, float, float]:
    """Reads an epoch. Returns CPU seconds of the server and of the client, and seconds until the first batch."""
    began, client, server, first = (time.perf_counter(), time.process_time(), cpu_of(cache), 0.0)
    for _ in loader:
        first = first or time.perf_counter() - began
    return cpu_of(cache) - server, time.process_time() - client, first


def plan_of(loader: PackLoader, cache: Cache, epoch: int) -> float:
    """CPU seconds of the server to plan an epoch that was not planned yet: lengths from data nodes, and packs."""
    loader.set_epoch(epoch)
    before = cpu_of(cache)
    loader.count_steps()
    return cpu_of(cache) - before


def compare(client: DataCache, cache: Cache, count: int, mean: float, rounds: int) -> None:
    """Prints what an epoch costs with `count` packs a step, and as steps of as many rows."""
    rows = client.loader(global_batch_size=round(count * TOKENS / mean), world=World(0, 1))
    packs = client.loader(pack=Pack("input_ids", TOKENS, count), world=World(0, 1))
    best: dict[str, list[float]] = {}
    plan = 9e9
    for number in range(rounds):
        for way, loader in (("rows", rows), ("packs", packs)):
            best[way] = [min(pair) for pair in zip(best.get(way, [9e9] * 3), read(loader, cache), strict=True)]
        plan = min(plan, plan_of(packs, cache, 1000 + number))
        packs.set_epoch(number + 1)
    print(f"{count} packs a step, or as many rows: the least of {rounds} epochs")
    for way, (servers, own, first) in best.items():
        print(f"{way:6} server {servers:5.2f} CPU-s, client {own:5.2f} CPU-s, first batch {first * 1e3:4.0f} ms")
    of_rows, of_packs = (sum(best[way][:2]) for way in ("rows", "packs"))
    print(f"plan {plan:.2f} CPU-s: {plan / of_packs:.3f} of nodes and client; the bar is 0.1")
    print(f"rows by number: {(of_packs - plan) / of_rows:.3f} of an epoch's streams; the bar is 1.1", flush=True)


def costs(server: Path, rows: int, rounds: int) -> None:
    """Prints what an epoch costs with packs and without."""
    lengths = lengths_of("lognormal", rows, TOKENS)
    ends = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    tokens = np.random.default_rng(1).integers(0, 50_000, int(lengths.sum()), np.int32)
    data = pa.table({"input_ids": pa.ListArray.from_arrays(ends, pa.array(tokens))})
    print(f"{rows} rows of {lengths.mean():.0f} tokens, shuffled, one rank, 2 data nodes")
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Caches(server, Path(folder) / "logs")) as caches:
        cache = caches.of(Made("packs", Lake(Path(folder)).create("t", data.schema, data).metadata_location))
        with DataCache(cache.endpoint) as client:
            for count in (64, 512):
                compare(client, cache, count, float(lengths.mean()), rounds)


def main() -> None:
    """Prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="the cacheserver binary")
    parser.add_argument("--picture", type=Path, help="draw fill and balance into this SVG file")
    parser.add_argument("--rows", type=int, default=120_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=3, help="epochs each way, in turns; the best counts")
    parser.add_argument("--costs", action="store_true", help="print only what epochs, starts and resumes cost")
    arguments = parser.parse_args()
    datasets.disable_progress_bars()
    if not arguments.costs:
        fill_and_balance(arguments.picture)
        resumes(arguments.server, lengths_of("chat", 12_000, 8192))
    costs(arguments.server, arguments.rows, arguments.rounds)
    starts(arguments.server, [10**5, 10**6, 10**7])


if __name__ == "__main__":
    main()
