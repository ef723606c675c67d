# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Putting datasets into a real cache, and reading them with loaders."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.deadline import limit
from server import Caches

from kubeflow_datacache import (
    ColumnError,
    DataCache,
    DatasetChangedError,
    Put,
    RefusedError,
    UnreachableError,
    derive,
    put,
)
from kubeflow_datacache.derive import recipe_of
from kubeflow_datacache.puts import parts_of, plain_schema

ROWS = 10_000


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Iterator[DataCache]:
    """A cache of two data nodes without a table."""
    program: Path = pytestconfig.getoption("--server")  # pyright: ignore[reportAssignmentType]
    with DataCache.local(puts=True, nodes=2, program=program, progress=False, memory_limit="1Gi") as one:
        one.retry_seconds = limit()
        yield one


def table(rows: int = ROWS, first: int = 0) -> pa.Table:
    """A table of some types."""
    ids = np.arange(first, first + rows)
    return pa.table(
        {
            "id": ids,
            "tokens": pa.array([[int(i)] * int(i % 4) for i in ids], pa.list_(pa.int32())),
            "text": pa.array([None if i % 9 == 0 else f"{i}" for i in ids], pa.string()),
        }
    )


def named(cache: DataCache, name: str) -> DataCache:
    """The same cache, reading a dataset."""
    return DataCache(cache.endpoint, dataset=name, retry_seconds=limit())


def test_epochs_of_a_dataset_resume_and_survive_another_put(cache: DataCache) -> None:
    put(cache, "a", table(), parts=7, progress=False)
    with named(cache, "a") as one:
        assert one.get_flight_info({"kind": "take"}).narrow, "integers travel in few bytes, as a table's"
        loader = one.loader(global_batch_size=512, seed=3, tail="keep", columns=["id"])
        seen: list[int] = []
        for step, batch in enumerate(loader):
            seen.extend(batch.arrow()["id"].to_pylist())
            if step == 4:
                break
        state = loader.state_dict()
        assert one.select(filter="id < 100 AND text IS NOT NULL").dataset.rows == 88
    cache.act("put.drop", dataset="a")
    # the same rows, put again in other batches, continue the checkpoint
    again = put(cache, "b", iter(table().to_batches(max_chunksize=77)), parts=7, progress=False)
    with named(cache, again.reference) as two:
        loader = two.loader(global_batch_size=512, seed=3, tail="keep", columns=["id"])
        loader.load_state_dict(state)
        for batch in loader:
            seen.extend(batch.arrow()["id"].to_pylist())
    assert sorted(seen) == list(range(ROWS))


def test_a_reader_keeps_its_version(cache: DataCache) -> None:
    put(cache, "a", table(100), progress=False)
    with named(cache, "a") as old:
        assert len(old) == 100
        put(cache, "a", table(50), mode="replace", progress=False)
        with named(cache, "a") as new:
            assert len(new) == 50
        loader = old.loader(global_batch_size=10)
        assert sum(batch.arrow().num_rows for batch in loader) == 100
        cache.act("put.drop", dataset="a")
        with pytest.raises(DatasetChangedError, match="no dataset"):
            old.get_flight_info({"kind": "take"})


def test_parts_from_several_threads_with_a_failure(cache: DataCache) -> None:
    whole = table()
    started = Put.begin(cache, "a", whole.schema, parts=10)
    other = pickle.loads(pickle.dumps(started))
    failed: set[int] = set()

    def part(number: int) -> str:
        def batches() -> Iterator[pa.RecordBatch]:
            for batch in whole.slice(1000 * number, 1000).to_batches(max_chunksize=100):
                yield batch
                if number == 3 and number not in failed:
                    failed.add(number)
                    raise OSError("the disk is slow today")

        own = started if number % 2 else other
        try:
            return own.send(number, batches)
        except OSError:
            return own.send(number, batches, attempt=2)

    with ThreadPoolExecutor(4) as pool:
        receipts = list(pool.map(part, range(10)))
    assert failed == {3}, "its stream was cut off, and it was sent again"
    published = started.publish(receipts[::-1])
    assert published == other.publish(receipts)
    with named(cache, "a") as one:
        assert one.head(ROWS).equals(whole.combine_chunks().to_batches()[0])


def test_many_parts(cache: DataCache) -> None:
    started = Put.begin(cache, "a", table(1).schema, parts=2000)
    published = started.send_all({i: (lambda i=i: [table(1, i)]) for i in range(1, 2000)}, progress=False)
    with named(cache, "a") as one:
        assert published.rows == len(one) == 1999
        assert one.head(2).to_pydict()["id"] == [1, 2]
    assert [part["part"] for part in started.status()["parts"]] == list(range(1, 2000)), "in two pages"


