# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A DoExchange: record batches to a server, and its answers."""

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
from kubeflow_datacache.h2.faults import fault_of
from kubeflow_datacache.h2.reader import Batches

_DO_EXCHANGE: Final = "/arrow.flight.protocol.FlightService/DoExchange"
_WINDOW: Final = 4 << 20


class Exchange:
    """One exchange on a connection of its own, which is made at once. One thread uses it, any may cancel.

    Every answer must be read before the next request is written. Raises what Reader raises.
    """

    def __init__(self, location: str, ticket: bytes, schema: pa.Schema, *, credentials: Credentials) -> None:
        self._location, self._batches = location, Batches()
        self._call: Call | None = None
        self._cancelled = False
        descriptor = fl.FlightDescriptor.for_command(ticket).serialize()
        first = message.flight_data(schema, descriptor)
        try:
            self._call = Call(urlsplit(location), credentials, _DO_EXCHANGE, first, window=_WINDOW, more=True)
        except (OSError, ProtocolError) as error:
            raise self._fault(error) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Sends a batch."""
        try:
            self._batches.begin(self._open)  # the server says it before it reads on: no answer may be under way
            self._open.send(message.flight_data(batch))
        except (OSError, ProtocolError) as error:
            raise self._fault(error) from error

    def read(self) -> pa.RecordBatch:
        """The next batch that the server sends; an error where it ends instead. RefusedError for a dictionary."""
        try:
            return self._batches.next(self._open)[0]
        except DictionaryError:
            raise RefusedError('the rows have dictionaries: give DataCache transport="grpc"') from None
        except StopIteration:
            raise self._fault(ProtocolError("Flight: the exchange ended before its answer")) from None
        except (OSError, ProtocolError) as error:
            raise self._fault(error) from error

    def cancel(self) -> None:
        """Makes a write or read that waits raise FlightCancelledError."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def close(self) -> None:
        """Ends the exchange and gives the socket back."""
        if self._call is not None:
            self._call.close()

    @property
    def _open(self) -> Call:
        assert self._call is not None
        return self._call

    def _fault(self, error: Exception) -> Exception:
        return fault_of(error, self._location, self._call, cancelled=self._cancelled)
