# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Converts OSError and ProtocolError of a call to the exceptions that the rest of the package handles."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from kubeflow_datacache.credentials import Credentials, fingerprint_of
from kubeflow_datacache.errors import RefusedError
from kubeflow_datacache.h2 import status
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError

_PROBE_SECONDS: Final = 2.0
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def exception_of(
    error: Exception, location: str, call: Call | None, *, cancelled: bool, credentials: Credentials
) -> Exception:
    """The exception to raise for an OSError or ProtocolError of a call; call is None if it could not connect.

    RefusedError if retrying cannot help: an invalid certificate, or TLS on one side only.
    """
    if cancelled:
        return status.exception(status.CANCELLED, "the call was cancelled")
    if call is None:
        return _tls_exception(error, location, credentials) or status.exception(
            status.UNAVAILABLE, f"failed to connect: {error}"
        )
    if not call.settings_received and not isinstance(error, TimeoutError) and _speaks_tls(location):
        return RefusedError(
            f"{location} answers with TLS only: write grpc+tls:// instead of grpc://, and tls_roots if its certificate"
            " is of a CA that the system does not know"
        )
    if isinstance(error, ProtocolError):
        return status.exception(status.INTERNAL, str(error))
    return status.exception(status.UNAVAILABLE, f"the stream broke: {error}; {call.goaway}".rstrip("; "))


def _tls_exception(error: Exception, location: str, credentials: Credentials) -> RefusedError | None:
    """A RefusedError for a permanent TLS problem; None if a retry may succeed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        ours, theirs = credentials.fingerprint(), _certificate(location)
        told = f" (SHA-256 of ours {ours}..., of the server's {theirs}...)" if ours and theirs else ""
        return RefusedError(
            f"{location}: the server's certificate was not accepted: {error.verify_message}{told}. Give DataCache the"
            " PEM of the CA that signed it as tls_roots, and use a host name that the certificate has"
        )
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return RefusedError(
            f"{location} answers, but without TLS ({error.reason}): write grpc:// instead of grpc+tls://"
        )
    return None


def _certificate(location: str) -> str:
    """The fingerprint of a server's certificate, "" if it does not show it. Nothing is sent to it."""
    with contextlib.suppress(OSError), _unverified(location) as probe:
        return fingerprint_of(probe.getpeercert(binary_form=True) or b"")
    return ""


def _unverified(location: str) -> ssl.SSLSocket:
    """A TLS connection without verification, to look at the server. No data may be sent over it."""
    address, context = urlsplit(location), ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection((address.hostname or "", address.port or 0), timeout=_PROBE_SECONDS)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def _speaks_tls(location: str) -> bool:
    """Whether a server that closed a plain connection before its first frame accepts TLS."""
    if urlsplit(location).scheme == "grpc+tls":
        return False
    with contextlib.suppress(OSError), _unverified(location):
        return True
    return False
