# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The client: a cache behind a head's address."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, get_args

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache import fork, h2
from kubeflow_datacache.answer import Answer
from kubeflow_datacache.client import Reader
from kubeflow_datacache.codes import FAULTS
from kubeflow_datacache.credentials import CredentialOptions, Credentials
from kubeflow_datacache.dataset import Dataset
from kubeflow_datacache.errors import ColumnError, DataCacheError
from kubeflow_datacache.flow.exchange import REQUEST, Calls, GrpcExchange
from kubeflow_datacache.flow.retry import Attempts, Patience
from kubeflow_datacache.h2 import message
from kubeflow_datacache.h2.reader import Chunks
from kubeflow_datacache.loader import Loader
from kubeflow_datacache.options import LoaderOptions, names_of, spelled_out, whole
from kubeflow_datacache.stop import Stop
from kubeflow_datacache.table import Table
from kubeflow_datacache.watch.html import as_table
from kubeflow_datacache.watch.loading import wait_ready

Transport = Literal["h2", "grpc"]

_PORT = 50051
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://")
_ASK_SECONDS = 60.0
_BATCH_BYTES = "datacache-batch-bytes"  # docs/contract.md, DoGet
# Servers restart and get new addresses: notice a dead connection in seconds, look again for a live one soon.
_CHANNEL = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


