# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every public argument gets values of wrong types and sizes: an error that this raises names it, in words for users.

Whether a value that is taken makes sense is not checked here.
"""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server import Caches

from kubeflow_datacache import (
    DataCache,
    DataCacheError,
    LengthBuckets,
    Loader,
    Pack,
    Put,
    Split,
    World,
    commit,
    derive,
    mix,
    put,
    verify,
)

ROWS = 200
TABLE = pa.table({"id": range(10)})
# Words of errors that come from Go, C++, gRPC or Python itself, and were not written for users.
INTERNAL = re.compile(
    r"json:|strconv|_thread\.|pickle|cannot unmarshal|object has no attribute|operand|subscriptable"
    r"|iterable"
    r"|unexpected keyword|positional|invalid literal|format requires|expected |has no len|not callable|serializable"
)
# Arguments whose errors need not name them: each value that is refused is valid by itself.
OTHERWISE = {
    ("commit", "dataset"), ("commit", "table"), ("commit", "mode"),  # the cache has no such dataset, and no catalog
    ("from_env", "environ"),  # an empty dict is valid, but says nothing of a cache
    ("Pack", "labels"),  # "x" is a column, but none of lists
    ("Table.filter", "condition"),  # "x" is a condition, but none for a column of numbers
}  # fmt: skip


class Odd:
    """A value of no type that anything takes."""

    def __repr__(self) -> str:
        return "Odd()"


WRONG = [None, "x", "", -1, 0, 1.5, 2**70, True, [], [1], {}, Odd(), b"x", float("nan")]
Case = tuple[Callable[..., Any], dict[str, Any], list[str]]  # a call, valid arguments, and the arguments to vary


@pytest.fixture(scope="module")
def served(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataCache]:
    """A cache that takes puts."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "table").mkdir()
    tokens = pa.array([[1] * (i % 7) for i in range(ROWS)], pa.list_(pa.int32()))
    columns = {"id": range(ROWS), "text": [f"{i}" for i in range(ROWS)], "x": [i / 2 for i in range(ROWS)]}
    pq.write_table(pa.table({**columns, "tokens": tokens}), folder / "table" / "0.parquet")
    with closing(Caches(server, folder / "logs")) as caches:
        cache = caches.start(["--files", str(folder / "table"), "--puts"])
        cache.wait("Ready")
        with DataCache(cache.endpoint, retry_seconds=0) as client:
            yield client


def first(loader: Loader) -> Any:
    """The first batch."""
    with closing(loader):
        return next(iter(loader))


def names(function: Callable[..., Any], *without: str) -> list[str]:
    """The parameters of a function."""
    return [name for name in inspect.signature(function).parameters if name not in {"self", *without}]


