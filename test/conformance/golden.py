# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The golden files of the wire contract: the meaning of each descriptor and the content of each answer, as JSON.

'python golden.py write' writes them. The Python tests compare the server with them, the Go tests their parser and
planner. wire_descriptors is written from the contract by hand; wire_answers is computed by the oracle; wire_metadata
shows the JSON in answers, endpoints and batches; wire_puts has the pages of put.status.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from pathlib import Path
from typing import Any

import order

FOLDER = Path(__file__).parents[1] / "golden"

#: The dataset that the golden files speak of: the tables "nine_rows" and "nine_split".
COLUMNS = ["id", "small", "price", "ratio", "flag", "name", "day", "seen"]
ROWS = 9

Case = dict[str, Any]

_SHARD: dict[str, Any] = {"v": 1, "kind": "shard", "index": 3, "total": 8}
_MIX: dict[str, Any] = {
    "v": 1, "kind": "mix", "part": 1, "parts": [{"rows": 50, "weights": [7, 1]}, {"rows": 9, "weights": [3, 9]}],
    "phases": [40], "unit": "row", "length": 120, "seed": 7, "epoch": 2, "clump": 1, "global_batch": 8, "tail": "keep",
    "rank": 1, "world": 3,
}  # fmt: skip
_EPOCH: dict[str, Any] = {
    "v": 1, "kind": "epoch", "seed": 7, "epoch": 2, "shuffle": True, "clump": 1, "global_batch": 4, "tail": "keep",
    "rank": 1, "world": 3, "worker": 0, "workers": 1, "start_step": 0,
}  # fmt: skip


def path(name: str, *elements: str, ok: tuple[int, int] | None = None, says: str = "") -> Case:
    """A PATH descriptor: rejected with a message that contains `says`, or valid as share ok[0] of ok[1]."""
    want: Case = {"code": "INVALID_ARGUMENT", "says": says}
    if ok:
        want = {"code": "OK", "request": {"kind": "shard", "index": ok[0], "total": ok[1], "columns": None}}
    return {"name": name, "path": list(elements), "want": want}


def good(name: str, base: dict[str, Any], **changes: Any) -> Case:
    """A valid CMD descriptor; the parsed request has its fields, with defaults filled in."""
    body = {**base, **changes}
    request = {key: value for key, value in body.items() if key != "v"}
    return {"name": name, "command": body, "want": {"code": "OK", "request": {"columns": None, **request}}}


def bad(name: str, says: str, base: dict[str, Any], *without: str, **changes: Any) -> Case:
    """A CMD descriptor that is rejected with a message that contains `says`."""
    body = {key: value for key, value in {**base, **changes}.items() if key not in without}
    return {"name": name, "command": body, "want": {"code": "INVALID_ARGUMENT", "says": says}}


def raw(name: str, body: bytes, says: str) -> Case:
    """A CMD descriptor whose bytes are not a valid JSON object."""
    return {"name": name, "base64": base64.b64encode(body).decode(), "want": {"code": "INVALID_ARGUMENT", "says": says}}


