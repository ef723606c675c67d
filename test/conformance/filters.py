# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""WHERE clauses and equivalent pyiceberg expressions, for the columns of the plain tables.

WHERE follows SQL: a comparison with null is not true. pyiceberg's NotIn keeps nulls, so it is combined with NotNull.
"""

# pyright: reportCallIssue=false
# pyiceberg's models take positional arguments in a way that type checkers can not see.

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)


class Filter(NamedTuple):
    """A condition as text, which DuckDB accepts too, and as a pyiceberg expression."""

    where: str
    expression: BooleanExpression


_SEEN = dt.datetime(2024, 6, 1, 12, 30, 15, 500_000)

FILTERS = [
    Filter("id = 5000", EqualTo("id", 5000)),
    Filter("5000 = id", EqualTo("id", 5000)),
    Filter("name <> 'ash'", And(NotEqualTo("name", "ash"), NotNull("name"))),
    Filter("id <> 17 AND id < 40", And(NotEqualTo("id", 17), LessThan("id", 40))),
    Filter("id != 17 and id <= 40", And(NotEqualTo("id", 17), LessThanOrEqual("id", 40))),
    Filter("id > 9990", GreaterThan("id", 9990)),
    Filter("id >= 9990", GreaterThanOrEqual("id", 9990)),
    Filter("id BETWEEN 3990 AND 4010", And(GreaterThanOrEqual("id", 3990), LessThanOrEqual("id", 4010))),
    Filter("id NOT BETWEEN 10 AND 9990", Or(LessThan("id", 10), GreaterThan("id", 9990))),
    Filter("id IN (1, 2, 3, 9999, 123456)", In("id", {1, 2, 3, 9999, 123456})),
    Filter("small NOT IN (-50, 0, 3)", And(NotIn("small", {-50, 0, 3}), NotNull("small"))),
    Filter("small = -7", EqualTo("small", -7)),
    Filter("small IS NULL", IsNull("small")),
    Filter("small IS NOT NULL", NotNull("small")),
    Filter("NOT (small < 0)", Not(LessThan("small", 0))),
    Filter("NOT small < 0 AND NOT (name = 'ash' OR flag)", And(GreaterThanOrEqual("small", 0), And(NotEqualTo("name", "ash"), EqualTo("flag", False)))),  # noqa: E501
    Filter("price > 12.5", GreaterThan("price", 12.5)),
    Filter("price BETWEEN -1e1 AND 2.5e0", And(GreaterThanOrEqual("price", -10.0), LessThanOrEqual("price", 2.5))),
    Filter("ratio = 0.125", EqualTo("ratio", 0.125)),
    Filter("flag = TRUE", EqualTo("flag", True)),
    Filter("flag = false", EqualTo("flag", False)),
    Filter("flag IS NULL OR flag", Or(IsNull("flag"), EqualTo("flag", True))),
    Filter("name = 'it''s'", EqualTo("name", "it's")),
    Filter("name = 'Grüße'", EqualTo("name", "Grüße")),
    Filter("name = ''", EqualTo("name", "")),
    Filter("name LIKE 'fir%'", StartsWith("name", "fir")),
    Filter("name NOT LIKE 'fir%'", NotStartsWith("name", "fir")),
    Filter("name < 'birch'", LessThan("name", "birch")),
    Filter("name IN ('ash', 'cedar', 'it''s')", In("name", {"ash", "cedar", "it's"})),
    Filter("day >= DATE '2025-06-01'", GreaterThanOrEqual("day", dt.date(2025, 6, 1))),
    Filter("day = '2024-02-29'", EqualTo("day", dt.date(2024, 2, 29))),
    Filter("seen < TIMESTAMP '2024-06-01 12:30:15.5'", LessThan("seen", _SEEN.isoformat())),
    Filter("seen >= '2024-06-01T12:30:15.5'", GreaterThanOrEqual("seen", _SEEN.isoformat())),
    Filter("id < 70 OR id > 9900 AND name = 'ash'",
           Or(LessThan("id", 70), And(GreaterThan("id", 9900), EqualTo("name", "ash")))),
    Filter("(id < 70 OR id > 9900) AND name = 'ash'",
           And(Or(LessThan("id", 70), GreaterThan("id", 9900)), EqualTo("name", "ash"))),
    Filter('"id" = 7 OR "name" IS NULL AND id < 50', Or(EqualTo("id", 7), And(IsNull("name"), LessThan("id", 50)))),
    Filter("id < 0", LessThan("id", 0)),
    Filter("id >= 0", GreaterThanOrEqual("id", 0)),
]  # fmt: skip

#: What is no WHERE of ours, and the word that the refusal must contain.
REFUSED = {
    "nothing follows": ("id >", "id"),
    "unknown column": ("nope = 1", "nope"),
    "text for a number": ("id = 'seven'", "seven"),
    "number for a text": ("name = 7", "name"),
    "too large": ("small = 3000000000", "3000000000"),
    "no date": ("day = '2024-02-30'", "2024-02-30"),
    "middle wildcard": ("name LIKE '%ash%'", "LIKE"),
    "function": ("lower(name) = 'ash'", "lower"),
    "two columns": ("id = small", "small"),
    "unclosed text": ("name = 'ash", "ash"),
    "unclosed bracket": ("(id = 1", "("),
    "leftover": ("id = 1 id", "id"),
    "semicolon": ("id = 1; DROP TABLE plain", ";"),
    "equals null": ("id = NULL", "NULL"),
}
