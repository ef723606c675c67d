# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Derives a dataset from the rows of a cache once: the first trial makes the tokens, and all others read them."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kubeflow_datacache.arguments import (
    check_cache,
    check_callable,
    check_int,
    check_list,
    check_seconds,
    check_text,
    column_names,
)
from kubeflow_datacache.puts import MOST_PARTS, Published, Put

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache

_BATCH_BYTES: Final = 4 << 20  # of the rows that are given to the function at a time
_PROBE_ROWS: Final = 8  # of the cache, from which the function's schema is learnt
_LOOK_SECONDS: Final = 0.5


def derive(
    cache: DataCache,
    fn: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
    name: str,
    *,
    columns: Sequence[str] | None = None,
    parts: int = 64,
    workers: int = 4,
    parameters: Mapping[str, Any] | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    recipe: str | None = None,
    share: tuple[int, int] | None = None,
    patience: float = 30.0,
) -> Published:
    """The dataset `name` of what `fn` makes of the rows that `cache` reads, put into the same cache.

    fn: makes record batches of record batches, row by row, with the same columns each time; it runs here, in `workers`
    threads. columns: those that it gets. The rows are read and put in `parts` shards.

    If the dataset is there already, made by the same recipe from the same rows, it is returned at once, with `existed`,
    and fn is not called. If another process is making it, this one waits, and goes on with the missing parts when no
    part has come for `patience` seconds, as after a crash: finished parts are not made again.

    share: (i, n) in process i of n that make the dataset together: each makes every n-th part, and then waits for the
    others, as above. By default it is what the pods of a DataCache's spec.arrow.derive are told.

    recipe: what identifies fn. By default, its source text, the values and functions that it uses from around it,
    `parameters` (as JSON) and the content of `files`, such as a tokenizer's. An object that it uses, as `tokenizer`,
    has no value that can be compared: `parameters` must have an entry of its name that identifies it. A dataset of the
    name by another recipe is replaced.
    """
    check_cache(cache)
    check_callable(fn, "fn", required=True)
    check_text("name", name)
    check_int("parts", parts, 1, MOST_PARTS + 1)
    check_int("workers", workers, 1)
    check_seconds("patience", patience)
    columns = column_names(columns)
    if recipe is not None:
        check_text("recipe", recipe)
    if share is not None and len(check_list("share", share, "two numbers, i and n")) != 2:
        raise ValueError(f"share = {share!r}: want (i, n), process i of n")
    made_by = recipe_of(fn, parameters, files) if recipe is None else recipe
    made_by = hashlib.sha256(json.dumps([made_by, parts, columns]).encode()).hexdigest()
    source = cache.dataset.fingerprint
    asked = cache.act("put.begin", name=name, parts=parts, recipe=made_by, source=source)
    if fingerprint := asked.get("exists"):
        return Published(name=name, fingerprint=fingerprint, rows=None, existed=True)
    with contextlib.closing(cache.table(columns=columns)) as table:
        probe = _table(fn(table.__getitems__(range(min(_PROBE_ROWS, len(cache))))))
    started = Put.begin(cache, name, probe.schema, parts=parts, mode="replace", recipe=made_by, source=source)
    if started.exists is not None:
        return Published(name=name, fingerprint=started.exists, rows=None, existed=True)
    index, of = _share_of_pod() if share is None else share
    first = range(index, parts, of) if of > 1 or not started.joined else range(0)

    def make(wanted: Sequence[int]) -> None:
        there = {part["part"] for part in started.status()["parts"]}
        started.send_parts(
            {part: lambda part=part: _shard(cache, fn, columns, part, parts) for part in wanted if part not in there},
            workers=workers,
        )

    make(first)
    if len(first) < parts:
        if (published := _wait(started, name, patience)) is not None:
            return published
        make(range(parts))
    return started.publish()


def _share_of_pod() -> tuple[int, int]:
    """The number of this pod of a DataCache's spec.arrow.derive, and how many they are; (0, 1) elsewhere."""
    return int(os.environ.get("JOB_COMPLETION_INDEX", "0")), int(os.environ.get("DATACACHE_WORKERS", "1"))