class DataCache:
    """A cache, by the address of its head. Close it, or use it in a with statement.

    endpoint: "grpc://HOST:PORT", or "grpc+tls://HOST:PORT". retry_seconds: how long to wait for servers that do not
    answer or are still loading before UnreachableError; certificates that do not fit, and TLS against plain text, are
    a RefusedError at once. credentials: see CredentialOptions. transport: "h2", this package's own client, or "grpc",
    pyarrow's, at about twice the CPU. The same rows either way; but over gRPC close waits no longer than 2 s for a
    server that does not answer, and leaves the thread that asked it behind, for up to a minute. Connections are direct,
    whatever http_proxy or grpc_proxy say.

    Connects on first use. Safe for concurrent use. Pickles to its settings. A forked child may use the cache, its
    loaders and tables, with connections of its own; its parent's iterators raise ForkedError there, and so does
    all that would connect over gRPC after the parent did. close ends nothing of the parent's.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        retry_seconds: float = 300.0,
        transport: Transport = "h2",
        **credentials: Unpack[CredentialOptions],
    ) -> None:
        if not endpoint.startswith(_SCHEMES):
            raise ValueError(f"endpoint = {endpoint!r}: want grpc://HOST:PORT or grpc+tls://HOST:PORT")
        if transport not in get_args(Transport):
            raise ValueError(f"transport = {transport!r}: want one of {', '.join(get_args(Transport))}")
        self.endpoint = endpoint
        self.patience = Patience(retry_seconds)
        self._credentials, self._transport = Credentials.of(credentials), transport
        self._reset()

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        retry_seconds: float = 300.0,
        **credentials: Unpack[CredentialOptions],
    ) -> Self:
        """The cache at DATACACHE_ENDPOINT, else that of this process's TrainJob, which TRAIN_JOB_NAME names.

        DATACACHE_TRANSPORT chooses the transport, if it is set. Credentials that are not given are taken from
        DATACACHE_TLS_ROOTS, DATACACHE_TLS_CERTIFICATE, DATACACHE_TLS_KEY and DATACACHE_TOKEN_FILE, paths of files, and
        DATACACHE_TLS_HOSTNAME. Roots, a certificate or a host name mean TLS, unless DATACACHE_ENDPOINT says otherwise.
        """
        job, endpoint = environ.get("TRAIN_JOB_NAME", ""), environ.get("DATACACHE_ENDPOINT", "")
        if not job and not endpoint:
            raise ValueError(
                "neither TRAIN_JOB_NAME nor DATACACHE_ENDPOINT is set: a TrainJob with a cache sets the first;"
                ' elsewhere give the address, as DataCache("grpc://HOST:50051")'
            )
        own = Credentials.options_from(environ, credentials)
        scheme = "grpc+tls" if Credentials.of(own).secured else "grpc"
        transport: Any = environ.get("DATACACHE_TRANSPORT") or "h2"
        return cls(
            endpoint or f"{scheme}://{job}-cache-service:{_PORT}",
            retry_seconds=retry_seconds,
            transport=transport,
            **own,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataCache({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("endpoint", "patience", "_credentials", "_transport")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def close(self) -> None:
        """Ends the cache's loaders and tables and closes the connections. Using it again opens new ones."""
        if self._process != os.getpid():  # the connections are the parent's, and so are the readers
            self._reset()
        for reader in list(self._readers):
            reader.close()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    @property
    def dataset(self) -> Dataset:
        """What is served: table, snapshot, fingerprint and number of rows. Asked once, then remembered.

        Asked anew after an answer that tells of another one: loaders and tables made then read it.
        """
        if self._described is None:
            self._described = self.ask({"kind": "take"})
        return self._described.dataset

    @property
    def schema(self) -> pa.Schema:
        """All columns that are served."""
        if self._described is None:
            self._described = self.ask({"kind": "take"})
        return self._described.schema

    def __len__(self) -> int:
        return self.dataset.rows

    def head(self, rows: int = 5, *, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The table's first rows, fewer if it has fewer; .to_pandas() shows them as a table."""
        count = min(whole("rows", rows, 0), len(self))
        with contextlib.closing(self.table(columns=columns)) as reader:
            return reader.__getitems__(range(count))

    def _repr_html_(self) -> str:
        """What notebooks show: the address, and what is served once that was asked for. Never connects."""
        shown = [("endpoint", self.endpoint)]
        if (known := self._described) is not None:
            dataset = known.dataset
            shown += [("rows", f"{dataset.rows:,}"), ("snapshot", str(dataset.snapshot))]
            shown += [(f"column {field.name}", str(field.type)) for field in known.schema]
        return as_table("DataCache", shown)

    def named(self, columns: Sequence[str]) -> list[str]:
        """The columns, all of which are served: ColumnError for one that is not."""
        there = self.schema.names
        names = names_of(columns) or []
        for name in names:
            if name not in there:
                close = difflib.get_close_matches(name, there, 1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                raise ColumnError(f"columns: {name!r} is no column that the cache serves; there are {there}{meant}")
        return names

    def status(self) -> dict[str, Any]:
        """The head's own report: state, reason, rows, bytes, splits and data nodes (docs/contract.md, /status)."""
        return json.loads(self._try(self._status, None))

    def wait(self, *, progress: bool = False) -> dict[str, Any]:
        """Waits until the cache is loaded, and returns its status; whatever reads waits by itself, but shows nothing.

        progress: whether tqdm's bar shows splits and rows, in a log a line every ten seconds, on standard error.
        CacheFailedError if the load fails, UnreachableError where nothing more is loaded for retry_seconds.
        """
        return dict(wait_ready(self.status, self.patience.seconds, progress=progress))

    @spelled_out
    def loader(self, **options: Unpack[LoaderOptions]) -> Loader:
        """This rank's batches, epoch by epoch: see Loader; LoaderOptions has the parameters."""
        return Loader(self, **options)

    def table(
        self, *, columns: Sequence[str] | None = None, transform: Callable[[pa.RecordBatch], Any] | None = None
    ) -> Table:
        """The table as a map-style dataset: rows by index, in any order."""
        return Table(self, columns=columns, transform=transform)

    def ask(self, request: Mapping[str, Any], stop: Stop | None = None) -> Answer:
        """The head's answer to a CMD descriptor (docs/contract.md), waiting while the cache loads or restarts.

        stop, once set, ends the waiting.
        """
        descriptor = fl.FlightDescriptor.for_command(json.dumps({"v": 1, **request}).encode())
        answer = Answer.parse(self._try(lambda: self._get_flight_info(descriptor, stop), stop))
        described = self._described
        if described is not None and described.dataset != answer.dataset:
            self._described = None  # what is made from now on, is made for what is served now
        return answer

    def register(self, reader: Reader) -> None:
        """Closes the reader with the cache, and before the interpreter ends."""
        self._readers.add(reader)

    def connect(self, location: str) -> fl.FlightClient:
        """The connection over gRPC to one server; it is the cache's and closed with it."""
        fork.guard()
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            if location not in self._clients:
                own = self._credentials.flight()
                self._clients[location] = fork.keep(fl.connect(location, generic_options=_CHANNEL, **own))
            return self._clients[location]

    def stream(self, location: str, ticket: bytes, batch_bytes: int) -> Chunks:
        """A reader of one DoGet stream, opened by its first read. Reads raise codes.FAULTS.

        batch_bytes: about how long the batches of an epoch should be; a server may make others. It may be two of them
        ahead of the reads, or 64 KiB.
        """
        headers = ((_BATCH_BYTES, str(batch_bytes)),)

        def by_grpc() -> Chunks:
            return fork.keep(self.connect(location).do_get(fl.Ticket(ticket), self._call_options(location, headers)))

        if self._by_grpc(location):
            return by_grpc()
        own, window = self._credentials, 2 * batch_bytes
        return h2.Reader(location, ticket, headers=headers, window=window, credentials=own, other=by_grpc)

    def exchange(self, location: str, ticket: bytes) -> Calls:
        """An open DoExchange with a data node, for rows by index. Raises codes.FAULTS."""
        if self._by_grpc(location):
            return GrpcExchange(self.connect(location), ticket, self._call_options(location))
        return h2.Exchange(location, ticket, REQUEST, credentials=self._credentials)

    def _by_grpc(self, location: str) -> bool:
        return self._transport == "grpc" or not location.startswith(_SCHEMES)

    def _call_options(
        self, location: str, headers: Iterable[tuple[str, str]] = (), seconds: float | None = None
    ) -> fl.FlightCallOptions:
        sent = [(name.encode(), value.encode()) for name, value in (*self._credentials.headers(location), *headers)]
        return fl.FlightCallOptions(headers=sent, timeout=seconds)

    def _get_flight_info(self, descriptor: fl.FlightDescriptor, stop: Stop | None) -> fl.FlightInfo:
        if self._by_grpc(self.endpoint):
            return self.connect(self.endpoint).get_flight_info(
                descriptor, self._call_options(self.endpoint, seconds=_ASK_SECONDS)
            )
        call = h2.Unary(self.endpoint, self._credentials)
        (answer,) = call.run("GetFlightInfo", descriptor.serialize(), seconds=_ASK_SECONDS, stop=stop)
        return fl.FlightInfo.deserialize(answer)

    def _status(self) -> bytes:
        if self._by_grpc(self.endpoint):
            (result,) = self.connect(self.endpoint).do_action(
                "status", self._call_options(self.endpoint, seconds=_ASK_SECONDS)
            )
            return result.body.to_pybytes()
        call = h2.Unary(self.endpoint, self._credentials)
        (answer,) = call.run("DoAction", message.sized(1, b"status"), seconds=_ASK_SECONDS)
        return message.result_body(answer)

    def _try(self, call: Callable[[], Any], stop: Stop | None) -> Any:
        attempts = Attempts(f"ask the head at {self.endpoint}", self.patience, stop)
        while True:
            try:
                return call()
            except FAULTS as error:
                if stop is not None and stop.is_set():
                    raise DataCacheError("closed while the head was asked") from error
                attempts.failed(error)

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._clients: dict[str, fl.FlightClient] = {}
        self._described: Answer | None = None
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        weakref.finalize(self, _close_readers, self._readers, self._process)  # threads must end before the interpreter


def _close_readers(readers: weakref.WeakSet[Reader], process: int) -> None:
    if process == os.getpid():
        for reader in list(readers):
            reader.close()
