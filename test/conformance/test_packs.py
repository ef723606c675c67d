# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Requests of kind pack: what the head answers to any client, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from client import Client, command_descriptor, metadata
from lake import Made
from server import Cache, Caches, Mode

Connect = Callable[[Cache], Client]
ROWS, TOKENS = 10_001, 64
ASKED: dict[str, Any] = {
    "kind": "pack", "column": "name", "tokens": TOKENS, "packs": 128, "seed": 3, "epoch": 1, "rank": 0, "world": 1,
}  # fmt: skip


@pytest.fixture
def plain(mode: Mode, table: Callable[[str], Made], caches: Caches, connect: Connect) -> Client:
    """A client of the plain table on two nodes."""
    return connect(caches.of(table("plain"), mode=mode))


def get(client: Client, **fields: Any) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """The answer to a request, by the ticket that the head gives for it."""
    (endpoint,) = client.command(**{**ASKED, **fields}).endpoints
    assert not endpoint.locations
    (chunk,) = list(client.head.do_get(endpoint.ticket))
    return chunk.data, json.loads(chunk.app_metadata.to_pybytes())


def test_every_row_is_in_one_pack_within_the_budget(plain: Client) -> None:
    lengths = plain.table(["length(name)"]).column(0).to_pylist()
    info = plain.command(**ASKED)
    assert (info.total_records, metadata(info)["rows"]) == (-1, ROWS)
    rows, at = list[int](), (0, 0)
    while True:
        batch, about = get(plain, position=at[0], step=at[1], steps=3)
        assert batch.schema == info.schema == plain.head.get_schema(command_descriptor(**ASKED)).schema
        assert len(about["steps"]) <= 3
        begin = 0
        for step in about["steps"]:
            assert (step["position"], step["step"]) == at
            own, begin = batch.slice(begin, step["pieces"]).to_pydict(), begin + step["pieces"]
            used = dict.fromkeys(own["micro"], 0)
            for micro, row, first, length in zip(*own.values(), strict=True):
                assert (first, length) == (0, lengths[row])
                used[micro] += length
            assert max(used.values()) <= TOKENS
            assert (sum(used.values()), len(own["row"])) == (step["tokens"], step["sequences"])
            assert step["micro"] == len(used) <= 128
            rows, at = rows + own["row"], tuple(step["next"])
        if about["end"]:
            break
    assert at == (ROWS, 0)
    assert sorted(rows) == [row for row, length in enumerate(lengths) if length]
    batch, about = get(plain, position=ROWS)
    assert (batch.num_rows, about) == (0, {"steps": [], "end": True})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"position": ROWS + 1}, f"position = {ROWS + 1}: want at most {ROWS}, the number of rows"),
        ({"position": (1 << 64) - 1}, "want at most"),
        ({"step": 1}, "step = 1: want less than 1, the number of steps of the window at position 0"),
        ({"tokens": 1, "packs": 1 << 31}, "packs = 2147483648: want 1 <= packs <= 65536"),
    ],
)
def test_what_is_beyond_the_rows_is_refused(plain: Client, fields: dict[str, Any], says: str) -> None:
    ticket = fl.Ticket(json.dumps({"v": 1, **ASKED, **fields}).encode())
    with pytest.raises(pa.ArrowInvalid, match=says):
        plain.head.do_get(ticket).read_all()
    assert get(plain)[0].num_rows


def test_other_columns_and_tickets_are_refused(plain: Client) -> None:
    wrong = {"nope": r'column: no column "length\(nope\)"', "id": "want a list, a string or binary"}
    for column, says in wrong.items():
        with pytest.raises(pa.ArrowInvalid, match=says):
            plain.command(**{**ASKED, "column": column})
    says = rf"of {ROWS} rows are too long, of which row \d+ has \d+ tokens, more than tokens = 1"
    with pytest.raises(pa.ArrowInvalid, match=says):
        plain.command(**{**ASKED, "tokens": 1})
    with pytest.raises(pa.ArrowInvalid, match='a command of kind "take", want "pack"'):
        plain.head.do_get(fl.Ticket(b'{"v": 1, "kind": "take"}')).read_all()
    with pytest.raises(pa.ArrowNotImplementedError, match="connect to the location of the endpoint"):
        plain.head.do_get(plain.path(0, 1).endpoints[0].ticket).read_all()


@pytest.mark.parametrize("long", ["split", "truncate", "drop"])
def test_a_token_a_pack(plain: Client, long: str) -> None:
    """The smallest packs: as many pieces as tokens."""
    lengths = plain.table(["length(name)"]).column(0).to_pylist()
    batch, about = get(plain, tokens=1, packs=512, long=long, steps=4096)
    assert batch.num_rows == sum(step["pieces"] for step in about["steps"]) == sum(s["tokens"] for s in about["steps"])
    pieces = sorted(zip(batch["row"].to_pylist(), batch["from"].to_pylist(), strict=True))
    assert batch["length"].to_pylist() == [1] * len(pieces)
    used = {row for row, _ in pieces}
    tokens = {"split": lengths, "truncate": [min(n, 1) for n in lengths], "drop": [n * (n <= 1) for n in lengths]}[long]
    assert pieces == [(row, token) for row in sorted(used) for token in range(tokens[row])]
    assert len(pieces) == len(about["steps"]) * 512 or about["end"]