def test_nothing_is_left_of_a_put_that_fails(cache: DataCache) -> None:
    mixed = [table(10), pa.table({"id": [1]})]
    with pytest.raises(TypeError, match="want a table"):
        put(cache, "a", 7)
    with pytest.raises(pa.ArrowInvalid):
        put(cache, "a", mixed, progress=False)
    started = Put.begin(cache, "b", table(1).schema, parts=1)
    with pytest.raises(ColumnError, match=r"put part 0 of 'b': columns: .*tokens"):
        started.send(0, lambda: [pa.table({"id": [1]})])
    wrong = table(1).set_column(1, "tokens", pa.array(["x"]))
    with pytest.raises(ColumnError, match="put part 0 of 'b': column 'tokens': string can't be put as list<"):
        started.send(0, lambda: [wrong])
    with pytest.raises(RefusedError, match="union"):
        put(cache, "c", pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}))
    started.abort()
    with pytest.raises(RefusedError, match="no put"):
        started.status()
    assert cache.status().get("datasets") is None


def test_no_memory(pytestconfig: pytest.Config) -> None:
    program: Path = pytestconfig.getoption("--server")  # pyright: ignore[reportAssignmentType]
    with DataCache.local(puts=True, program=program, progress=False, memory_limit="64Mi") as small:
        small.retry_seconds = 1.0
        big = pa.table({"x": np.random.default_rng(1).integers(1 << 62, size=10_000_000)})
        with pytest.raises(UnreachableError, match="bytes: 80000000"):
            put(small, "a", big, progress=False)
        started = Put.begin(small, "a", big.schema, parts=1)
        with pytest.raises(UnreachableError, match="memory limit reached: needed"):
            started.send(0, lambda: [big])
        started.abort()
        small.retry_seconds = limit()  # the cache frees the memory a little later
        put(small, "a", big.slice(0, 100_000), progress=False)


def test_the_limit_of_puts(server: Path, tmp_path: Path) -> None:
    caches = Caches(server, tmp_path)
    try:
        cache = caches.start(["--puts"], nodes=1, env={"PUT_LIMIT": "40Mi", "PUT_KEEP": "memory"})
        cache.wait("Ready")
        with DataCache(cache.endpoint, retry_seconds=1.0) as client:
            big = pa.table({"x": np.random.default_rng(1).integers(1 << 62, size=6_000_000)})
            with pytest.raises(UnreachableError, match=r"bytes: 48000000.*higher --put-limit"):
                put(client, "a", big, progress=False)
            started = Put.begin(client, "a", big.schema, parts=1)
            with pytest.raises(UnreachableError, match=r"needed .* used .* of 41943040 bytes .* raise --put-limit"):
                started.send(0, lambda: [big])
            started.abort()
            client.retry_seconds = limit()
            put(client, "a", big.slice(0, 2_000_000), progress=False)
        cache.stop()
        other = caches.run("local", "--puts", "--listen", "127.0.0.1:0", "--http", "", env={"PUT_KEEP": "paper"})
        assert other.returncode == 1
        assert 'put-keep: "paper"' in other.stderr
    finally:
        caches.close()


def test_plain_types() -> None:
    schema = pa.schema(
        [
            ("d", pa.dictionary(pa.int32(), pa.string())),
            ("v", pa.string_view()),
            ("l", pa.list_(pa.dictionary(pa.int8(), pa.large_binary()))),
            ("s", pa.struct([("a", pa.binary_view())])),
        ],
        {b"pandas": b"{}", b"huggingface": b"x"},
    )
    assert plain_schema(schema) == pa.schema(
        [
            ("d", pa.string()),
            ("v", pa.large_string()),
            ("l", pa.list_(pa.large_binary())),
            ("s", pa.struct([("a", pa.large_binary())])),
        ]
    )
    assert plain_schema(schema).metadata == {b"huggingface": b"x"}
    assert parts_of(table(10)) == 1
    assert parts_of(pa.table({"x": np.zeros(50_000_000)})) == 6


def test_dictionaries_are_put_as_values(cache: DataCache) -> None:
    plain = table(100)
    encoded = plain.set_column(2, "text", plain["text"].dictionary_encode())
    one, two = (put(cache, name, rows, progress=False) for name, rows in (("a", plain), ("b", encoded)))
    assert one.fingerprint == two.fingerprint