def descriptors() -> list[Case]:
    """All kinds of valid descriptors, and all ways in which one can be invalid."""
    big = 2**63
    return [
        path("one of one", "0", "1", ok=(0, 1)),
        path("the last share", "7", "8", ok=(7, 8)),
        path("more shares than rows", "99", "1000", ok=(99, 1000)),
        path("the largest total", str(big - 2), str(big - 1), ok=(big - 2, big - 1)),
        path("leading zeros are decimal too", "007", "010", ok=(7, 10)),
        path("nothing", says="path"),
        path("one element", "0", says="path"),
        path("three elements", "0", "1", "2", says="path"),
        path("empty elements", "", "", says="index"),
        path("letters", "x", "y", says="index"),
        path("letters as total", "0", "y", says="total"),
        path("a sign", "+0", "1", says="index"),
        path("a negative index", "-1", "2", says="index"),
        path("a negative total", "0", "-4", says="total"),
        path("a space", " 0", "1", says="index"),
        path("hexadecimal", "0x1", "8", says="index"),
        path("an underscore", "1_0", "100", says="index"),
        path("a fraction", "0.0", "1", says="index"),
        path("other digits", "\u0661", "8", says="index"),
        path("no shares", "0", "0", says="total"),
        path("index is total", "3", "3", says="index"),
        path("index past total", "5", "3", says="index"),
        path("total of 2^63", "0", str(big), says="total"),
        path("total far too large", "0", "9" * 40, says="total"),
        path("a kilobyte of digits", "1" * 1000, "1", says="index"),
        good("shard", _SHARD),
        good("shard with columns", _SHARD, columns=["name", "id"]),
        good("shard past the rows", _SHARD, index=4, total=2**62),
        good("epoch", _EPOCH),
        good("epoch, not shuffled", _EPOCH, shuffle=False),
        good("epoch, largest numbers", _EPOCH, seed=2**64 - 1, epoch=2**64 - 1),
        good("epoch, drop, clumps", _EPOCH, tail="drop", clump=3),
        good("epoch, pad, worker, later start", _EPOCH, tail="pad", workers=4, worker=3, start_step=2),
        good("epoch with columns", _EPOCH, columns=["day"]),
        good("take", {"v": 1, "kind": "take"}),
        good("take with columns", {"v": 1, "kind": "take"}, columns=["flag"]),
        raw("no bytes", b"", "JSON"),
        raw("no JSON", b"nonsense", "JSON"),
        raw("not UTF-8", b"\xff\xfe{}", "JSON"),
        raw("half an object", b'{"v": 1, "kind": "shard", "ind', "JSON"),
        raw("an array", b"[1]", "JSON"),
        raw("null", b"null", "v"),
        raw("two objects", json.dumps(_SHARD).encode() * 2, "JSON"),
        raw("something behind the object", json.dumps(_SHARD).encode() + b" x", "JSON"),
        raw("another case of a field", json.dumps(_SHARD).replace("index", "Index").encode(), "Index"),
        raw("over 64 KiB", json.dumps(_SHARD).encode() + b" " * 65536, "bytes"),
        bad("no fields", "v", {}),
        bad("no version", "v", _SHARD, "v"),
        bad("another version", "v", _SHARD, v=99),
        bad("version as text", "v", _SHARD, v="1"),
        bad("no kind", "kind", _SHARD, "kind"),
        bad("another kind", "nope", _SHARD, kind="nope"),
        bad("a field that is not known", "surprise", _SHARD, surprise=1),
        bad("a field of another kind", "seed", _SHARD, seed=1),
        bad("shard without index", "index", _SHARD, "index"),
        bad("shard without total", "total", _SHARD, "total"),
        bad("shard, index is total", "index", _SHARD, index=8),
        bad("shard, negative index", "index", _SHARD, index=-1),
        bad("shard, fraction", "index", _SHARD, index=0.5),
        bad("shard, text", "index", _SHARD, index="3"),
        bad("shard, total 0", "total", _SHARD, total=0),
        bad("shard, total of 2^63", "total", _SHARD, total=big),
        bad("shard, unknown column", "no such column", _SHARD, columns=["id", "no such column"]),
        bad("shard, column twice", "id", _SHARD, columns=["id", "id"]),
        bad("shard, no columns", "columns", _SHARD, columns=[]),
        bad("shard, columns as text", "columns", _SHARD, columns="id"),
        bad("shard, column in another case", "ID", _SHARD, columns=["ID"]),
        bad("take, unknown column", "nope", {"v": 1, "kind": "take"}, columns=["nope"]),
        bad("take with an index", "index", {"v": 1, "kind": "take"}, index=0),
        *[
            bad(f"epoch without {f}", f, _EPOCH, f)
            for f in ("seed", "epoch", "shuffle", "global_batch", "tail", "rank", "world")
        ],
        bad("epoch, clump 0", "clump", _EPOCH, clump=0),
        bad("epoch, global batch 0", "global_batch", _EPOCH, global_batch=0),
        bad("epoch, tail of another kind", "tail", _EPOCH, tail="wrap"),
        bad("epoch, rank is world", "rank", _EPOCH, rank=3),
        bad("epoch, world 0", "world", _EPOCH, rank=0, world=0),
        bad("epoch, worker is workers", "worker", _EPOCH, worker=1),
        bad("epoch, workers 0", "workers", _EPOCH, workers=0),
        bad("epoch, seed of 2^64", "seed", _EPOCH, seed=2**64),
        bad("epoch, negative start", "start_step", _EPOCH, start_step=-1),
        bad("epoch, shuffle as number", "shuffle", _EPOCH, shuffle=1),
        bad("epoch, unknown column", "nope", _EPOCH, columns=["nope"]),
        good("epoch, order 1", _EPOCH, order=1),
        good("epoch in lanes", _EPOCH, order=2, global_batch=64),
        bad("epoch in lanes, a small batch", "global_batch = 63", _EPOCH, order=2, global_batch=63),
        bad("epoch in lanes, not shuffled", "order = 2", _EPOCH, order=2, global_batch=64, shuffle=False),
        bad("epoch, order 3", "order = 3", _EPOCH, order=3),
        bad("epoch, order 0", "order = 0", _EPOCH, order=0),
        bad("epoch, order as text", "order", _EPOCH, order="2"),
        bad("shard in lanes", "order", _SHARD, order=2),
        bad("mix in lanes", "order", _MIX, order=2),
        good("epoch with windows", _EPOCH, clump=3, window=2),
        good("epoch with windows, lanes", _EPOCH, window=2**62 - 1, order=2, global_batch=64),
        bad("epoch, window of 2^62", "window = 4611686018427387904", _EPOCH, window=2**62),
        bad("epoch, negative window", "window", _EPOCH, window=-1),
        *[good(f"{c['kind']}, early", c, early=True) for c in (_SHARD, _EPOCH, {"v": 1, "kind": "take"}, _MIX)],
        bad("shard, early as text", "early", _SHARD, early="yes"),
        bad("shard with windows", "window", _SHARD, window=2),
        good("mix with windows", _MIX, window=2),
        *jobs(),
        *mixes(),
        *splits(),
    ]


