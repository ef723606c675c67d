# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a loader: their names, types, defaults and checks, for every class that takes them."""

from __future__ import annotations

import difflib
import inspect
import logging
import operator
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Required, SupportsIndex, TypedDict, TypeVar, get_args

import numpy as np
import pyarrow as pa

from kubeflow_datacache.order.epoch import Tail
from kubeflow_datacache.order.feistel import LIMIT
from kubeflow_datacache.rows.arrays import Null, Policy, Ragged
from kubeflow_datacache.world import World

_log: Final = logging.getLogger("kubeflow_datacache")
Function = TypeVar("Function", bound=Callable[..., Any])


class DrawnAlone(int):
    """A random seed that no other process knows: ranks of a larger world must not read by it."""


class LoaderOptions(TypedDict, total=False):
    """What to read, in which order, and how far ahead. Whole numbers and bools may be numpy's.

    global_batch_size: rows of a step over all ranks. Each rank gets a contiguous slice of each step; slices differ by
    at most one row, so that any world size gives the same global batches in the same order.
    seed: of the shuffle, the same on every rank. None: one drawn at random, logged, and in the state; in a world of
    several ranks rank 0 of torch.distributed draws it, and all ranks must make their loaders together.
    shuffle: whether every epoch is a new permutation of the rows.
    clump: the block size of a block shuffle: so many consecutive rows of the table form a clump, clumps are shuffled
    and rows within a clump keep their order. 1, the default, shuffles single rows. Larger clumps cost the servers
    less, but rows that are neighbours in the table are neighbours in every epoch.
    tail: "drop" leaves the last incomplete step out, "keep" gives it short, "pad" fills it up with rows from the
    epoch's begin, which Batch.valid tells apart.
    columns: names in the order wanted, None for all.
    transform: a function of an Arrow record batch; what it returns is Batch.data. If that is a record batch or a
    mapping of columns, it must have as many rows as the batch. transform_threads: how many batches it works on at once;
    0 for none beside the merging thread, None for one a CPU. transform_processes: that many processes instead, for a
    transform that holds Python's lock; they import it, so it must be defined at a module's top level. Order is kept.
    prefetch_bytes: how much is read ahead, as received, as merged and as transformed: at most this, one message (up to
    4 MiB) a data node, and the block of steps (16 MiB, at most a quarter of this, at least a step) that is just being
    merged. What a transform gives counts by what it holds, a quarter of this for all of it, or one batch if that is
    larger; fewer batches than there are threads are then in work, so give more if threads idle. The
    kernel holds what was sent and not yet read: at most as much again, and a message a data node. The process keeps up
    to twice as much freed memory for reuse (heap.Heap). More helps only where batches take unevenly long: memory that
    is used again soon is cheaper than more of it.
    null, ragged: what Batch.numpy() and torch() do with nulls that numpy can't hold, and with lists of different
    lengths: "error" raises ColumnError in the batch that has them, "arrow" leaves such columns Arrow arrays in every
    batch, null="zero" puts zeros there. See rows.arrays.Policy: a column's type never depends on its data.
    world: this rank among all ranks. None: World.detect() when an iteration begins, so that a loader may be made before
    init_process_group.
    worker, workers: read only every workers-th step, from the worker-th on, for several readers in one rank.
    progress: whether rank 0's worker 0 shows on standard error how far the cache's load and each epoch are, how fast,
    and what it waits for: tqdm's bar in a terminal or notebook where tqdm is installed, plain lines in a log.
    """

    global_batch_size: Required[int]
    seed: int | None
    shuffle: bool
    clump: int
    tail: Tail
    columns: Sequence[str] | None
    transform: Callable[[pa.RecordBatch], Any] | None
    transform_threads: int | None
    transform_processes: int
    prefetch_bytes: int
    null: Null
    ragged: Ragged
    world: World | None
    worker: int
    workers: int
    progress: bool