class Tokens:
    """Counts the rows that it makes tokens of, and fails at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.rows, self.fails_at = 0, fails_at

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """The ids, and so many tokens."""
        ids = batch["id"].to_pylist()
        if self.fails_at in ids and len(ids) > 8:  # not in the first few rows, from which the schema is learnt
            raise ValueError("no token for it")
        self.rows += len(ids)
        return pa.table({"id": ids, "tokens": pa.array([[i] * (i % 3) for i in ids], pa.list_(pa.int32()))})


def test_a_dataset_is_derived_once(cache: DataCache) -> None:
    put(cache, "text", table(), parts=3, progress=False)
    with named(cache, "text") as rows:
        first = Tokens(fails_at=9_000)
        with pytest.raises(ValueError, match="no token"):
            derive(rows, first, "tok", columns=["id"], parts=10, workers=1, recipe="t")
        assert 9_000 <= first.rows < ROWS
        second = Tokens()
        made = derive(rows, second, "tok", columns=["id"], parts=10, recipe="t", patience=0.1)
        assert second.rows == 1_000 + 8, "nine parts of ten were there, and eight rows tell the schema"
        third = Tokens()
        again = derive(rows, third, "tok", columns=["id"], parts=10, recipe="t")
        assert (again.existed, again.fingerprint, third.rows) == (True, made.fingerprint, 0)
        with named(cache, "tok") as derived:
            assert derived.head(ROWS)["id"].to_pylist() == list(range(ROWS))
        other = derive(rows, Tokens(), "tok", columns=["id"], parts=5, recipe="t")
        assert not other.existed, "other parts are another recipe"


def test_of_two_at_once_one_works(cache: DataCache) -> None:
    put(cache, "text", table(), parts=3, progress=False)
    with named(cache, "text") as rows, ThreadPoolExecutor(3) as pool:
        workers = [Tokens() for _ in range(3)]
        made = list(pool.map(lambda fn: derive(rows, fn, "tok", columns=["id"], parts=10, recipe="t"), workers))
        assert len({one.fingerprint for one in made}) == 1
        assert ROWS <= sum(fn.rows for fn in workers) <= ROWS + 3 * 8  # eight rows tell each of them the schema
        with named(cache, "tok") as derived:
            assert len(derived) == ROWS


def test_processes_share_the_work(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cache, "text", table(), parts=3, progress=False)
    with named(cache, "text") as rows, ThreadPoolExecutor(3) as pool:
        workers = [Tokens() for _ in range(3)]
        running = [
            pool.submit(derive, rows, fn, "tok", columns=["id"], parts=10, recipe="t", share=(i, 3))
            for i, fn in enumerate(workers)
        ]
        made = [each.result() for each in running]
        assert len({one.fingerprint for one in made}) == 1
        assert sorted(fn.rows for fn in workers) == [3_008, 3_008, 4_008], (
            "every third part, and eight rows for the schema"
        )
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
        monkeypatch.setenv("DATACACHE_WORKERS", "2")
        alone = Tokens()
        derive(rows, alone, "tok", columns=["id"], parts=4, recipe="t", patience=0.1)
        assert alone.rows == ROWS + 8, "the other one is gone, and its parts are made too"
        with named(cache, "tok") as derived:
            assert derived.head(ROWS)["id"].to_pylist() == list(range(ROWS))


LENGTH = 3


def halved(value: int) -> int:
    """Is used by functions that are derived."""
    return value // 2


def longer(value: int) -> int:
    """Is used by functions that are derived."""
    return value * 2


def test_a_recipe_has_what_the_function_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(length: Any, size: Any, default: int = 1) -> Any:
        def fn(batch: pa.RecordBatch, times: int = default) -> pa.RecordBatch:
            assert size(length) * LENGTH * times
            return batch

        return fn

    first = recipe_of(made(4, halved), None, [])
    assert recipe_of(made(4, halved), None, []) == first
    others = [made(5, halved), made(4, longer), made(4, halved, default=2), made(4.0, halved), made("4", halved)]
    assert len({first, *(recipe_of(fn, None, []) for fn in others)}) == 1 + len(others)
    monkeypatch.setitem(globals(), "LENGTH", 5)
    assert recipe_of(made(4, halved), None, []) != first
    with pytest.raises(ValueError, match=r"uses length, a object, .*give parameters=\{'length': what identifies it\}"):
        recipe_of(made(object(), halved), None, [])
    known = [recipe_of(made(object(), halved), {"length": name}, []) for name in "aab"]
    assert known[0] == known[1] != known[2]
    with pytest.raises(ValueError, match="no source text"):
        recipe_of(Tokens(), None, [])
    with pytest.raises(ValueError, match="uses self, a Tokens"):
        recipe_of(Tokens().__call__, None, [])
