# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""DataCache, the client of a cache."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, get_args
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache import fork, h2, services
from kubeflow_datacache.arguments import (
    check_bool,
    check_int,
    check_mapping,
    check_path,
    check_seconds,
    check_text,
)
from kubeflow_datacache.client import Closable
from kubeflow_datacache.codes import CALL_ERRORS, code_of, permanent_error, reason_of
from kubeflow_datacache.credentials import CredentialOptions, Credentials
from kubeflow_datacache.errors import DataCacheError, DatasetChangedError, RefusedError
from kubeflow_datacache.fetch.exchange import REQUEST, Exchange, GrpcExchange
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.flight_info import FlightInfo
from kubeflow_datacache.h2 import message
from kubeflow_datacache.h2.reader import ChunkReader
from kubeflow_datacache.monitoring.load_progress import wait_ready
from kubeflow_datacache.notebook import html_table
from kubeflow_datacache.order.split import Split
from kubeflow_datacache.selection import Readable, Selection
from kubeflow_datacache.stop import Stop

if TYPE_CHECKING:
    from kubeflow_datacache.local_server import Flag, LocalServer  # needs Linux

Transport = Literal["h2", "grpc"]

_PORT = 50051
_SCHEMES = ("grpc://", "grpc+tcp://", "grpc+tls://")
_ASK_SECONDS = 60.0
_ANSWER_BYTES = 4 << 20  # of an exchange in shared memory; longer ones are sent
_PACKS_WINDOW = 1 << 20
_BATCH_BYTES = "datacache-batch-bytes"  # name of a request header (docs/contract.md, DoGet)
# Servers restart and get new addresses: detect a dead connection and reconnect within seconds.
_CHANNEL = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # a minute by default, whatever keepalive_timeout_ms is
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]