def jobs() -> list[Case]:
    """Descriptors of every kind that name the job that reads, and invalid names."""
    return [
        *[good(f"{c['kind']} for a job", c, job="trial-7") for c in (_SHARD, _EPOCH, {"v": 1, "kind": "take"})],
        good("job of 63 characters", _SHARD, job="a" * 63),
        good("job is an address", _SHARD, job="2001:db8::1"),
        bad("job of 64 characters", "job", _SHARD, job="a" * 64),
        bad("job without a name", "job", _SHARD, job=""),
        bad("job with a line break", "job", _SHARD, job="a\n"),
        bad("job in letters beyond ASCII", "job", _SHARD, job="\u00e4"),
        bad("job as number", "job", _SHARD, job=7),
        *[
            good(f"{base['kind']}, narrow", base, narrow=True)
            for base in (_SHARD, _EPOCH, _MIX, {"v": 1, "kind": "take"})
        ],
        bad("narrow as text", "narrow: string does not fit, want true or false", _SHARD, narrow="yes"),
    ]


def splits() -> list[Case]:
    """Valid and invalid filters and splits."""
    split: dict[str, Any] = {"seed": 1, "of": 100, "from": 0, "to": 90}

    def refused(name: str, says: str, *without: str, **changes: Any) -> Case:
        fields = {key: value for key, value in {**split, **changes}.items() if key not in without}
        return bad(f"split, {name}", says, _EPOCH, split=fields)

    return [
        good("shard with a filter", _SHARD, filter="id >= 0"),
        good("epoch with a blank filter", _EPOCH, filter=" \n"),
        good("epoch with a split", _EPOCH, split=split),
        good("epoch with filter and split", _EPOCH, filter="id IN (1, 2, 3)", split={**split, "shuffle": False}),
        good("take with an empty split", {"v": 1, "kind": "take"}, split={**split, "to": 0}),
        good("split, largest numbers", _EPOCH,
             split={"seed": 2**64 - 1, "of": 2**62 - 1, "from": 2**62 - 1, "to": 2**62 - 1}),
        bad("a filter as number", "filter: number does not fit, want a string", _SHARD, filter=1),
        bad("a split as list", "split: array does not fit, want an object", _SHARD, split=[1]),
        *[refused(f"without {f}", f"split.{f}: missing", f) for f in split],
        refused("of 0", "split.of = 0: want 1 <= of < 2^62", of=0, to=0),
        refused("of 2^62", "split.of = 4611686018427387904", of=2**62),
        refused("to past of", "split.to = 101: want from <= to <= of = 100", to=101),
        refused("from past to", "split.from = 91: want 0 <= from <= to = 90", **{"from": 91}),
        refused("a negative seed", "split.seed: -1 does not fit", seed=-1),
        refused("a fraction", "split.to: 0.5 does not fit", to=0.5),
        refused("null", "split.of: null does not fit", of=None),
        refused("shuffle as number", "split.shuffle: 1 does not fit, want true or false", shuffle=1),
        refused("another field", '"part" is no field of a split', part=1),
        refused("a field in another case", '"Seed" is no field of a split', Seed=1),
    ]  # fmt: skip