_DEFAULTS: Final[dict[str, Any]] = {
    "seed": 0,
    "shuffle": True,
    "clump": 1,
    "tail": "drop",
    "columns": None,
    "transform": None,
    "transform_threads": None,
    "transform_processes": 0,
    "prefetch_bytes": 64 << 20,
    "null": "error",
    "ragged": "error",
    "world": None,
    "worker": 0,
    "workers": 1,
    "progress": False,
}
# Parameters of other loaders, and what has their place here.
_ELSEWHERE: Final = {
    "batch_size": "global_batch_size, the rows of a step over all ranks",
    "drop_last": 'tail="drop", "keep" or "pad"',
    "epoch": "set_epoch(epoch), a method",
    "filter": "the filter of the cache, which is applied when the table is loaded (docs/use.md)",
    "num_canonical_nodes": "nothing: any world size gives the same global batches",
    "num_splits": "nothing: any world size gives the same global batches",
    "num_workers": "num_workers of StreamingDataLoader, or transform_processes",
    "predownload": "prefetch_bytes, a bound in bytes",
    "prefetch_batches": "prefetch_bytes, a bound in bytes",
    "prefetch_factor": "prefetch_bytes, a bound in bytes",
    "read_batch_size": "prefetch_bytes, a bound in bytes; messages are as long as it allows",
    "shuffle_block_size": "clump, the number of consecutive rows that are shuffled as one block",
    "shuffle_clump_size": "clump, the number of consecutive rows that are shuffled as one block",
    "shuffle_seed": "seed",
    "split_clump_size": "clump, the number of consecutive rows that are shuffled as one block",
}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options, defaults filled in and numpy's scalars as Python's.

    TypeError or ValueError for what can't be, in the name of the parameter.
    """
    for name in options:
        if name not in LoaderOptions.__annotations__:
            raise TypeError(f"{name} is no parameter of a loader{_instead(name)}")
    if "global_batch_size" not in options:
        raise TypeError("global_batch_size is missing: give the rows of a step over all ranks")
    own = {**_DEFAULTS, **options}
    own["global_batch_size"] = whole("global_batch_size", own["global_batch_size"], 1, LIMIT)
    if not isinstance(own["seed"], DrawnAlone):
        own["seed"] = None if own["seed"] is None else whole("seed", own["seed"], 0, 1 << 64)
    own["clump"] = whole("clump", own["clump"], 1, LIMIT)
    Policy(own["null"], own["ragged"])  # refuses other words
    own["prefetch_bytes"] = whole("prefetch_bytes", own["prefetch_bytes"], 1)
    own["workers"] = whole("workers", own["workers"], 1, LIMIT)
    own["worker"] = whole("worker", own["worker"], 0, own["workers"], "workers")
    for name in ("shuffle", "progress"):
        own[name] = _truth(name, own[name])
    if not isinstance(own["tail"], str) or own["tail"] not in get_args(Tail):
        raise ValueError(f'tail = {own["tail"]!r}: want "drop", "keep" or "pad"')
    own["columns"] = names_of(own["columns"])
    if own["world"] is not None and not isinstance(own["world"], World):
        raise TypeError(f"world = {own['world']!r}: want World(rank, size), or None to detect it")
    _check_transform(own)
    if own["seed"] is None:
        own["seed"] = _drawn(own["world"] or World.detect())
    return own


def whole(name: str, value: Any, low: int, limit: int | None = None, of: str = "") -> int:
    """A whole number in [low, limit) as an int; TypeError or ValueError in the parameter's name. of names the limit."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} = {value!r}: want a whole number, not {type(value).__name__}")
    number = operator.index(value)
    if number < low or (limit is not None and number >= limit):
        most = f" and less than {of or _power(limit)}" if limit is not None else ""
        raise ValueError(f"{name} = {number}: want at least {low}{most}")
    return number


def names_of(columns: Any) -> list[str] | None:
    """The names of columns as a list, None for all; TypeError or ValueError for what are no names."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns = {columns!r}: want a list of names, as [{columns!r}]")
    try:
        names = list(columns)
    except TypeError:
        raise TypeError(f"columns = {columns!r}: want a list of names, or None for all") from None
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"columns[{at}] = {name!r}: want the name of a column, not {type(name).__name__}")
        if name in names[:at]:
            raise ValueError(f"columns names {name!r} twice: want each column once")
    if not names:
        raise ValueError("columns is empty: want at least one name, or None for all")
    return [str(name) for name in names]


def function_of(transform: Any) -> Any:
    """The transform, which can be called, or None; TypeError for anything else."""
    if transform is not None and not callable(transform):
        raise TypeError(f"transform = {transform!r}: want a function of an Arrow record batch")
    return transform


def spelled_out(function: Function) -> Function:
    """Shows **options parameter by parameter in the function's signature, for help() and notebooks."""
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


def _drawn(world: World) -> int:
    """A random seed, the same on all ranks."""
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
    return DrawnAlone(seed) if world.size == 1 else seed


def _check_transform(own: dict[str, Any]) -> None:
    function_of(own["transform"])
    processes = own["transform_processes"] = whole("transform_processes", own["transform_processes"], 0)
    if own["transform_threads"] is not None:
        threads = own["transform_threads"] = whole("transform_threads", own["transform_threads"], 0)
        if processes:
            raise ValueError(f"transform_threads = {threads} and transform_processes = {processes}: want one of them")


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} = {value!r}: want True or False")
    return bool(value)


def _instead(name: str) -> str:
    if name in _ELSEWHERE:
        return f"; here it is {_ELSEWHERE[name]}"
    names = list(LoaderOptions.__annotations__)
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


def _power(limit: int | None) -> str:
    return f"2^{limit.bit_length() - 1}" if limit is not None and limit.bit_count() == 1 else str(limit)