class DataCache(Readable):
    """Client of a cache, given the address of its head. Close it, or use it in a with statement.

    endpoint: "grpc://HOST:PORT" or "grpc+tls://HOST:PORT". dataset: the dataset to read, which somebody put into the
    cache (see put): its name, or NAME@FINGERPRINT; None is the cache's table. By its name, this object reads the
    version that is the newest at its first request, also after that was replaced. retry_seconds: how long to wait for
    servers that do not answer, or whose load makes no progress, before raising UnreachableError; a rejected
    certificate, or TLS on one side only, raises RefusedError at once. credentials: see CredentialOptions. transport:
    "h2" is this package's own client; "grpc" is pyarrow's and needs about twice the CPU. Both return the same rows.
    With "grpc", close() waits at most 2 s for a server that does not answer, and the thread that made the call may go
    on for up to a minute. Connections are direct: http_proxy and grpc_proxy are ignored. narrow: whether integers are
    sent in the shortest types that the table's values fit in, where the cache offers that; batches have the table's
    types anyway.

    Connects on first use. Safe for concurrent use. Pickling keeps the settings only. A forked child may use the cache,
    its loaders and its tables; they open connections of their own. In the child, iterators that the parent started
    raise ForkedError, and so does every new gRPC connection if the parent had connected before. close() in the child
    does not affect the parent.
    """

    _server: LocalServer | None = None  # started by local()

    def __init__(
        self,
        endpoint: str,
        *,
        dataset: str | None = None,
        retry_seconds: float = 300.0,
        transport: Transport = "h2",
        narrow: bool = True,
        **credentials: Unpack[CredentialOptions],
    ) -> None:
        _check_endpoint(endpoint)
        if transport not in get_args(Transport):
            raise ValueError(f"transport = {transport!r}: want one of {', '.join(get_args(Transport))}")
        self.endpoint = endpoint
        self._name = None if dataset is None else check_text("dataset", dataset)
        self.retry_seconds = check_seconds("retry_seconds", retry_seconds)
        self._credentials, self._transport = Credentials.of(credentials), transport
        self._narrow = check_bool("narrow", narrow)
        self._reset()

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        name: str | None = None,
        dataset: str | None = None,
        retry_seconds: float = 300.0,
        **credentials: Unpack[CredentialOptions],
    ) -> Self:
        """The cache at DATACACHE_ENDPOINT, or else the cache of the TrainJob named by TRAIN_JOB_NAME.

        name: which one, if the TrainJob's storageUri names several: its name as written there, "code" or
        "team-b/books". None is the first one. With a name, the address is that of DATACACHE_ENDPOINT_CODE or
        DATACACHE_ENDPOINT_TEAM_B_BOOKS, if that is set.

        dataset: as in DataCache; None is the one that the TrainJob's storageUri names. DATACACHE_TRANSPORT selects the
        transport. Credentials that are not passed as arguments come from the environment: DATACACHE_TLS_ROOTS,
        DATACACHE_TLS_CERTIFICATE, DATACACHE_TLS_KEY and DATACACHE_TOKEN_FILE are paths of files, and
        DATACACHE_TLS_HOSTNAME is a host name. If roots, a certificate or a host name are set, TLS is used, unless
        DATACACHE_ENDPOINT has another scheme. environ: read in place of the process's environment.

        A cache that takes known readers needs no options: where admission has put the cache's CA and a token into the
        container (/var/run/secrets/datacache), or DATACACHE_CREDENTIALS names a folder with ca.crt and token (with a
        name, DATACACHE_CREDENTIALS_CODE), they are used, and nothing is sent or read in plain text.
        """
        environ = os.environ if environ is None else environ
        check_mapping("environ", environ, "os.environ")
        if name is not None:
            check_text("name", name)
        endpoint, host = services.locate(environ, name)
        folder, named = services.credentials_folder(environ, name)
        found = Credentials.in_folder(folder, wanted=named)
        own = Credentials.options_from(environ, {**found, **credentials})
        if found and endpoint.startswith(("grpc://", "grpc+tcp://")):
            raise ValueError(
                f"DATACACHE_ENDPOINT = {endpoint!r}: it is plain text, and {folder} has the CA of the cache, so that it"
                " is reached by TLS: write grpc+tls://"
            )
        scheme = "grpc+tls" if Credentials.of(own).uses_tls else "grpc"
        transport: Any = environ.get("DATACACHE_TRANSPORT") or "h2"
        return cls(
            endpoint or f"{scheme}://{host}:{_PORT}",
            dataset=dataset or services.dataset_of(folder, name),
            retry_seconds=retry_seconds,
            transport=transport,
            **own,
        )

    @classmethod
    def local(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        dataset: str | None = None,
        shared: bool = False,
        progress: bool = True,
        retry_seconds: float = 30.0,
        program: str | os.PathLike[str] | None = None,
        **flags: Flag,
    ) -> Self:
        """A cache on this machine, loaded: starts the server, and waits with a progress bar. For notebooks and laptops.

        path: the metadata file of an Iceberg table, or a folder, glob or file of Parquet files; a path or URI. None is
        no table: with puts=True, put() then brings the rows. Needs Linux and pip install 'kubeflow-datacache[server]',
        or the program cacheserver on PATH or as `program`. flags: those of cacheserver local (docs/reference), as
        columns=["content", "label"], filter="label >= 1", nodes=2, memory_limit="4Gi". progress: whether to show the
        load on standard error.

        The server ends when this cache is closed, or with this process, also with a killed one; forked children may go
        on to use it and keep it alive. shared: whether all processes of this user on this machine that name the same
        table and flags use one server, which ends with the last of them.

        Raises CacheFailedError if the table cannot be loaded, and ValueError for a flag that the server rejects.
        """
        from kubeflow_datacache.local_server import LocalServer, find_program, flags_of, table_flag

        check_bool("shared", shared)
        check_bool("progress", progress)
        check_seconds("retry_seconds", retry_seconds)
        if dataset is not None:
            check_text("dataset", dataset)
        for name in ("listen", "http"):
            if name in flags:
                raise ValueError(f"{name} = {flags[name]!r}: leave it out: a local cache has free ports, see .endpoint")
        table = [] if path is None else [table_flag(check_path("path", path))]
        found = find_program() if program is None else os.path.realpath(check_path("program", program))
        if not os.access(found, os.X_OK):
            raise ValueError(f"program = {program!r}: there is no such program")
        server = LocalServer(found, [*table, *flags_of(flags)], shared=shared)
        try:
            first = cls(server.endpoint, retry_seconds=1.0)
            wait_ready(lambda: server.watched(first.status), math.inf, progress=progress)
        except BaseException:
            server.close()
            raise
        own = cls(server.endpoint, dataset=dataset, retry_seconds=retry_seconds)
        own._server = server
        return own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataCache({self.endpoint!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("endpoint", "_name", "retry_seconds", "_credentials", "_transport", "_narrow")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def close(self) -> None:
        """Closes the cache's loaders, tables and connections. Using the cache again opens new connections, unless it is
        a local() one, whose server ends."""
        if self._process != os.getpid():  # a forked child: the connections and readers belong to the parent
            self._reset()
        for reader in list(self._readers):
            reader.close()
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        self._shared.close()
        if self._server is not None:
            self._server.close()

    @property
    def described(self) -> FlightInfo:
        """The description of all rows, requested once."""
        if self._described is None:
            self._described = self.get_flight_info({"kind": "take"})
        return self._described

    def select(self, *, filter: str | None = None, split: Split | None = None) -> Selection:
        """The rows for which `filter` is true, and of those the ones in `split`; see Readable.select."""
        return Selection(self, filter=filter, split=split)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the address, and the dataset and columns if they are cached already. Never connects."""
        shown = [("endpoint", self.endpoint)]
        if (known := self._described) is not None:
            dataset = known.dataset
            shown += [("rows", f"{dataset.rows:,}"), ("snapshot", str(dataset.snapshot))]
            shown += [(f"column {field.name}", str(field.type)) for field in known.schema]
        return html_table("DataCache", shown)

    def status(self) -> dict[str, Any]:
        """The head's status: state, reason, rows, bytes, splits and data nodes (docs/contract.md, /status)."""
        return json.loads(self._try(lambda: self._action("status"), None))

    def sizing(self, *, ranks: int, rate: float) -> dict[str, Any]:
        """What the cache takes, by measurements, while `ranks` ranks read `rate` bytes a second each.

        data_nodes; node_memory of each and head_memory, in bytes; cores of all data nodes together; connections, if
        each rank reads from all data nodes. As `cacheserver inspect` prints, which needs no cache that runs.
        """
        asked = {"ranks": check_int("ranks", ranks, 1), "rate": round(rate)}
        return json.loads(self._try(lambda: self._action("sizing", json.dumps(asked).encode()), None))

    def wait(self, *, progress: bool = False, early: bool = False) -> dict[str, Any]:
        """Waits until the cache is loaded and returns its status. Readers also wait on their own, but show no progress.

        early: only until rows can be read, which may be before all are loaded.
        progress: whether to show the loaded splits and rows on standard error, with tqdm's bar in a terminal or
        notebook, and in a log as one line every ten seconds. Raises CacheFailedError if the load fails, and
        UnreachableError if no more rows are loaded for retry_seconds.
        """
        return dict(wait_ready(self.status, self.retry_seconds, progress=progress, early=early))

    def get_flight_info(
        self, request: Mapping[str, Any], stop: Stop | None = None, attempts: Attempts | None = None
    ) -> FlightInfo:
        """Calls GetFlightInfo with a CMD descriptor (docs/contract.md). Retries while the cache loads or restarts.

        If the cache knows its rows before they are loaded, it is answered then, unless the request has "early": False.
        Setting `stop` ends the retries. attempts: those of an operation that this call is part of. The request is for
        the job of TRAIN_JOB_NAME, unless it names another.
        """
        asked = dict(request)
        early = asked.pop("early", True)

        def call() -> fl.FlightInfo:
            try:
                return self._ask(asked, stop, early=early)
            except CALL_ERRORS as error:
                # another table than the one of the mixture's part, or a dataset that was replaced a while ago
                if code_of(error) == "FAILED_PRECONDITION" or (self._pinned and code_of(error) == "NOT_FOUND"):
                    raise DatasetChangedError(f"the cache at {self.endpoint}: {reason_of(error)}") from error
                raise

        answer = FlightInfo.parse(self._try(call, stop, attempts))
        answer = answer if self._narrow else replace(answer, narrow=False)
        described, whole = self._described, "filter" not in request and "split" not in request
        if self._name is not None and whole:
            self._pinned = f"{self._name.partition('@')[0]}@{answer.dataset.fingerprint}"
        if described is not None and whole and described.dataset != answer.dataset:
            self._described = None  # request it again for loaders and tables created from now on
        return answer

    def read_packs(
        self, request: Mapping[str, Any], stop: Stop | None = None
    ) -> tuple[pa.RecordBatch, dict[str, Any]] | None:
        """Asks the head for packs (docs/contract.md); None if it does not plan windows of so many rows. Retries while
        the cache restarts. Setting `stop` ends the call."""
        stop = stop or Stop()

        def call() -> tuple[pa.RecordBatch, dict[str, Any]] | None:
            reader = self._head_reader(self._command(request))
            with stop.cancelling(reader.cancel):
                try:
                    batch, about = reader.read_chunk()
                    with contextlib.suppress(StopIteration):
                        reader.read_chunk()
                except CALL_ERRORS as error:
                    if code_of(error) == "FAILED_PRECONDITION":
                        return None
                    raise
            assert about is not None
            return batch, json.loads(about.to_pybytes())

        return self._try(call, stop)

    def act(self, action: str, **fields: Any) -> dict[str, Any]:
        """Calls an action of the head about puts (docs/contract.md), which has these fields. Retries while the cache
        loads or restarts. Raises RefusedError with the head's reason."""

        def call() -> bytes:
            try:
                return self._action(action, json.dumps({"v": 1, **fields}).encode())
            except CALL_ERRORS as error:
                if code_of(error) in ("FAILED_PRECONDITION", "ALREADY_EXISTS"):
                    raise RefusedError(f"{self.endpoint}: {reason_of(error)}") from error
                raise

        return json.loads(self._try(call, None))

    def _command(self, request: Mapping[str, Any]) -> bytes:
        """A command of JSON; the request is for the job of TRAIN_JOB_NAME, unless it names another."""
        own = {"job": job} if (job := services.job_name(os.environ)) else {}
        if self._name is not None:
            own["dataset"] = self._pinned or self._name
        return json.dumps({"v": 1, **own, **request}).encode()

    def register(self, reader: Closable) -> None:
        """Registers a reader that close() and the end of the interpreter will close."""
        self._readers.add(reader)

    def connect(self, location: str) -> fl.FlightClient:
        """The cached gRPC connection to a server; close() closes it."""
        fork.record_connection()
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            if location not in self._clients:
                own = self._credentials.flight_arguments()
                self._clients[location] = fork.protect(fl.connect(location, generic_options=_CHANNEL, **own))
            return self._clients[location]

    def stream(self, location: str, ticket: bytes, batch_bytes: int, ahead_bytes: int = 0) -> ChunkReader:
        """A reader of one DoGet stream; its first read opens the stream. Reads raise codes.CALL_ERRORS.

        batch_bytes: the wanted size of an epoch's batches; a server may choose another. The server may send two such
        batches, or 64 KiB, ahead of the reads. ahead_bytes: about how much the reader keeps of what it has read.
        """
        headers = ((_BATCH_BYTES, str(batch_bytes)),)

        def by_grpc() -> ChunkReader:
            options = fl.FlightCallOptions(headers=[(name.encode(), value.encode()) for name, value in headers])
            return fork.protect(self.connect(location).do_get(fl.Ticket(ticket), options))

        if self._by_grpc(location):
            return by_grpc()
        own, window = self._to_nodes, 2 * batch_bytes
        wanted = self._shared.wanted(batch_bytes, ahead_bytes)
        return h2.Reader(
            location, ticket, headers=headers, window=window, shared=wanted, credentials=own, other=by_grpc
        )

    def exchange(self, location: str, ticket: bytes) -> Exchange:
        """Opens a DoExchange call with a data node, to fetch rows by index. Raises codes.CALL_ERRORS."""
        if self._by_grpc(location):
            return GrpcExchange(self.connect(location), ticket, fl.FlightCallOptions())
        wanted = self._shared.wanted(_ANSWER_BYTES, 0)
        return h2.Exchange(location, ticket, REQUEST, shared=wanted, credentials=self._to_nodes)

    def _by_grpc(self, location: str) -> bool:
        return self._transport == "grpc" or not location.startswith(_SCHEMES)

    def _options(self) -> fl.FlightCallOptions:
        """The options of a call to the head."""
        sent = [(name.encode(), value.encode()) for name, value in self._credentials.headers(self.endpoint)]
        return fl.FlightCallOptions(headers=sent, timeout=_ASK_SECONDS)

    def _head_reader(self, ticket: bytes) -> ChunkReader:
        """A reader of a stream of the head."""

        def by_grpc() -> ChunkReader:
            return fork.protect(self.connect(self.endpoint).do_get(fl.Ticket(ticket), self._options()))

        if self._by_grpc(self.endpoint):
            return by_grpc()
        return h2.Reader(self.endpoint, ticket, window=_PACKS_WINDOW, credentials=self._credentials, other=by_grpc)

    def _ask(self, asked: Mapping[str, Any], stop: Stop | None, *, early: bool) -> fl.FlightInfo:
        """The answer of a cache that is ready or, if it may be early, of one that loads and knows its rows."""
        try:
            return self._call_get_flight_info(asked, stop)
        except CALL_ERRORS as error:
            if not early or code_of(error) != "UNAVAILABLE" or permanent_error(error) is not None:
                raise
            try:
                return self._call_get_flight_info({**asked, "early": True}, stop)
            except CALL_ERRORS as second:
                if code_of(second) != "INVALID_ARGUMENT":
                    raise
                raise error from second  # the head is of a release without the field: the cache loads

    def _call_get_flight_info(self, asked: Mapping[str, Any], stop: Stop | None) -> fl.FlightInfo:
        descriptor = fl.FlightDescriptor.for_command(self._command(asked))
        if self._by_grpc(self.endpoint):
            return self.connect(self.endpoint).get_flight_info(descriptor, self._options())
        call = h2.UnaryCall(self.endpoint, self._credentials)
        (answer,) = call.run("GetFlightInfo", descriptor.serialize(), seconds=_ASK_SECONDS, stop=stop)
        return fl.FlightInfo.deserialize(answer)

    def _action(self, name: str, body: bytes = b"") -> bytes:
        if self._by_grpc(self.endpoint):
            (result,) = self.connect(self.endpoint).do_action(fl.Action(name, body), self._options())
            return result.body.to_pybytes()
        call = h2.UnaryCall(self.endpoint, self._credentials)
        (answer,) = call.run("DoAction", message.action(name, body), seconds=_ASK_SECONDS)
        return message.result_body(answer)

    def _try(self, call: Callable[[], Any], stop: Stop | None, attempts: Attempts | None = None) -> Any:
        if attempts is None:
            attempts = Attempts(f"ask the head at {self.endpoint}", self.retry_seconds, stop, from_now=True)
        while True:
            try:
                return call()
            except CALL_ERRORS as error:
                if stop is not None and stop.is_set():
                    raise DataCacheError("closed while the head was asked") from error
                if code_of(error) == "UNAUTHENTICATED" and "expired" not in reason_of(error):
                    raise RefusedError(f"{self.endpoint}: {reason_of(error)}") from error
                attempts.failed(error)

    def _reset(self) -> None:
        self._to_nodes = self._credentials.without_token()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._clients: dict[str, fl.FlightClient] = {}
        self._shared = h2.Shared()
        self._described: FlightInfo | None = None
        self._pinned: str | None = None  # the dataset with its fingerprint
        self._readers: weakref.WeakSet[Closable] = weakref.WeakSet()
        # threads must end before the interpreter does
        weakref.finalize(self, _close_readers, self._readers, self._process)


def _check_endpoint(endpoint: Any) -> None:
    if not isinstance(endpoint, str):
        raise TypeError(f'endpoint = {endpoint!r}: want the address of the cache as text, "grpc://HOST:PORT"')
    try:
        address = urlsplit(endpoint)
        right = endpoint.startswith(_SCHEMES) and bool(address.hostname) and bool(address.port)
    except ValueError:  # the port is no number, or too large
        right = False
    if not right:
        raise ValueError(f"endpoint = {endpoint!r}: want grpc://HOST:PORT or grpc+tls://HOST:PORT")


def _close_readers(readers: weakref.WeakSet[Closable], process: int) -> None:
    if process == os.getpid():
        for reader in list(readers):
            reader.close()