def mixes() -> list[Case]:
    """Valid and invalid descriptors of mixtures; the second part is the dataset."""
    one, nine = {"rows": 50, "weights": [1]}, {"rows": 9, "weights": [1]}
    batches: dict[str, Any] = {"unit": "batch", "phases": [320], "length": 160}
    return [
        good("mix", _MIX),
        good("mix, all fields", _MIX, shuffle=False, worker=1, workers=2, start_step=3, clump=2, columns=["id"]),
        good("mix, one part, no phases", _MIX, part=0, parts=[nine], phases=[], length=0),
        good("mix, a part that begins later", _MIX,
             parts=[{"rows": 50, "weights": [10, 1]}, {**nine, "weights": [0, 9]}]),
        good("mix, by batch", _MIX, **batches),
        *[
            bad(f"mix without {f}", f, _MIX, f)
            for f in ("part", "parts", "unit", "length", "seed", "epoch", "global_batch", "tail", "rank", "world")
        ],
        bad("mix, no parts", "parts: 0, want 1 to 256", _MIX, parts=[]),
        bad("mix, too many parts", "parts: 257, want 1 to 256", _MIX, parts=[one] * 257, phases=[]),
        bad("mix, part is the number of parts", "part = 2: want 0 <= part < 2", _MIX, part=2),
        bad("mix, a negative part", "part", _MIX, part=-1),
        bad("mix, parts as object", "parts: object does not fit, want a list", _MIX, parts={}),
        bad("mix, a part as number", "parts", _MIX, parts=[1, 2]),
        bad("mix, a part without rows", "parts[0]: rows: missing", _MIX, parts=[{"weights": [1, 1]}, nine]),
        bad("mix, a part with another field", 'parts[1]: "name" is no field', _MIX, parts=[one, {**nine, "name": "a"}]),
        bad("mix, an empty part", "parts[0].rows = 0: want 1 <= rows", _MIX,
            parts=[{**one, "rows": 0}, nine], phases=[]),
        bad("mix, a negative weight", "parts[1]: weights: [-1] does not fit", _MIX,
            parts=[one, {**nine, "weights": [-1]}]),
        bad("mix, weights of one phase", "parts[0].weights: 1, want 2", _MIX, parts=[one, nine]),
        bad("mix, no weight", "parts[1].weights: all are 0", _MIX, parts=[one, {**nine, "weights": [0]}], phases=[]),
        bad("mix, a phase without weights", "weights of phase 1: their sum is 0", _MIX,
            parts=[{**one, "weights": [5, 0]}, {**nine, "weights": [3, 0]}]),
        bad("mix, weights past 2^62", "their sum is 2^62 or more", _MIX,
            parts=[{**one, "weights": [2**61]}, {**nine, "weights": [2**61]}], phases=[]),
        bad("mix, a phase of part of a block", "phases[0] = 44: want a multiple of 10, the sum of the weights", _MIX,
            phases=[44]),
        bad("mix, an empty phase", "phases[0] = 0: want a multiple of 10", _MIX, phases=[0]),
        bad("mix, a phase of part of a block of batches", "phases[0] = 40: want a multiple of 80", _MIX,
            **{**batches, "phases": [40]}),
        bad("mix, too many phases", "phases: 64, want at most 63", _MIX, phases=[10] * 64),
        bad("mix, length no multiple of batches", "length = 161: want a multiple of global_batch = 8", _MIX,
            **{**batches, "length": 161}),
        bad("mix, length of 2^62", "length = 4611686018427387904", _MIX, length=2**62),
        bad("mix, an epoch too far", "epoch = 38430716820228233: want (epoch + 1) * length <= 2^62", _MIX,
            epoch=2**62 // 120 + 1),
        bad("mix, another unit", 'unit = "step": want "row" or "batch"', _MIX, unit="step"),
        bad("mix, clump 0", "clump", _MIX, clump=0),
        bad("mix, rank is world", "rank", _MIX, rank=3),
        bad("mix, unknown column", "nope", _MIX, columns=["nope"]),
        {"name": "mix, rows of another table", "command": {**_MIX, "part": 0},
         "want": {"code": "FAILED_PRECONDITION", "says": "parts[0].rows = 50: this cache has 9 rows"}},
    ]  # fmt: skip


def answers() -> list[Case]:
    """The head's answers for nine rows on nodes with given ranges: which rows come from which node, in which order."""
    layouts = [[[0, 9]], [[0, 4], [4, 9]], [[0, 0], [0, 9]], [[0, 2], [2, 2], [2, 9]]]
    requests: list[Case] = [
        {"kind": "shard", "index": i, "total": t} for t in (1, 2, 8, 20) for i in {0, t // 2, t - 1}
    ]
    requests += [
        {**{k: v for k, v in _EPOCH.items() if k != "v"}, **changes}
        for changes in (
            {}, {"rank": 0}, {"tail": "drop", "global_batch": 5}, {"tail": "pad", "rank": 2},
            {"clump": 2, "world": 1, "rank": 0}, {"shuffle": False, "rank": 2}, {"world": 8, "rank": 7},
            {"start_step": 2}, {"start_step": 99}, {"workers": 2, "worker": 1},
            {"order": 2, "global_batch": 64}, {"order": 2, "global_batch": 70, "tail": "pad", "clump": 2},
            {"clump": 2, "window": 2}, {"clump": 2, "window": 3, "order": 2, "global_batch": 64},
        )
    ]  # fmt: skip
    requests += [
        {**{k: v for k, v in _MIX.items() if k != "v"}, **changes}
        for changes in (
            {}, {"rank": 0, "epoch": 0}, {"tail": "drop", "global_batch": 50},
            {"tail": "pad", "global_batch": 50, "rank": 2}, {"clump": 2, "world": 1, "rank": 0},
            {"shuffle": False, "rank": 2}, {"world": 99, "rank": 98, "start_step": 14},
            {"unit": "batch", "phases": [320], "workers": 2, "worker": 1, "clump": 4}, {"start_step": 99},
            {"clump": 2, "window": 2},
        )
    ]  # fmt: skip
    return [
        {"nodes": nodes, "request": request, "want": answer(nodes, request)}
        for nodes in layouts
        for request in requests
    ]


def answer(nodes: list[list[int]], request: Case) -> Case:
    """The rows of a request, and each node's part in stream order, without nodes that have none."""
    if request["kind"] == "shard":
        index, total = request["index"], request["total"]
        rows = list(range(index * ROWS // total, (index + 1) * ROWS // total))
    elif request["kind"] == "mix":
        rows = mixture(request).part_rows(request["part"])
    else:
        rows = order.Epoch(rows=ROWS, **{k: v for k, v in request.items() if k not in ("kind", "columns")}).share_rows()
    parts = [{"node": i, "rows": [r for r in rows if lo <= r < hi]} for i, (lo, hi) in enumerate(nodes)]
    return {"total_records": len(rows), "endpoints": [part for part in parts if part["rows"]]}


def mixture(fields: Case) -> order.Mixture:
    """The oracle for the fields of a request of kind mix."""
    parts = tuple((part["rows"], tuple(part["weights"])) for part in fields["parts"])
    named = {k: v for k, v in fields.items() if k not in ("v", "kind", "part", "parts", "phases", "columns")}
    return order.Mixture(parts=parts, phases=tuple(fields["phases"]), **named)


def mixtures() -> list[Case]:
    """The steps of mixtures for every rank: [step, [[part, row], ...], [valid, ...]]."""
    big = [{"rows": 10**12, "weights": [7 * 10**11]}, {"rows": 1000, "weights": [3 * 10**11]}]
    three = [{"rows": 5, "weights": [1, 0, 2]}, {"rows": 70, "weights": [3, 6, 1]}, {"rows": 9, "weights": [0, 2, 1]}]
    base = {key: value for key, value in _MIX.items() if key not in ("v", "kind", "part", "rank")}
    cases: list[Case] = [
        {},
        {"epoch": 0, "tail": "drop", "global_batch": 50, "world": 1},
        {"tail": "pad", "global_batch": 50, "clump": 4, "world": 7},
        {"shuffle": False, "epoch": 3},
        {"unit": "batch", "phases": [320], "epoch": 1, "clump": 4, "world": 2},
        {"parts": three, "phases": [16, 24], "length": 60, "epoch": 0, "global_batch": 10, "seed": 2**64 - 1},
        {"parts": three, "phases": [16, 24], "length": 60, "epoch": 10**6, "global_batch": 10, "world": 20},
        {"parts": big, "phases": [], "length": 10**12, "epoch": 5, "global_batch": 32, "start_step": 31_249_999_999},
        {"parts": big, "phases": [], "length": 10**12, "epoch": 5, "global_batch": 32, "start_step": 31_249_999_999,
         "clump": 64, "unit": "row", "seed": 0},
        {"parts": three, "phases": [16, 24], "length": 60, "global_batch": 10, "clump": 2, "window": 3, "world": 2},
        {"unit": "batch", "phases": [320], "world": 2, "clump": 4, "window": 2},
        {"parts": big, "phases": [], "length": 10**12, "epoch": 5, "global_batch": 32, "start_step": 31_249_999_999,
         "clump": 64, "window": 1024},
    ]  # fmt: skip
    out: list[Case] = []
    for changes in cases:
        fields = {"shuffle": True, "start_step": 0, **base, **changes}
        ranks = [mixture({**fields, "rank": rank}).share() for rank in range(fields["world"])]
        out.append({**fields, "ranks": ranks})
    return out


def windows() -> list[Case]:
    """Epochs with windows, of both versions of the order, for every rank: [step, [row, ...], [valid, ...]]."""
    base: Case = {"rows": 103, "seed": 7, "epoch": 2, "clump": 4, "window": 5, "global_batch": 16, "tail": "keep",
                  "world": 3, "order": 1, "start_step": 0}  # fmt: skip
    cases: list[Case] = [
        {}, {"rows": 0}, {"rows": 1}, {"rows": 100, "tail": "pad"}, {"clump": 1, "window": 10, "tail": "drop"},
        {"clump": 200}, {"window": 10**9, "seed": 2**64 - 1, "epoch": 2**64 - 1}, {"window": 1, "epoch": 0},
        {"rows": 4 * 25 + 1, "epoch": 1}, {"rows": 4 * 25 + 3, "epoch": 4, "window": 2, "tail": "pad"},
        {"rows": 5000, "clump": 64, "window": 16, "global_batch": 500, "start_step": 9},
        {"order": 2, "rows": 500, "global_batch": 70, "clump": 3, "window": 2, "tail": "pad"},
        {"order": 2, "rows": 1000, "global_batch": 64, "clump": 1, "window": 7, "world": 2, "start_step": 14},
    ]  # fmt: skip
    out: list[Case] = []
    for changes in cases:
        fields = {**base, **changes}
        ranks = [order.Epoch(**fields, rank=rank).share() for rank in range(fields["world"])]
        out.append({**fields, "ranks": ranks})
    return out


def metadata() -> list[Case]:
    """The app_metadata of answers, endpoints and record batches."""
    uuid = "4f0a3c52-8f5e-4a57-9f0e-0d6d6f2c1b7a"
    dataset = {"table_uuid": uuid, "snapshot": 7512387493822334123, "fingerprint": "f1"}
    answer = {"v": 1, "dataset": {**dataset, "filter": ""}, "rows": ROWS, "nodes": [[0, 4], [4, 9]]}
    text = "name = 'O''Brien' AND \"day\" >= DATE '2024-02-29'"
    return [
        {"name": "answer", "metadata": answer},
        {
            "name": "answer to a selection",
            "metadata": {
                **answer,
                "rows": 3,
                "nodes": [[0, 1], [1, 4]],
                "filtered_rows": 4,
                "selection": {
                    "filter": text,
                    "split": {"seed": 2**64 - 1, "of": 10, "from": 0, "to": 9, "shuffle": True},
                },
            },
        },
        {
            "name": "answer to a filter",
            "metadata": {
                **answer,
                "rows": 4,
                "nodes": [[0, 1], [1, 4]],
                "filtered_rows": 4,
                "selection": {"filter": text},
            },
        },
        {"name": "answer with a filter", "metadata": {**answer, "dataset": {**dataset, "filter": text}}},
        {"name": "answer to a take that offers narrow", "metadata": {**answer, "narrow": True}},
        {"name": "endpoint", "metadata": {"node": 1}},
        {"name": "batch", "metadata": {"busy_us": 1042}},
        {"name": "answer while loading", "metadata": {**answer, "loaded": 0.375}},
        {"name": "batch that waited for the load", "metadata": {"busy_us": 1042, "load_us": 250000}},
    ]


def selections() -> list[Case]:
    """Epochs of selections: the rows that a filter selects; by rank and node the rows of the table, in stream order.

    Nodes are ranges of rows of the table. A filter is given by the rows that it is true for; null: by none.
    """
    r = random.Random(33)
    dense, few = sorted(r.sample(range(2000), 1700)), sorted(r.sample(range(2000), 23))
    runs = [row for row in range(2000) if row // 90 % 2]
    nodes = [[0, 700], [700, 700], [700, 1999], [1999, 2000]]
    base: Case = {"rows": 2000, "nodes": nodes, "filter": dense, "split": None, "seed": 7, "epoch": 2, "shuffle": True,
                  "clump": 1, "global_batch": 256, "tail": "keep", "world": 2}  # fmt: skip
    part = {"seed": 1, "of": 100, "from": 0, "to": 90, "shuffle": True}
    changes: list[Case] = [
        {}, {"filter": few}, {"filter": runs, "clump": 50}, {"filter": runs, "shuffle": False}, {"filter": []},
        {"filter": None, "split": part}, {"split": part}, {"split": {**part, "from": 90, "to": 100}, "tail": "pad"},
        {"split": {**part, "shuffle": False}, "world": 3},
        {"filter": few, "split": {**part, "of": 7, "from": 3, "to": 4}},
        {"filter": runs, "split": {"seed": 2**64 - 1, "of": 3, "from": 1, "to": 3, "shuffle": True}, "clump": 8,
         "tail": "drop", "world": 1},
        {"filter": runs, "split": part, "shuffle": False, "world": 5}, {"split": {**part, "to": 0}},
    ]  # fmt: skip
    return [selection({**base, **change}) for change in changes]


def selection(case: Case) -> Case:
    """A case with what it wants: filtered rows, rows of the selection, and by rank and node the rows of the table."""
    rows = list(range(case["rows"])) if case["filter"] is None else case["filter"]
    filtered = list(range(len(rows)))
    if split := case["split"]:
        named = {"start" if k == "from" else k: v for k, v in split.items()}
        filtered = order.Split(**named).rows(len(rows))
    fields = {k: case[k] for k in ("seed", "epoch", "shuffle", "clump", "global_batch", "tail", "world")}
    ranks = [order.Epoch(rows=len(filtered), rank=i, **fields).share_rows() for i in range(case["world"])]
    of_table = [[rows[filtered[row]] for row in rank] for rank in ranks]
    streams = [[[row for row in rank if lo <= row < hi] for lo, hi in case["nodes"]] for rank in of_table]
    return {**case, "want": {"filtered_rows": len(rows), "rows": len(filtered), "streams": streams}}


def puts() -> list[Case]:
    """Requests of put.status about a put of ten parts, some of which a data node has lost, and what the answer has."""
    staged = [0, 1, 4, 6, 7, 9]
    asked: list[dict[str, int]] = [{}, {"from": 5}, {"from": 10}, {"most": 1}, {"most": 6}, {"most": 4096}]
    asked += [{"from": first, "most": most} for most in (1, 2, 5) for first in (0, 1, 2, 5, 9, 10)]
    return [page(staged, lost, request) for lost in ([], [6, 7, 9], staged) for request in asked]


def page(staged: list[int], lost: list[int], request: dict[str, int]) -> Case:
    """A case of put.status: the numbers of the parts in its answer, and where the next page begins, if there is one."""
    rest = [part for part in staged if part >= request.get("from", 0)]
    most = request.get("most") or len(rest)
    here, after = rest[:most], rest[most:]
    want: dict[str, Any] = {"parts": [p for p in here if p not in lost], "lost": [p for p in here if p in lost]}
    return {
        "parts": 10, "staged": staged, "lost": lost, "request": request,
        "want": {**want, "next": after[0]} if after else want,
    }  # fmt: skip


FILES = {
    "wire_descriptors.json": descriptors,
    "wire_answers.json": answers,
    "wire_metadata.json": metadata,
    "wire_puts.json": puts,
    "mix_vectors.json": mixtures,
    "window_vectors.json": windows,
    "selection_vectors.json": selections,
}


def text(file: str) -> str:
    """The content of a golden file, one case per line."""
    cases = ",\n".join("    " + json.dumps(case, ensure_ascii=True) for case in FILES[file]())
    dataset = json.dumps({"rows": ROWS, "columns": COLUMNS})
    return f'{{\n  "version": 1,\n  "dataset": {dataset},\n  "cases": [\n{cases}\n  ]\n}}\n'


def load(file: str) -> list[Case]:
    """The cases of a golden file."""
    return json.loads((FOLDER / file).read_text())["cases"]


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit(__doc__)
    FOLDER.mkdir(exist_ok=True)
    for file in FILES:
        (FOLDER / file).write_text(text(file))
