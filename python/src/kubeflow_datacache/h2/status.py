# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts gRPC status codes to the exceptions that pyarrow.flight raises for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.h2 import frames

OK, CANCELLED, UNKNOWN, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

# The name and the exception class of each code.
_EXCEPTIONS: Final[dict[int, tuple[str, type[Exception]]]] = {
    CANCELLED: ("cancelled", fl.FlightCancelledError),
    UNKNOWN: ("unknown", fl.FlightServerError),
    3: ("invalid argument", pa.ArrowInvalid),
    4: ("deadline exceeded", fl.FlightTimedOutError),
    5: ("not found", pa.ArrowKeyError),
    6: ("already exists", pa.ArrowException),
    PERMISSION_DENIED: ("permission denied", fl.FlightUnauthorizedError),
    RESOURCE_EXHAUSTED: ("resource exhausted", pa.ArrowInvalid),
    9: ("failed precondition", pa.ArrowInvalid),
    10: ("aborted", fl.FlightInternalError),
    11: ("out of range", pa.ArrowInvalid),
    UNIMPLEMENTED: ("unimplemented", pa.ArrowNotImplementedError),
    INTERNAL: ("internal", fl.FlightInternalError),
    UNAVAILABLE: ("unavailable", fl.FlightUnavailableError),
    15: ("data loss", fl.FlightInternalError),
    UNAUTHENTICATED: ("unauthenticated", fl.FlightUnauthenticatedError),
}
# HTTP status to gRPC code, for responses not from a gRPC server (gRPC's http-grpc-status-mapping.md).
_OF_HTTP: Final = {
    "400": INTERNAL,
    "401": UNAUTHENTICATED,
    "403": PERMISSION_DENIED,
    "404": UNIMPLEMENTED,
    "429": UNAVAILABLE,
    "502": UNAVAILABLE,
    "503": UNAVAILABLE,
    "504": UNAVAILABLE,
}
# RST_STREAM error to gRPC code (gRPC's PROTOCOL-HTTP2.md, "Errors").
_OF_RESET: Final = {
    "REFUSED_STREAM": UNAVAILABLE,
    "CANCEL": CANCELLED,
    "ENHANCE_YOUR_CALM": RESOURCE_EXHAUSTED,
    "INADEQUATE_SECURITY": PERMISSION_DENIED,
}


def exception(code: int, message: str) -> Exception:
    """The exception for a status other than OK."""
    name, kind = _EXCEPTIONS.get(code, _EXCEPTIONS[UNKNOWN])
    return kind(f"gRPC returned {name} error, with message: {message}")


def of_trailers(trailers: Mapping[str, str]) -> Exception | None:
    """The exception for a response's trailers; None if the status is OK."""
    status = trailers.get("grpc-status", "")
    if status == str(OK):
        return None
    if status.isdecimal():
        return exception(int(status), unquote(trailers.get("grpc-message", ""), errors="replace"))
    return exception(UNKNOWN, f"the server ended the stream with grpc-status {status!r}")


def of_http(headers: Mapping[str, str]) -> Exception | None:
    """The exception for response headers that are not from a gRPC server; None if they are."""
    http, content = headers.get(":status", ""), headers.get("content-type", "")
    if http == "200" and content.startswith("application/grpc"):
        return None
    return exception(_OF_HTTP.get(http, UNKNOWN), f"no gRPC server: HTTP status {http!r}, content-type {content!r}")


def of_reset(code: int) -> Exception:
    """The exception for a stream that the server reset."""
    name = frames.error_name(code)
    return exception(_OF_RESET.get(name, INTERNAL), f"the server reset the stream: {name}")
