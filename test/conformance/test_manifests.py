# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables whose metadata contradicts itself: rows are never missing in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import forge
import pyarrow as pa
import pytest
from client import Client
from lake import Lake, Made, Selection
from pyiceberg.expressions import EqualTo
from server import Cache, Caches

FILES, ROWS = 10, 4  # of the tables below: files, and rows of each

Connect = Callable[[Cache], Client]
Private = Callable[..., Cache]


@pytest.fixture
def made(lake: Lake, request: pytest.FixtureRequest) -> Made:
    """A table of this test alone: FILES commits of ROWS rows each."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    parts = [
        pa.table({"id": range(f * ROWS, (f + 1) * ROWS), "name": [f"n{i}" for i in range(ROWS)]}, schema)
        for f in range(FILES)
    ]
    table = lake.create(
        f"manifests_{abs(hash(request.node.nodeid))}", schema, parts, properties={"format-version": "2"}
    )
    return lake.pin("manifests", table)


def refused(caches: Caches, made: Made, *flags: str) -> str:
    """What the binary says about a table that it refuses to plan."""
    done = caches.run("inspect", "--metadata", made.metadata, *flags)
    assert done.returncode == 1, f"a plan of a broken table:\n{done.stdout}{done.stderr}"
    assert "goroutine" not in done.stderr
    return done.stderr


def ids(made: Made, private: Private, connect: Connect, *flags: str) -> list[int]:
    """The ids that a cache of the table serves."""
    cache = private(["--metadata", made.metadata, *flags])
    cache.wait("Ready")
    return connect(cache).table()["id"].to_pylist()


def test_a_row_group_with_rows_where_footer_and_manifest_say_none(
    lake: Lake, caches: Caches, private: Private, connect: Connect
) -> None:
    schema = pa.schema([("id", pa.int64())])
    table = lake.create("no_rows_said", schema, pa.table({"id": range(6)}, schema), properties={"format-version": "2"})
    made = lake.pin("no_rows_said", table)
    (file,) = made.files()
    forge.set_footer_rows(file, 6, 0)
    forge.set_files(made, lambda f: f.__setitem__(4, 0))
    forge.set_summary(made, {"total-records": 0})
    said = refused(caches, made)
    assert file.rsplit("/", 1)[1] in said
    assert "0 rows" in said
    assert "6" in said


class TestACutManifestList:
    """A manifest list that lost its last blocks is still a valid Avro file."""

    @pytest.fixture
    def cut(self, made: Made) -> Made:
        forge.set_manifests(made, lambda manifests: manifests)
        snapshot = made.open().current_snapshot()
        assert snapshot is not None
        forge.cut_blocks(snapshot.manifest_list, 1)
        return made

    @pytest.mark.parametrize("where", ["", "id < 3", "id IS NULL"], ids=["all", "some", "none"])
    def test_is_refused_with_both_numbers(self, where: str, cut: Made, caches: Caches) -> None:
        said = refused(caches, cut, "--filter", where)
        for part in ("total-records=40", "36", "manifest list", "--trust-manifests", "spec.arrow"):
            assert part in said

    def test_makes_a_cache_fail_with_the_reason(self, cut: Made, private: Private) -> None:
        cache = private(["--metadata", cut.metadata])
        status = cache.wait("Failed")
        assert "total-records=40" in str(status)

    @pytest.mark.parametrize("total", ["total-records", "total-data-files"])
    def test_one_total_is_enough(self, total: str, cut: Made, caches: Caches) -> None:
        others = {"total-records", "total-data-files"} - {total}
        forge.set_summary(cut, dict.fromkeys(others))
        assert total + "=" in refused(caches, cut)

    def test_is_served_to_those_who_trust_it(self, cut: Made, private: Private, connect: Connect) -> None:
        lost = set(range(FILES * ROWS)) - set(ids(cut, private, connect, "--trust-manifests"))
        assert len(lost) == ROWS
        # with a filter the data nodes read the manifests as well
        kept = set(ids(cut, private, connect, "--trust-manifests", "--filter", "id >= 4 AND id < 100"))
        assert kept == set(range(4, FILES * ROWS)) - lost

    def test_separate_processes_trust_it_as_well(self, cut: Made, private: Private, connect: Connect) -> None:
        source = ["--metadata", cut.metadata, "--filter", "id >= 0"]
        cache = private(source, mode="cluster", env={"TRUST_MANIFESTS": "true"})
        cache.wait("Ready")
        assert connect(cache).table().num_rows == (FILES - 1) * ROWS


@pytest.mark.parametrize("where", ["", "id < 100"], ids=["all", "filtered"])
def test_a_cut_manifest(where: str, lake: Lake, caches: Caches, private: Private, connect: Connect) -> None:
    name = f"cut_manifest_{bool(where)}"
    schema = pa.schema([("id", pa.int64())])
    properties = {
        "format-version": "2",
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "2",
    }
    parts = [pa.table({"id": range(f * ROWS, (f + 1) * ROWS)}, schema) for f in range(3)]
    made = lake.pin(name, lake.create(name, schema, parts, properties=properties))
    table = made.open()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    size = forge.path_of(manifest.manifest_path).stat().st_size
    forge.cut_blocks(manifest.manifest_path, 1)
    left = forge.path_of(manifest.manifest_path).stat().st_size
    said = refused(caches, made, "--filter", where)
    assert manifest.manifest_path in said
    assert str(size) in said
    assert str(left) in said
    # a size that is right, or not known, as in lists of format v1: the number of entries says it

    def relist(manifests: list[Any]) -> list[Any]:
        for m in manifests:
            m[1] = left
        return manifests

    forge.set_manifests(made, relist)
    said = refused(caches, made, "--filter", where)
    assert "lists 2 files with 8 rows" in said
    assert "3 with 12" in said
    assert len(ids(made, private, connect, "--trust-manifests", "--filter", where)) == 2 * ROWS


def test_a_manifest_that_the_list_says_is_empty(made: Made, caches: Caches, private: Private, connect: Connect) -> None:
    def emptied(manifests: list[Any]) -> list[Any]:
        (manifest,) = [m for m in manifests if m.sequence_number == 3]
        manifest[7], manifest[10] = 0, 0  # added_files_count, added_rows_count
        return manifests

    forge.set_manifests(made, emptied)
    forge.set_summary(made, {"total-records": (FILES - 1) * ROWS, "total-data-files": FILES - 1})
    said = refused(caches, made)
    assert "lists 1 files with 4 rows" in said
    assert "0 with 0" in said


@pytest.mark.parametrize(
    "totals",
    [
        dict.fromkeys(["total-records", "total-data-files", "total-delete-files", "total-position-deletes"]),
        {"total-records": "many", "total-data-files": -1},
        {"total-files-size": 1},
    ],
    ids=["none", "no numbers", "sizes"],
)
def test_what_a_summary_does_not_count_is_not_compared(
    totals: dict[str, Any], made: Made, private: Private, connect: Connect
) -> None:
    forge.set_summary(made, totals)
    assert sorted(ids(made, private, connect)) == list(range(FILES * ROWS))


def test_totals_are_those_of_the_snapshot_whatever_is_selected(
    table: Callable[[str], Made], caches: Caches, connect: Connect
) -> None:
    made = table("by_identity")
    got = connect(caches.of(made, Selection(where="name = 'name 1'"))).table()
    assert got.num_rows == made.scan(where=EqualTo("name", "name 1")).num_rows  # pyright: ignore[reportCallIssue]