def recipe_of(
    fn: Callable[..., Any], parameters: Mapping[str, Any] | None, files: Sequence[str | os.PathLike[str]]
) -> str:
    """The hash of a function's source text and of what it uses, of parameters and of files."""
    text = _identity(fn, parameters or {}, set())
    found = hashlib.sha256(json.dumps([text, parameters], sort_keys=True).encode())
    for path in files:
        found.update(hashlib.sha256(Path(path).read_bytes()).digest())
    return found.hexdigest()


def _identity(fn: Callable[..., Any], known: Mapping[str, Any], seen: set[int]) -> list[Any]:
    """The source text of a function, and what it uses: its defaults, and variables of other functions and its module.

    known: the names of variables that are identified otherwise. seen: functions that are part of the identity already.
    """
    if id(fn) in seen:
        return []
    seen.add(id(fn))
    try:
        text, around = inspect.getsource(fn), inspect.getclosurevars(fn)
    except (OSError, TypeError):
        raise ValueError(f"recipe: {fn!r} has no source text: give recipe=, a text that identifies it") from None
    defaults = {f"default {i}": value for i, value in enumerate(getattr(fn, "__defaults__", None) or ())}
    used = {**around.globals, **around.nonlocals, **defaults, **(getattr(fn, "__kwdefaults__", None) or {})}
    if inspect.ismethod(fn):
        used["self"] = fn.__self__
    what = getattr(fn, "__qualname__", repr(fn))
    return [text, *([name, _value(what, name, used[name], known, seen)] for name in sorted(used) if name not in known)]


def _value(what: str, name: str, value: Any, known: Mapping[str, Any], seen: set[int]) -> Any:
    """A value as JSON that differs if the value does."""
    if value is None or isinstance(value, bool | int | float | str):
        return [type(value).__name__, value]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [_value(what, name, each, known, seen) for each in value]]
    if isinstance(value, Mapping):
        return ["mapping", [[_value(what, name, each, known, seen) for each in pair] for pair in value.items()]]
    if isinstance(value, pa.DataType | pa.Schema | pa.Field):
        return ["arrow", str(value)]
    if inspect.ismodule(value):
        return ["module", value.__name__]
    if inspect.isfunction(value) and not _installed(value):
        return ["function", _identity(value, known, seen)]
    if inspect.isroutine(value) or inspect.isclass(value):
        return ["name", value.__module__, value.__qualname__]
    raise ValueError(
        f"recipe: {what} uses {name}, a {type(value).__name__}, whose value can't be compared with that of a later run:"
        f" give parameters={{{name!r}: what identifies it}}, or recipe="
    )


def _installed(fn: Callable[..., Any]) -> bool:
    """Whether a function is of an installed package, which its name identifies, rather than the caller's own."""
    path = inspect.getsourcefile(fn) or ""
    return "site-packages" in path or path.startswith(sysconfig.get_path("stdlib"))


def _wait(started: Put, name: str, patience: float) -> Published | None:
    """Waits for another process to publish; None if all parts are there, or no part has come for so long."""
    seen, since = -1, time.monotonic()
    while True:
        status = started.status()
        if reference := status.get("dataset"):
            return Published(name=name, fingerprint=reference.partition("@")[2], rows=None, existed=True)
        if (parts := len(status["parts"])) != seen:
            seen, since = parts, time.monotonic()
        if parts == started.parts or time.monotonic() - since > patience:
            return None
        time.sleep(min(_LOOK_SECONDS, patience))


def _shard(
    cache: DataCache, fn: Callable[..., Any], columns: Sequence[str] | None, part: int, parts: int
) -> Iterator[pa.Table]:
    """What the function makes of a shard of the rows."""
    rows = len(cache)
    end, each = rows * (part + 1) // parts, max(1, round(_BATCH_BYTES / cache.described.row_bytes))
    with contextlib.closing(cache.table(columns=columns)) as table:
        for first in range(rows * part // parts, end, each):
            yield _table(fn(table.__getitems__(range(first, min(first + each, end)))))


def _table(made: Any) -> pa.Table:
    if isinstance(made, pa.RecordBatch):
        return pa.Table.from_batches([made])
    if not isinstance(made, pa.Table):
        raise TypeError(f"fn returned {type(made).__name__}: want a record batch or a table")
    return made