def cases(cache: DataCache) -> dict[str, Case]:
    """The public calls."""
    numbers = itertools.count()
    packs: dict[str, Any] = {"column": "tokens", "tokens": 16, "packs": 4}
    mixed: dict[str, Any] = {"parts": {"a": (cache, 1.0), "b": (cache, 2.0)}, "global_batch_size": 8}

    def fresh(call: Callable[..., Any]) -> Callable[..., Any]:
        """A call with a name of its own, unless one is given."""
        return lambda **given: call(**{"name": f"n{next(numbers)}", **given})

    def begun() -> Put:
        return Put.begin(cache, f"n{next(numbers)}", TABLE.schema, parts=4)

    def published(**given: Any) -> Any:
        started = begun()
        return started.publish(**{"receipts": [started.send(0, lambda: [TABLE])], **given})

    def table(method: str) -> Callable[..., Any]:
        return getattr(cache.table(), method)

    def local(**given: Any) -> None:
        try:
            DataCache.local(**given, program="/nothing")
        except ValueError as error:
            if "program = '/nothing'" not in str(error):
                raise

    def own(**given: Any) -> None:
        with DataCache(**given) as another:
            len(another)

    size: dict[str, Any] = {"global_batch_size": 8}
    return {
        "loader": (lambda **given: first(cache.loader(**given)), size, [*names(Loader, "cache"), "pack", "balance"]),
        "packs": (
            lambda **given: first(cache.loader(pack=Pack(**packs), **given)), {},
            ["seed", "shuffle", "clump", "window", "filter", "split", "columns", "prefetch_bytes", "host", "world"],
        ),
        "Pack": (lambda **given: first(cache.loader(pack=Pack(**given))), packs, names(Pack)),
        "mix": (lambda **given: first(mix(**given)), mixed, names(mix)),
        "put": (fresh(put), {"cache": cache, "data": TABLE, "progress": False}, names(put)),
        "Put.begin": (fresh(Put.begin), {"cache": cache, "schema": TABLE.schema, "parts": 4}, names(Put.begin)),
        "Put.send": (
            lambda **given: begun().send(**given), {"part": 1, "batches": lambda: [TABLE]}, names(Put.send),
        ),
        "Put.send_parts": (
            lambda **given: begun().send_parts(**given), {"parts": {1: lambda: [TABLE]}}, names(Put.send_parts),
        ),
        "Put.publish": (published, {}, ["receipts"]),
        "derive": (
            fresh(derive), {"cache": cache, "fn": lambda rows: rows.select(["id"]), "parts": 2, "recipe": "x"},
            names(derive),
        ),
        "commit": (commit, {"cache": cache, "dataset": "n0", "table": "a.b"}, names(commit)),
        "DataCache": (
            own, {"endpoint": cache.endpoint, "retry_seconds": 0},
            [*names(DataCache, "credentials"), "token", "tls_roots", "tls_certificate", "tls_key", "tls_hostname"],
        ),
        "from_env": (
            DataCache.from_env, {"environ": {"DATACACHE_ENDPOINT": cache.endpoint}},
            names(DataCache.from_env, "credentials"),
        ),
        "local": (
            local, {"path": "/nothing"},
            ["path", "dataset", "shared", "progress", "retry_seconds", "listen", "http", "memory_limit"],
        ),
        "select": (lambda **given: len(cache.select(**given)), {}, ["filter", "split"]),
        "table": (lambda **given: cache.table(**given)[0], {}, ["columns", "transform"]),
        "Table.filter": (table("filter"), {}, ["condition"]),
        "Table.split": (table("split"), {}, ["split"]),
        "Table.order": (table("order"), {}, ["positions"]),
        "Table.select": (table("select"), {}, ["columns"]),
        "Table.save": (table("save"), {}, ["path"]),
        "Table.shuffle": (table("shuffle"), {"seed": 1}, ["seed", "clump", "window", "epoch"]),
        "wait": (cache.wait, {}, ["progress", "early"]),
        "resize": (cache.loader(**size).resize, {"world": World(0, 2)}, ["world", "step"]),
        "load_state_dict": (
            cache.loader(**size).load_state_dict, {"state": cache.loader(**size).state_dict()}, ["state", "allow"],
        ),
        "set_epoch": (cache.loader(**size).set_epoch, {}, ["epoch"]),
        "World": (World, {}, names(World)),
        "Split": (Split, {"of": 10, "start": 0, "stop": 5}, names(Split)),
        "LengthBuckets": (LengthBuckets, {"by": "text", "batches": 4}, names(LengthBuckets)),
        "verify": (verify, {}, ["loader"]),
    }  # fmt: skip


def test_every_argument(served: DataCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong, calls = list[str](), 0
    for name, (call, right, arguments) in cases(served).items():
        for argument, value in itertools.product(arguments, WRONG):
            calls += 1
            try:
                with warnings.catch_warnings(action="ignore"):
                    call(**{**right, argument: value})
            except (DataCacheError, TypeError, ValueError, IndexError) as error:
                said = str(error)
                named = argument in said or argument.replace("_", "-") in said or (name, argument) in OTHERWISE
                if not named or INTERNAL.search(said):
                    wrong.append(f"{name}({argument}={value!r}): {type(error).__name__}: {said[:200]}")
            except Exception as error:
                wrong.append(f"{name}({argument}={value!r}): {type(error).__name__}: {str(error)[:200]}")
    print(f"{calls} calls")
    assert not wrong, "\n".join(wrong)
