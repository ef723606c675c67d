# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Flight's calls with one request and few, small answers, such as GetFlightInfo."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2 import message
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.h2.faults import fault_of
from kubeflow_datacache.stop import Stop

SERVICE: Final = "/arrow.flight.protocol.FlightService/"
_WINDOW: Final = 1 << 20


class Unary:
    """One such call, on a connection of its own. One thread runs it, any may cancel; raises what h2.Reader raises."""

    def __init__(self, location: str, credentials: Credentials) -> None:
        self._location, self._credentials = location, credentials
        self._call: Call | None = None
        self._cancelled = False

    def run(self, method: str, request: bytes, *, seconds: float, stop: Stop | None = None) -> list[bytes]:
        """The answers' bytes. seconds: what the server may take. stop, once set, breaks the call off."""
        if stop is None:
            return self._run(method, request, seconds)
        with stop.cancelling(self.cancel):
            return self._run(method, request, seconds)

    def cancel(self) -> None:
        """Makes the call raise FlightCancelledError."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def _run(self, method: str, request: bytes, seconds: float) -> list[bytes]:
        limit = [("grpc-timeout", f"{round(seconds * 1000)}m")]
        out: list[bytes] = []
        try:
            call = self._call = Call(
                urlsplit(self._location), self._credentials, SERVICE + method, request, limit, window=_WINDOW
            )
            if self._cancelled:  # before the line above
                call.cancel()
            while (size := call.message()) is not None:
                out.append(call.read(size))
        except (OSError, ProtocolError) as error:
            raise fault_of(error, self._location, self._call, cancelled=self._cancelled) from error
        finally:
            if self._call is not None:
                self._call.close()
        return out


def action(name: str) -> bytes:
    """An Action without a body, serialized."""
    return message.sized(1, name.encode())
