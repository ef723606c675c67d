# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loader parameters: names, types, defaults and validation, shared by all classes that take them."""

from __future__ import annotations

import difflib
import inspect
import logging
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Required, TypedDict, TypeVar, get_args

import pyarrow as pa

from kubeflow_datacache.arguments import check_bool, check_callable, check_int, column_names
from kubeflow_datacache.order.epoch import Order, Tail
from kubeflow_datacache.order.feistel import LIMIT
from kubeflow_datacache.order.laned import LEAST_BATCH
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.rows.arrays import Null, Policy, Ragged
from kubeflow_datacache.world import World

_log: Final = logging.getLogger("kubeflow_datacache")
Function = TypeVar("Function", bound=Callable[..., Any])
Host = Literal["auto", "off", "require"]


class LocalRandomSeed(int):
    """A random seed drawn by this process alone. Invalid with several ranks, whose seeds would differ."""


class LoaderOptions(TypedDict, total=False):
    """Parameters of a loader: what to read, in which order, and how far ahead. Integers and bools may be numpy scalars.

    global_batch_size: rows per step over all ranks. Each rank gets a contiguous slice of every step; slices differ by
    at most one row, so every world size gives the same global batches in the same order. seed: seed of the shuffle, the
    same on every rank. None: a random seed, which is logged and saved in the state. With several ranks, rank 0 of
    torch.distributed draws the seed, and all ranks must create their loaders at the same time. shuffle: whether every
    epoch is a new permutation of the rows. clump: the block size of a block shuffle. `clump` consecutive rows of the
    table form a clump; clumps are shuffled, and rows within a clump keep their order. 1, the default, shuffles single
    rows. Larger clumps cost the servers less, but the rows of a clump are neighbours in every epoch. window: so many
    clumps that follow each other in the shuffled epoch have their rows shuffled among each other, as by a shuffle
    buffer, though exactly; 0, the default, leaves clumps as they are. Reading then moves through the table window by
    window, which suits tables larger than memory. tail: what happens
    to an incomplete last step. "drop" leaves it out, "keep" returns it as a smaller step, "pad" fills it with rows from
    the start of the epoch, which Batch.valid marks as padding. order: the version of the order of a shuffled epoch. 1
    draws from all rows. With 2, each step has rows of all of 32 equal ranges of the table, and a rank reads only a few
    ranges in an epoch, so that many ranks and data nodes need few connections; the global batch size must be at least
    64, and mixtures have 1 alone. filter, split: read only these rows; see DataCache.select. columns: column names in
    the wanted order; None for all.
    transform: a function of an Arrow record batch; its result becomes Batch.data. If the result is a record batch or a
    mapping of columns, it must have as many rows as the batch. transform_threads: how many batches are transformed at
    the same time; 0 runs the transform in the merging thread, None uses one thread per CPU. transform_processes: use
    this many processes instead, for a transform that holds the GIL; they import it, so it must be defined at the top
    level of a module. Batches keep their order in every case. prefetch_bytes: memory limit for rows read ahead, whether
    received, merged or transformed. It may be exceeded by one message (up to 4 MiB) per data node, and by the block of
    steps that is being merged (16 MiB, at most a quarter of the limit, at least one step). Results of a transform may
    use a quarter of the limit, or one batch if that is larger, by their estimated size in memory; this can leave
    threads idle, so raise the limit if they are. The kernel's socket buffers hold at most as much again, and one
    message per data node. The process keeps up to twice the limit of freed memory for reuse (heap.Heap). A larger limit
    helps only if batches take very different times: memory that is soon reused is faster than more memory. null,
    ragged: what Batch.numpy() and torch() do with nulls that numpy cannot represent, and with lists of different
    lengths. "error" raises ColumnError for a batch that contains them; "arrow" leaves all such columns as Arrow arrays
    in every batch; null="zero" replaces nulls by zeros. A column's type never depends on its data; see
    rows.arrays.Policy. cast: dtypes in which torch() and torch's loaders return columns, such as {"tokens": "int64"}
    for tokens that are stored and sent as uint16, of which torch has few operations. Tensors that go to a device are
    converted there. As with torch.Tensor.to, values that do not fit wrap around. arrow() and numpy() stay as received.
    host: whether the ranks of one container that read the same rows, as with tensor parallelism, read them once: the
    first starts a process that reads, and all copy the rows from its shared memory, whose pages count as memory of the
    container and not as files in /dev/shm. "auto" does so where World says that there are such ranks, also for ranks
    with rows of their own if these had more than 256 connections to data nodes, and reads alone if anything fails, with
    the same rows; "require" raises DataCacheError instead. "off" reads alone.
    early: whether to read while the cache still loads, if it knows then how many rows each data node will have: the
    rows are the same in the same order, and batches come as soon as their rows are loaded. Then a load that fails ends
    the iteration with CacheFailedError; a state saved before stays valid. False waits until all rows are loaded.
    world: this rank among all ranks. None: World.detect() at the start of each iteration, so a
    loader may be created before init_process_group. worker, workers: read only every workers-th step, starting at step
    `worker`; for several readers in one rank. progress: whether worker 0 of rank 0 shows the progress of the cache's
    load and of each epoch on standard error: speed, and what it waits for. tqdm's bar in a terminal or notebook if tqdm
    is installed, otherwise plain lines.
    """

    global_batch_size: Required[int]
    seed: int | None
    shuffle: bool
    clump: int
    window: int
    tail: Tail
    order: Order
    filter: str | None
    split: Split | None
    columns: Sequence[str] | None
    transform: Callable[[pa.RecordBatch], Any] | None
    transform_threads: int | None
    transform_processes: int
    prefetch_bytes: int
    null: Null
    ragged: Ragged
    cast: Mapping[str, str] | None
    host: Host
    early: bool
    world: World | None
    worker: int
    workers: int
    progress: bool


