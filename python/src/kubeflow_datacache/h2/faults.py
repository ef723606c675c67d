# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Broken connections and protocols as the exceptions that the rest of the package tells apart."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from kubeflow_datacache.errors import RefusedError
from kubeflow_datacache.h2 import status
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError

_PROBE_SECONDS: Final = 2.0
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


def fault_of(error: Exception, location: str, call: Call | None, *, cancelled: bool) -> Exception:
    """What to raise for an OSError or ProtocolError of a call; call is None where it could not connect.

    RefusedError where trying again can't help: certificates that don't fit, TLS against plain text.
    """
    if cancelled:
        return status.fault(status.CANCELLED, "the call was cancelled")
    if call is None:
        return _tls_fault(error, location) or status.fault(status.UNAVAILABLE, f"failed to connect: {error}")
    if not call.greeted and not isinstance(error, TimeoutError) and _speaks_tls(location):
        return RefusedError(
            f"{location} answers with TLS only: write grpc+tls:// instead of grpc://, and tls_roots if its certificate"
            " is of a CA that the system does not know"
        )
    if isinstance(error, ProtocolError):
        return status.fault(status.INTERNAL, str(error))
    return status.fault(status.UNAVAILABLE, f"the stream broke: {error}; {call.goaway}".rstrip("; "))


def _tls_fault(error: Exception, location: str) -> RefusedError | None:
    """What is wrong for good about a TLS connection that was not made; None where it may be made later."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"{location}: the server's certificate was not accepted: {error.verify_message}. Give DataCache the PEM of"
            " the CA that signed it as tls_roots, and use a host name that the certificate has"
        )
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return RefusedError(
            f"{location} answers, but without TLS ({error.reason}): write grpc:// instead of grpc+tls://"
        )
    return None


def _speaks_tls(location: str) -> bool:
    """Whether a server that broke off a plain connection before its first frame takes one with TLS."""
    address = urlsplit(location)
    if address.scheme == "grpc+tls":
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only to say what is wrong; nothing is sent
    with contextlib.suppress(OSError):
        plain = socket.create_connection((address.hostname or "", address.port or 0), timeout=_PROBE_SECONDS)
        with plain, context.wrap_socket(plain):
            return True
    return False
