# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reader: reads a DoGet stream as record batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from urllib.parse import urlsplit

import pyarrow as pa

from kubeflow_datacache.credentials import Credentials
from kubeflow_datacache.h2 import hpack, message
from kubeflow_datacache.h2.call import Call
from kubeflow_datacache.h2.connection import Progress
from kubeflow_datacache.h2.errors import DictionaryError, ProtocolError
from kubeflow_datacache.h2.exceptions import exception_of
from kubeflow_datacache.h2.shared import Wanted

_DO_GET: Final = "/arrow.flight.protocol.FlightService/DoGet"
_SCHEMA, _DICTIONARY = "schema", "dictionary"  # pyarrow's names of IPC message types


class ChunkReader(Protocol):
    """Reads a stream: this package's Reader, or pyarrow's FlightStreamReader."""

    def read_chunk(self) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """Returns the next batch and its app_metadata; raises StopIteration after the last."""
        ...

    def cancel(self) -> None:
        """Ends the stream. Safe from any thread."""
        ...


class Reader:
    """Reads one stream on its own connection, which the first read opens. For one thread, except cancel.

    Raises the same exceptions as pyarrow.flight, by gRPC status; FlightUnavailableError if the connection fails or
    breaks, FlightInternalError if the server violates the protocol. Skips messages without a batch. headers: sent with
    the request. window: the kernel's buffers hold up to this many unread bytes, and one message. shared: the memory to
    share with a server on this machine. other: returns a pyarrow reader of the same stream, used instead if a
    dictionary arrives; dictionaries always precede the first batch.
    """

    def __init__(
        self,
        location: str,
        ticket: bytes,
        *,
        headers: Iterable[hpack.Header] = (),
        window: int,
        shared: Wanted | None = None,
        credentials: Credentials,
        other: Callable[[], ChunkReader],
    ) -> None:
        self._location, self._ticket, self._headers, self._window = location, ticket, headers, window
        self._credentials, self._open_other, self._wanted = credentials, other, shared
        self._call: Call | None = None
        self._batches = Batches()
        self._other: ChunkReader | None = None
        self._cancelled = False

    def read_chunk(self) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """Returns the next batch and its app_metadata; raises StopIteration after the last."""
        if self._other is not None:
            return self._other.read_chunk()
        try:
            return self._batches.next(self._call or self._connect())
        except DictionaryError:
            self._close()
            self._other = self._open_other()
            return self._other.read_chunk()
        except (OSError, ProtocolError) as error:
            self._close()
            raise exception_of(
                error, self._location, self._call, cancelled=self._cancelled, credentials=self._credentials
            ) from error
        except BaseException:
            self._close()
            raise

    @property
    def transfer(self) -> float:
        """The seconds between the first byte of the last batch and its last."""
        return self._batches.transfer

    def progress(self) -> Progress | None:
        """What the kernel knows of the connection; None before there is one."""
        return None if self._call is None else self._call.progress()

    def cancel(self) -> None:
        """Ends the stream: a blocked read raises FlightCancelledError."""
        self._cancelled = True
        if self._other is not None:
            self._other.cancel()
        if self._call is not None:
            self._call.cancel()

    def _connect(self) -> Call:
        address, request = urlsplit(self._location), message.ticket(self._ticket)
        own = self._headers
        call = Call(address, self._credentials, _DO_GET, request, own, window=self._window, shared=self._wanted)
        self._call = call
        if self._cancelled:  # cancel() was called before the line above
            call.cancel()
        return call

    def _close(self) -> None:
        if self._call is not None:
            self._call.close()


class Batches:
    """Decodes the record batches in the messages of a call."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self.transfer = 0.0  # the seconds between the first byte of the last message and its last

    def next(self, call: Call) -> tuple[pa.RecordBatch, pa.Buffer | None]:
        """The next batch with its app_metadata. Raises StopIteration at the end, DictionaryError for a dictionary."""
        while (got := self._next(call)) is not None:
            decoded, app_metadata = got
            if decoded.type == _DICTIONARY:
                raise DictionaryError
            if decoded.type != _SCHEMA:
                return self._batch(decoded), app_metadata
        if self._schema is None:
            raise ProtocolError("Flight: a stream without a schema")
        raise StopIteration

    def begin(self, call: Call) -> None:
        """Reads the schema unless it was read before."""
        while self._schema is None:
            if (got := self._next(call)) is None:
                raise ProtocolError("Flight: a stream without a schema")
            if got[0].type != _SCHEMA:
                raise ProtocolError(f"Flight: a {got[0].type} before the schema")

    def _batch(self, decoded: pa.Message) -> pa.RecordBatch:
        if self._schema is None:
            raise ProtocolError(f"Flight: a {decoded.type} before the schema")
        return pa.ipc.read_record_batch(decoded, self._schema)

    def _next(self, call: Call) -> tuple[pa.Message, pa.Buffer | None] | None:
        """Reads the next IPC message and its app_metadata; remembers a schema."""
        while (size := call.message()) is not None:
            begun = time.perf_counter()
            ipc, app_metadata = message.receive(call, size)
            self.transfer = time.perf_counter() - begun
            if ipc is None:
                continue
            decoded = pa.ipc.read_message(ipc)
            if decoded.type == _SCHEMA:
                self._schema = pa.ipc.read_schema(decoded)
            return decoded, app_metadata
        return None
