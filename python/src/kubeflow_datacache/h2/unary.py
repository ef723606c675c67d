# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""UnaryCall: a Flight call with one request and a few small responses, such as GetFlightInfo."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import ProtocolError
from kubeflow_datacache.h2.exceptions import exception_of
from kubeflow_datacache.stop import Stop

SERVICE: Final = "/arrow.flight.protocol.FlightService/"
_WINDOW: Final = 1 << 20


class UnaryCall:
    """A call on its own connection. For one thread, except cancel. Raises the same exceptions as h2.Reader."""

    def __init__(self, location: str, credentials: Credentials) -> None:
        self._location, self._credentials = location, credentials
        self._call: Call | None = None
        self._cancelled = False

    def run(self, method: str, request: bytes, *, seconds: float, stop: Stop | None = None) -> list[bytes]:
        """Runs the call and returns the responses. seconds: the deadline sent to the server. Setting `stop` cancels the
        call."""
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
            if self._cancelled:  # cancel() was called before the line above
                call.cancel()
            while (size := call.message()) is not None:
                out.append(call.read(size))
        except (OSError, ProtocolError) as error:
            raise exception_of(
                error, self._location, self._call, cancelled=self._cancelled, credentials=self._credentials
            ) from error
        finally:
            if self._call is not None:
                self._call.close()
        return out
