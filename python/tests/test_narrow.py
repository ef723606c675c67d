# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Integers that travel in a shorter type than the table's: batches are the same as without, of random tables."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chance import Chance
from lake import Made
from server import Caches

from kubeflow_datacache import DataCache, Pack, Split, World, mix
from kubeflow_datacache.fetch import merge, take_feed
from kubeflow_datacache.rows.gather import Gather
from kubeflow_datacache.rows.widen import alike, widened
from test_packs import write as write_tokens

Connect = Callable[..., DataCache]
INTEGERS = [pa.int32(), pa.int64(), pa.uint32(), pa.uint64()]
SHORT = [1, 1, 2, 2, 4]  # bytes of most ranges of values


def integers(rng: random.Random, type_: pa.DataType, count: int, *, nulls: bool) -> pa.Array:
    """Values of a random range, some of them null."""
    random_ = np.random.default_rng(rng.getrandbits(32))
    bits = 8 * min(rng.choice(SHORT), type_.byte_width)
    signed = pa.types.is_signed_integer(type_)
    values = random_.integers(0, 1 << (bits - rng.randrange(3)), count, np.uint64)
    values = values.view(np.int64) - (rng.choice([0, 1, 100, 1 << (bits - 1)]) if signed else 0)
    if rng.random() < 0.2:
        values[rng.randrange(count)] = -1  # of an unsigned type, the greatest number
    array = pa.array(values.astype(type_.to_pandas_dtype()), type_)
    return pa.array(array.to_numpy(), type_, mask=random_.random(count) < 0.1) if nulls else array


def column(rng: random.Random, rows: int, *, depth: int = 0) -> pa.Array:
    """Integers, or lists of them, or something else."""
    what = rng.choice(["plain", "plain", "list", "fixed", "other"] if depth < 2 else ["plain"])
    nulls = rng.random() < 0.3
    if what == "plain":
        return integers(rng, rng.choice(INTEGERS), rows, nulls=nulls)
    if what == "other":
        other = [pa.array(np.arange(rows) / 7), pa.array([f"row {i}" for i in range(rows)]), pa.array([True] * rows)]
        return rng.choice([*other, pa.array(np.arange(rows)).cast(pa.timestamp("us"))])
    if what == "fixed":
        return pa.FixedSizeListArray.from_arrays(column(rng, 3 * rows, depth=depth + 1), 3)
    alike = rng.random() < 0.5
    ends = np.cumsum([0, *(5 if alike else rng.randrange(9) for _ in range(rows))]).astype(np.int32)
    mask = pa.array([rng.random() < 0.1 for _ in range(rows)]) if nulls else None
    return pa.ListArray.from_arrays(pa.array(ends), column(rng, int(ends[-1]) or 1, depth=depth + 1), mask=mask)


