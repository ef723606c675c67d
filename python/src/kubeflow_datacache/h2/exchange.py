# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchange: a DoExchange call, which sends record batches and receives responses."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.errors import RefusedError
from kubeflow_datacache.h2 import message
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.errors import DictionaryError, ProtocolError
from kubeflow_datacache.h2.exceptions import exception_of
from kubeflow_datacache.h2.reader import Batches
from kubeflow_datacache.h2.shared import Wanted

_DO_EXCHANGE: Final = "/arrow.flight.protocol.FlightService/DoExchange"
_WINDOW: Final = 4 << 20


class Exchange:
    """A DoExchange call on its own connection, which the constructor opens. For one thread, except cancel.

    Every response must be read before the next request is written. Raises the same exceptions as Reader.
    """

    def __init__(
        self, location: str, ticket: bytes, schema: pa.Schema, *, shared: Wanted, credentials: Credentials
    ) -> None:
        self._location, self._credentials, self._batches = location, credentials, Batches()
        self._call: Call | None = None
        self._cancelled = False
        descriptor = fl.FlightDescriptor.for_command(ticket).serialize()
        first = message.flight_data(schema, descriptor)
        try:
            own = urlsplit(location), credentials, _DO_EXCHANGE, first
            self._call = Call(*own, window=_WINDOW, more=True, shared=shared)
        except (OSError, ProtocolError) as error:
            raise self._exception(error) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a record batch."""
        try:
            # reads the server's schema, which precedes its first response
            self._batches.begin(self._open)
            self._open.send(message.flight_data(batch))
        except (OSError, ProtocolError) as error:
            raise self._exception(error) from error

    def read(self) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """Reads the next response, and its app_metadata. Raises an error if the server ends the call instead, and
        RefusedError for dictionaries."""
        try:
            return self._batches.next(self._open)
        except DictionaryError:
            raise RefusedError('the rows have dictionaries: give DataCache transport="grpc"') from None
        except StopIteration:
            raise self._exception(ProtocolError("Flight: the exchange ended before its answer")) from None
        except (OSError, ProtocolError) as error:
            raise self._exception(error) from error

    def cancel(self) -> None:
        """Makes a blocked write or read raise FlightCancelledError."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Ends the call and closes the socket."""
        if self._call is not None:
            self._call.close()

    @property
    def _open(self) -> Call:
        assert self._call is not None
        return self._call

    def _exception(self, error: Exception) -> Exception:
        return exception_of(error, self._location, self._call, cancelled=self._cancelled, credentials=self._credentials)
