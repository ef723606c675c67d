# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the rows that are lost or read twice where a training on packs goes on with another number of ranks."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from accelerate.data_loader import prepare_data_loader, skip_first_batches  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports] - in the examples' environment
from lake import Lake, Made
from server import Caches
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torchtitan.components.dataloader import ParallelAwareDataloader  # pyright: ignore[reportMissingImports]
from trl import pack_dataset  # pyright: ignore[reportMissingImports] - as above

from kubeflow_datacache import DataCache, Pack, PackLoader, World

Int64 = npt.NDArray[np.int64]
TOKENS, PACKS, SAVED, BEFORE, AFTER = (8192, 48, 7, 8, (6, 5))  # ranks before and after; SAVED: steps before


def ours(cache: DataCache, ranks: int) -> Counter[int]:
    """How often each row of an epoch is read."""

    def loaders(world: int) -> list[PackLoader]:
        pack = Pack("input_ids", tokens=TOKENS, packs=PACKS)
        return [cache.loader(pack=pack, seed=1, world=World(rank, world)) for rank in range(world)]

    def read(own: list[PackLoader], steps: int | None) -> None:
        for batches in itertools.islice(zip(*own, strict=True), steps):
            for batch in batches:
                read_rows.update(batch["id"].to_pylist())

    read_rows, first = Counter[int](), loaders(BEFORE)
    read(first, SAVED)
    state, again = first[0].state_dict(), loaders(ranks)
    for loader in again:
        loader.load_state_dict(state)
    read(again, None)
    for loader in [*first, *again]:
        loader.close()
    return read_rows


def sharded(packs: int, world: int, rank: int) -> Any:
    """accelerate's loader of a rank's packs, one a batch, shuffled."""
    plain: Any = DataLoader(cast("Any", range(packs)), batch_size=1, sampler=RandomSampler(range(packs)))
    return prepare_data_loader(
        plain, num_processes=world, process_index=rank, put_on_device=False, use_seedable_sampler=True, data_seed=42
    )


def trls(packed: list[list[int]], ranks: int) -> tuple[Counter[int], list[int]]:
    """How often rows are read in some steps before and after a resume of transformers' Trainer, and which rows should
    have been read by then, once.

    The Trainer skips as many batches of each rank as the steps before would have with the accumulation of now, which
    keeps the packs of a step where the ranks divide them, and otherwise is rounded down.
    """

    def read(world: int, skipped: int) -> Counter[int]:
        rows, accumulation = Counter[int](), PACKS // world
        for rank in range(world):
            own = sharded(len(packed), world, rank)
            own = skip_first_batches(own, skipped * accumulation) if skipped else own
            for pack in itertools.islice(own, SAVED * accumulation):
                rows.update(packed[int(pack)])
        return rows

    last = 2 * SAVED * (PACKS // ranks) * ranks
    wanted = itertools.islice(sharded(len(packed), 1, 0), last)
    return read(BEFORE, 0) + read(ranks, SAVED), [row for pack in wanted for row in packed[int(pack)]]


def torchtitans(ranks: int) -> str:
    """What torchtitan's data loader says of a state of another number of ranks."""

    class Rows(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(8))

    state = ParallelAwareDataloader(Rows(), dp_rank=0, dp_world_size=BEFORE, batch_size=1).state_dict()
    try:
        ParallelAwareDataloader(Rows(), dp_rank=0, dp_world_size=ranks, batch_size=1).load_state_dict(state)
    except AssertionError as error:
        return f"refused: {error}"
    return "taken"


def resumes(server: Path, lengths: Int64) -> None:
    """Prints the counts."""
    ends = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    ids = np.arange(len(lengths))
    tokens = pa.ListArray.from_arrays(ends, pa.array(np.repeat(ids, lengths).astype(np.int32)))  # tokens name the row
    data = pa.table({"id": ids, "input_ids": tokens})
    print(f"{len(lengths)} rows, {SAVED} steps of {PACKS} packs, a resume on other ranks: rows never read, read twice")
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Caches(server, Path(folder) / "logs")) as caches:
        made = Lake(Path(folder)).create("t", data.schema, data)
        with DataCache(caches.of(Made("packs", made.metadata_location)).endpoint) as cache:
            own = {ranks: ours(cache, ranks) for ranks in AFTER}
    packed = pack_dataset(Dataset(pa.table({"input_ids": tokens})), TOKENS, "bfd")["input_ids"]
    packs = [np.unique(np.array(pack)).tolist() for pack in packed]
    for ranks in AFTER:
        theirs, wanted = trls(packs, ranks)
        for name, read, rows in (("pack=", own[ranks], ids.tolist()), ("TRL bfd, Trainer", theirs, wanted)):
            never, twice = (sum(not read[row] for row in rows), sum(count > 1 for count in read.values()))
            print(f"{name:17} {BEFORE} to {ranks} ranks: {never} never, {twice} twice", flush=True)
        print(f"{'torchtitan':17} {BEFORE} to {ranks} ranks: {torchtitans(ranks)}", flush=True)
