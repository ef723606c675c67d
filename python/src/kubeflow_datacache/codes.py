# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""gRPC status codes of pyarrow.flight's exceptions, and which of them are permanent."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.errors import CacheFailedError, DataCacheError, RefusedError

CALL_ERRORS = (pa.ArrowException, fl.FlightError, OSError)  # exceptions that a Flight call may raise
_PREFIX = re.compile(
    r"(?:Unknown: )?(?:gRPC|Flight) returned ([a-z -]+) error(?:, with message: |[.:] ?)?"
    r"|Flight (?:cancelled call,|RPC failed) with message: "
)
_WORDS = {  # names that pyarrow uses for some codes
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
# prefix of GetFlightInfo's error message if the load failed permanently (docs/contract.md)
_FAILED = "the cache failed:"
# the port of --http in place of that of --listen, in the words of h2.Call and of gRPC
_HTTP_1 = re.compile(r"answers in HTTP/1|http1\.x server")


def code_of(error: BaseException) -> str:
    """The gRPC code of a pyarrow.flight exception, such as "UNAVAILABLE"; for any other exception, its class name."""
    if (match := _PREFIX.search(str(error))) and match[1]:
        code = re.sub("[ -]", "_", match[1]).upper()
        return _WORDS.get(code, code)
    return _OF_CLASS.get(type(error).__name__, type(error).__name__)


def reason_of(error: BaseException) -> str:
    """The server's error message as one line, without the text that pyarrow adds around it."""
    text = _TAIL.sub("", _PREFIX.sub("", str(error), count=1))
    return " ".join(text.split()) or type(error).__name__


def permanent_error(error: BaseException) -> DataCacheError | None:
    """The exception to raise if retrying cannot help; None if a retry may succeed."""
    reason = reason_of(error)
    if _FAILED in reason:
        return CacheFailedError(f"{reason}. The cache will not recover by itself: see its log, then start it anew")
    if _HTTP_1.search(reason):
        return RefusedError(
            "the server answers in HTTP/1.1, not in gRPC: this is its port of --http, for its status and metrics; want"
            " the port of --listen, 50051 by default"
        )
    if code_of(error) in _FINAL:
        return RefusedError(reason)
    return None
