# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""gRPC codes behind pyarrow.flight's errors, and what each means for a client."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.errors import CacheFailedError, DataCacheError, RefusedError

FAULTS = (pa.ArrowException, fl.FlightError, OSError)  # what a call to a server may raise
_PREFIX = re.compile(
    r"(?:Unknown: )?(?:gRPC|Flight) returned ([a-z -]+) error(?:, with message: |[.:] ?)?"
    r"|Flight (?:cancelled call,|RPC failed) with message: "
)
_WORDS = {  # pyarrow's own for some codes
    "PRECONDITION_FAILED": "FAILED_PRECONDITION",
    "INVALID": "INVALID_ARGUMENT",
    "TIMEOUT": "DEADLINE_EXCEEDED",
    "UNAUTHORIZED": "PERMISSION_DENIED",
}
_TAIL = re.compile(r"\. gRPC client debug context:.*|\. Client context:.*|\. Detail: .*", re.DOTALL)
_OF_CLASS = {
    "ArrowInvalid": "INVALID_ARGUMENT",
    "ArrowNotImplementedError": "UNIMPLEMENTED",
    "ArrowKeyError": "NOT_FOUND",
    "FlightUnauthenticatedError": "UNAUTHENTICATED",
    "FlightUnauthorizedError": "PERMISSION_DENIED",
    "FlightUnavailableError": "UNAVAILABLE",
    "FlightTimedOutError": "DEADLINE_EXCEEDED",
    "FlightCancelledError": "CANCELLED",
    "FlightInternalError": "INTERNAL",
    "FlightServerError": "UNKNOWN",
}
_FINAL = {"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED"}
_FAILED = "the cache failed:"  # wire contract, GetFlightInfo: the reason of a cache that is Failed for good


def code_of(error: BaseException) -> str:
    """The gRPC code of an error of pyarrow.flight, such as "UNAVAILABLE"; the class name of any other error."""
    if (match := _PREFIX.search(str(error))) and match[1]:
        code = re.sub("[ -]", "_", match[1]).upper()
        return _WORDS.get(code, code)
    return _OF_CLASS.get(type(error).__name__, type(error).__name__)


def reason_of(error: BaseException) -> str:
    """The server's reason, without pyarrow's wrapping, on one line."""
    text = _TAIL.sub("", _PREFIX.sub("", str(error), count=1))
    return " ".join(text.split()) or type(error).__name__


def final(error: BaseException) -> DataCacheError | None:
    """The error to raise where trying again can't help; None where it may."""
    reason = reason_of(error)
    if _FAILED in reason:
        return CacheFailedError(f"{reason}. The cache will not recover by itself: see its log, then start it anew")
    if code_of(error) in _FINAL:
        return RefusedError(reason)
    return None