_DEFAULTS: Final[dict[str, Any]] = {
    "seed": 0,
    "shuffle": True,
    "clump": 1,
    "window": 0,
    "tail": "drop",
    "order": 1,
    "filter": None,
    "split": None,
    "columns": None,
    "transform": None,
    "transform_threads": None,
    "transform_processes": 0,
    "prefetch_bytes": 64 << 20,
    "null": "error",
    "ragged": "error",
    "cast": None,
    "host": "off",
    "early": True,
    "world": None,
    "worker": 0,
    "workers": 1,
    "progress": False,
}
_CASTS: Final = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)
# Parameter names of other data loaders, and what to use here instead.
_OTHER_LOADERS: Final = {
    "batch_size": "global_batch_size, the rows of a step over all ranks",
    "drop_last": 'tail="drop", "keep" or "pad"',
    "epoch": "set_epoch(epoch), a method",
    "num_canonical_nodes": "nothing: any world size gives the same global batches",
    "num_splits": "nothing: any world size gives the same global batches",
    "num_workers": "num_workers of StreamingDataLoader, or transform_processes",
    "predownload": "prefetch_bytes, a bound in bytes",
    "prefetch_batches": "prefetch_bytes, a bound in bytes",
    "prefetch_factor": "prefetch_bytes, a bound in bytes",
    "read_batch_size": "prefetch_bytes, a bound in bytes; messages are as long as it allows",
    "shuffle_block_size": "window, the number of clumps whose rows are shuffled together: window * clump rows",
    "shuffle_clump_size": "clump, the number of consecutive rows that are shuffled as one block",
    "shuffle_seed": "seed",
    "split_clump_size": "clump, the number of consecutive rows that are shuffled as one block",
}


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Validates the options, fills in defaults, and converts numpy scalars to Python's.

    Raises TypeError or ValueError, naming the parameter.
    """
    for name in options:
        if name not in LoaderOptions.__annotations__:
            raise TypeError(f"{name} is no parameter of a loader{_hint(name)}")
    if "global_batch_size" not in options:
        raise TypeError("global_batch_size is missing: give the rows of a step over all ranks")
    own = {**_DEFAULTS, **options}
    own["global_batch_size"] = check_int("global_batch_size", own["global_batch_size"], 1, LIMIT)
    if not isinstance(own["seed"], LocalRandomSeed):
        own["seed"] = None if own["seed"] is None else check_int("seed", own["seed"], 0, 1 << 64)
    own["clump"] = check_int("clump", own["clump"], 1, LIMIT)
    own["window"] = check_int("window", own["window"], 0, LIMIT)
    Policy(own["null"], own["ragged"])  # raises ValueError for other values
    own["cast"] = _check_cast(own["cast"])
    if not isinstance(own["host"], str) or own["host"] not in get_args(Host):
        raise ValueError(f'host = {own["host"]!r}: want "auto", "off" or "require"')
    own["prefetch_bytes"] = check_int("prefetch_bytes", own["prefetch_bytes"], 1, 1 << 40)
    own["workers"] = check_int("workers", own["workers"], 1, LIMIT)
    own["worker"] = check_int("worker", own["worker"], 0, own["workers"], "workers")
    for name in ("shuffle", "early", "progress"):
        own[name] = check_bool(name, own[name])
    if not isinstance(own["tail"], str) or own["tail"] not in get_args(Tail):
        raise ValueError(f'tail = {own["tail"]!r}: want "drop", "keep" or "pad"')
    own["order"] = check_int("order", own["order"], 1, 3)
    if own["order"] == 2 and not own["shuffle"]:
        raise ValueError("order = 2: want shuffle = True; without it, the order has version 1 alone")
    if own["order"] == 2 and own["global_batch_size"] < LEAST_BATCH:
        raise ValueError(f"global_batch_size = {own['global_batch_size']}: want at least {LEAST_BATCH} with order = 2")
    own["filter"], own["split"] = check_selection(own["filter"], own["split"])
    own["columns"] = column_names(own["columns"])
    if own["world"] is not None and not isinstance(own["world"], World):
        raise TypeError(f"world = {own['world']!r}: want World(rank, size), or None to detect it")
    _check_transform(own)
    if own["seed"] is None:
        own["seed"] = _random_seed(own["world"] or World.detect())
    return own


def check_selection(condition: Any, split: Any) -> tuple[str | None, Split | None]:
    """Returns the filter and the split of a selection. Raises TypeError or ValueError for anything else."""
    if condition is not None and not isinstance(condition, str):
        raise TypeError(f'filter = {condition!r}: want a condition as text, such as "label >= 1", or None')
    if condition is not None and not condition.strip():
        raise ValueError(f'filter = {condition!r}: want a condition, such as "label >= 1", or None')
    if split is not None and not isinstance(split, Split):
        raise TypeError(f"split = {split!r}: want Split(of=100, start=0, stop=90), or None")
    return condition, split


def _check_cast(casts: Any) -> dict[str, str]:
    """Returns the dtypes by column. Takes names and torch.dtype."""
    if casts is None:
        return {}
    if not isinstance(casts, Mapping):
        raise TypeError(f'cast = {casts!r}: want dtypes by column, such as {{"tokens": "int64"}}, or None')
    own = {name: str(dtype).removeprefix("torch.") for name, dtype in casts.items()}
    for name, dtype in own.items():
        if dtype not in _CASTS:
            raise ValueError(f"cast[{name!r}] = {casts[name]!r}: want one of {', '.join(_CASTS)}")
    return own


def explicit_signature(function: Function) -> Function:
    """Replaces **options in the function's signature by the single parameters, for help() and notebooks."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_DEFAULTS.get(name, inspect.Parameter.empty),
            annotation=kind.removeprefix("Required[").removesuffix("]") if kind.startswith("Required") else kind,
        )
        for name, kind in inspect.get_annotations(LoaderOptions).items()
        for kind in [getattr(kind, "__forward_arg__", str(kind))]
    ]
    function.__signature__ = signature.replace(parameters=own + options)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _random_seed(world: World) -> int:
    """Draws a random seed; with several ranks, rank 0 broadcasts its seed."""
    seed = secrets.randbits(63)
    if world.size > 1:
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            raise ValueError(
                f"seed = None in a world of {world.size} ranks, which must agree on one: give a seed, or make the"
                " loader after torch.distributed.init_process_group"
            )
        shared = [seed]
        distributed.broadcast_object_list(shared, src=0)
        seed = shared[0]
    if world.rank == 0:
        _log.warning("seed = None: drew seed = %d at random; give it to repeat this order", seed)
    return LocalRandomSeed(seed) if world.size == 1 else seed


def _check_transform(own: dict[str, Any]) -> None:
    check_callable(own["transform"])
    processes = own["transform_processes"] = check_int("transform_processes", own["transform_processes"], 0)
    if own["transform_threads"] is not None:
        threads = own["transform_threads"] = check_int("transform_threads", own["transform_threads"], 0)
        if processes:
            raise ValueError(f"transform_threads = {threads} and transform_processes = {processes}: want one of them")


def others_hint(name: str) -> str:
    """What takes the place of a parameter of other data loaders; "" if nothing does."""
    if name in LoaderOptions.__annotations__:
        return f": it is a parameter of its StreamingDataset, StreamingDataset(cache, {name}=...)"
    return f"; here it is {_OTHER_LOADERS[name]}" if name in _OTHER_LOADERS else ""


def _hint(name: str) -> str:
    if hint := others_hint(name):
        return hint
    names = list(LoaderOptions.__annotations__)
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