def write(rng: random.Random, folder: Path, rows: int) -> pa.Table:
    """Writes a table of a few files, whose first column counts the rows."""
    columns = {"id": pa.array(np.arange(rows))}
    columns |= {f"c{i}": column(rng, rows) for i in range(rng.randrange(2, 9))}
    table = pa.table(columns)
    folder.mkdir()
    for i, first in enumerate(range(0, rows, rows // 3)):
        pq.write_table(table.slice(first, rows // 3), folder / f"{i}.parquet", row_group_size=rng.randrange(20, rows))
    return table


@contextlib.contextmanager
def both(server: Path, source: Path, nodes: int) -> Generator[tuple[DataCache, DataCache]]:
    """A client that asks for shorter integers, and one that does not, of the same cache."""
    with (
        DataCache.local(source, program=server, progress=False, nodes=nodes) as narrow,
        DataCache(narrow.endpoint, narrow=False) as plain,
    ):
        yield narrow, plain


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether rows came in shorter types, each time that some were made wide."""
    seen: list[bool] = []

    def spy(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        seen.append(rows.schema.types != schema.types)
        return widened(rows, schema)

    monkeypatch.setattr(merge, "widened", spy)
    return seen


def equal(one: Any, other: Any) -> None:
    """Compares what two loaders return, in their number and in every batch."""
    count = 0
    for a, b in zip(one, other, strict=True):
        assert a.step == b.step
        assert a.schema.equals(b.schema, check_metadata=True)
        assert a.arrow().equals(b.arrow())
        a.arrow().validate(full=True)
        assert a.nbytes == pytest.approx(b.nbytes, rel=0.1, abs=200 * len(a))  # bitmaps and offsets of slices
        count += 1
    assert count


@pytest.mark.parametrize("nodes", [1, 3])
def test_batches_are_the_same(server: Path, tmp_path: Path, chance: Chance, asked: list[bool], nodes: int) -> None:
    for number, rng in chance.schedules(8):
        rows = rng.randrange(60, 1500)
        table = write(rng, tmp_path / str(number), rows)
        with both(server, tmp_path / str(number), nodes) as (narrow, plain):
            names = ["id", *rng.sample(table.column_names[1:], rng.randrange(len(table.column_names)))]
            options: dict[str, Any] = {
                # At least 0.64 of the rows are left by filter and split: each epoch has a step.
                "global_batch_size": rng.randrange(1, rows // 2), "seed": rng.randrange(9),
                "shuffle": rng.random() < 0.7, "clump": rng.choice([1, 1, 8]),
                "tail": rng.choice(["drop", "keep", "pad"]), "columns": rng.choice([None, names]),
                "world": World(rng.randrange(2), 2),
                "filter": rng.choice([None, f"id >= {rows // 5}"]),
                "split": rng.choice([None, Split(of=10, start=0, stop=8)]),
            }  # fmt: skip
            equal(narrow.loader(**options), plain.loader(**options))
            resumed, other = narrow.loader(**options), plain.loader(**options)
            for _, batch in zip(range(1 + rng.randrange(4)), other, strict=False):
                del batch
            resumed.load_state_dict(other.state_dict())
            other.load_state_dict(other.state_dict())
            equal(resumed, other)
            picked = [rng.randrange(rows) for _ in range(50)]
            tables = [cache.table(columns=options["columns"]) for cache in (narrow, plain)]
            got, want = (each[picked] for each in tables)
            assert got.schema.equals(want.schema, check_metadata=True)
            assert got.equals(want)
    assert sum(asked) > len(asked) / 5


def test_arrays_and_tensors_have_the_tables_types(server: Path, tmp_path: Path, asked: list[bool]) -> None:
    torch = pytest.importorskip("torch")
    tokens = (np.arange(400 * 16).reshape(400, 16) * 31 % 50_000).astype(np.int32)
    ends = pa.array(np.arange(0, 400 * 16 + 1, 16, dtype=np.int32))
    pq.write_table(
        pa.table({"tokens": pa.ListArray.from_arrays(ends, pa.array(tokens.ravel())), "label": np.arange(400) % 9}),
        tmp_path / "0.parquet",
    )
    with both(server, tmp_path, 1) as (narrow, plain):
        assert narrow.schema == plain.schema
        for batch in narrow.loader(global_batch_size=32, seed=1):
            own = batch.numpy()
            assert (own["tokens"].dtype, own["label"].dtype) == (np.int32, np.int64)
            np.testing.assert_array_equal(own["tokens"], tokens[batch.indices])
            assert batch.torch()["tokens"].dtype == torch.int32
            assert batch.torch()["label"].tolist() == (batch.indices % 9).tolist()
    assert asked
    assert all(asked)


def test_mixtures_packs_and_lengths(server: Path, tmp_path: Path, connect: Connect, asked: list[bool]) -> None:
    """Parts differ in which columns are shorter."""
    with contextlib.closing(Caches(server, tmp_path / "logs")) as caches:
        sizes = {"web": 400, "code": 90}  # ids of one part take a byte, of the other two
        running = {
            name: caches.of(Made(name, write_tokens(tmp_path / name, rows)), nodes=3) for name, rows in sizes.items()
        }
        endpoints = [each.endpoint for each in running.values()]
        narrow = [connect(endpoint) for endpoint in endpoints]
        plain = [DataCache(endpoint, narrow=False) for endpoint in endpoints]
        mixed: Any = {"global_batch_size": 40, "seed": 3, "until": "all"}
        for per in ("row", "batch"):
            loaders = (mix({"web": (a, 2), "code": (b, 1)}, per=per, **mixed) for a, b in (narrow, plain))
            equal(*loaders)
        pack: Any = Pack("input_ids", tokens=256, packs=12, window=1)
        equal(*(cache.loader(pack=pack, seed=5) for cache in (narrow[0], plain[0])))
        balanced: Any = {"balance": "input_ids", "global_batch_size": 64, "seed": 5}
        equal(*(cache.loader(**balanced) for cache in (narrow[0], plain[0])))
        equal(
            *(
                cache.loader(columns=["length(text)", "id"], global_batch_size=64, seed=1)
                for cache in (narrow[1], plain[1])
            )
        )
        for cache in plain:
            cache.close()
    assert any(asked)


def test_many_data_nodes_by_row_numbers(
    server: Path, tmp_path: Path, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take_feed, "_WALK", 1e6)
    table = pa.table({"id": np.arange(3000), "small": np.arange(3000) % 7})
    for i in range(6):
        pq.write_table(table.slice(500 * i, 500), tmp_path / f"{i}.parquet")
    with both(server, tmp_path, 4) as (narrow, plain):
        equal(*(cache.loader(global_batch_size=128, seed=2) for cache in (narrow, plain)))
    assert any(asked)


@pytest.mark.parametrize("transport", ["h2", "grpc"])
def test_old_heads_are_not_asked(peer: Any, connect: Connect, asked: list[bool], transport: Any) -> None:
    """The fake cache knows no field "narrow", as a head of an earlier release, and offers nothing."""
    cache = connect(peer.endpoint, transport=transport)
    assert sum(batch.num_rows for batch in cache.loader(global_batch_size=10, seed=1)) == 100
    assert not any(asked)


def test_parts_of_different_types_are_merged_in_the_tables() -> None:
    """One data node's stream was opened while rows were loaded, another's after that."""
    schema = pa.schema([("id", pa.int64())])
    short, whole = pa.record_batch({"id": pa.array([1, 2], pa.uint8())}), pa.record_batch({"id": pa.array([3, 4])})
    assert [part.schema for part in alike([short, whole], schema)] == [schema, schema]
    assert alike([short, short], schema)[0] is short
    rows = Gather(alike([short, whole], schema), np.array([3, 0, 2, 1])).batch()
    assert rows.column("id").to_pylist() == [2, 4, 3, 1]
