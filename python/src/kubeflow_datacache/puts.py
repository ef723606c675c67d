# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts rows into a cache: as a dataset that loaders read like a table."""

from __future__ import annotations

import base64
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import pyarrow as pa
import pyarrow.flight as fl

from kubeflow_datacache.arguments import (
    check_bool,
    check_cache,
    check_choice,
    check_int,
    check_list,
    check_mapping,
    check_text,
)
from kubeflow_datacache.codes import CALL_ERRORS, code_of, reason_of
from kubeflow_datacache.errors import ColumnError, DataCacheError, RefusedError
from kubeflow_datacache.fetch.retry import Attempts
from kubeflow_datacache.monitoring.part_progress import PartProgress
from kubeflow_datacache.threads import DaemonThreads

if TYPE_CHECKING:
    from kubeflow_datacache.cache import DataCache

Mode = Literal["create", "replace"]
Keep = Literal["memory", "disk", "replica"]
Batches = Iterable[pa.RecordBatch | pa.Table]

_BATCH_BYTES: Final = 2 << 20  # of a message: short enough for any server, and for its memory
_PART_BYTES: Final = 64 << 20  # about that many has a part, unless parts= says how many there are
MOST_PARTS: Final = 1 << 16
_PAGE: Final = 1000  # parts in an answer of put.status
_RECEIPTS: Final = 250  # in a message, which may have 128 KiB
_REFUSED: Final = {"ALREADY_EXISTS", "FAILED_PRECONDITION", "UNAUTHENTICATED"}
_SHOWN: Final = 60  # characters of a wrong value in an error
_PANDAS: Final = b"pandas"  # key of the schema's metadata that pandas writes, and that differs between equal rows


@dataclass(frozen=True, kw_only=True)
class Published:
    """A dataset that was put. reference: NAME@FINGERPRINT; either that or the name is DataCache's dataset=.

    existed: it was there already, made by the same recipe, so that nothing was put.
    """

    name: str
    fingerprint: str
    rows: int | None
    existed: bool = False

    @property
    def reference(self) -> str:
        """NAME@FINGERPRINT."""
        return f"{self.name}@{self.fingerprint}"


def put(
    cache: DataCache,
    name: str,
    data: Any,
    *,
    mode: Mode = "create",
    keep: Keep | None = None,
    parts: int | None = None,
    workers: int = 4,
    progress: bool = True,
) -> Published:
    """Puts rows into a cache as a dataset, which `DataCache(..., dataset=name)` reads.

    data: a pyarrow Table, RecordBatch or RecordBatchReader, a frame of pandas or polars, a Dataset of Hugging Face's
    library datasets, anything with __arrow_c_stream__, or an iterable of record batches; what is no table is read into
    memory first (use Put to send parts of rows that don't fit). The cache must run with --puts. All of it becomes
    visible at once; if anything fails, nothing does.

    mode: "create" raises RefusedError if there is a dataset of the name, "replace" replaces it; who reads the old one
    goes on. keep: "disk" has data nodes write the rows to their --spill-dir too, so that a process that restarts reads
    them again, and raises RefusedError if one has none; "memory" does not; "replica" has each part on two data nodes,
    so that the rows survive the loss of one; None is what the cache was started with, or "disk" where there is one.

    parts: the rows are sent in so many numbered parts, `workers` at a time. The fingerprint, and with it what
    checkpoints compare, depends on the rows and on where parts begin, so equal rows need equal parts; by default their
    number follows from the rows. progress: whether to show it on standard error.

    Raises RefusedError with the server's reason, which names the column, ColumnError for a column that can't be put,
    and UnreachableError if servers don't answer for the cache's retry_seconds.
    """
    check_cache(cache)
    check_int("workers", workers, 1)
    check_bool("progress", progress)
    table = _table(data)
    count = parts_of(table) if parts is None else check_int("parts", parts, 1, MOST_PARTS + 1)
    started = Put.begin(cache, name, table.schema, parts=count, nbytes=table.nbytes, mode=mode, keep=keep)
    cuts = [table.num_rows * i // count for i in range(count + 1)]
    try:
        return started.send_all(
            {i: (lambda i=i: [table.slice(cuts[i], cuts[i + 1] - cuts[i])]) for i in range(count)},
            workers=workers,
            progress=progress,
        )
    except Exception:
        started.abort()
        raise
    except BaseException:  # such as Ctrl-C, after which nobody waits for a cache that does not answer
        last = DaemonThreads(1, "datacache-abort")
        last.submit(started.abort)
        last.shutdown()
        raise


class Put:
    """A put that goes on: send numbered parts, from any process, then publish their receipts. Can be pickled."""

    def __init__(self, cache: DataCache, name: str, schema: pa.Schema, parts: int, begun: Mapping[str, Any]) -> None:
        self.name, self.schema, self.parts = name, schema, parts
        self.id: str = begun.get("put", "")
        self.exists: str | None = begun.get("exists")
        self.joined: bool = begun.get("joined", False)
        self._cache, self._ticket, self._nodes = cache, begun.get("ticket", ""), begun.get("nodes", [])

    @classmethod
    def begin(
        cls,
        cache: DataCache,
        name: str,
        schema: pa.Schema,
        *,
        parts: int,
        nbytes: int = 0,
        mode: Mode = "create",
        keep: Keep | None = None,
        recipe: str = "",
        source: str = "",
        ttl_seconds: int = 3600,
    ) -> Self:
        """Begins a put of so many parts, not each of which must be sent.

        recipe, source: what the rows are derived from. If a dataset of the name was made from the same ones, `exists`
        is its fingerprint, and if a put goes on, this one is the same, and `joined` is True. ttl_seconds: after so long
        without a new part the cache gives the put up.
        """
        check_cache(cache)
        if not isinstance(schema, pa.Schema):
            raise TypeError(f"schema = {schema!r}: want a pyarrow Schema")
        plain = plain_schema(schema)
        begun = cache.act(
            "put.begin",
            name=check_text("name", name),
            mode=check_choice("mode", mode, "create", "replace"),
            parts=check_int("parts", parts, 1, MOST_PARTS + 1),
            bytes=check_int("nbytes", nbytes, 0, 1 << 63),
            schema=base64.b64encode(plain.serialize().to_pybytes()).decode(),
            recipe=check_text("recipe", recipe),
            source=check_text("source", source),
            ttl_s=check_int("ttl_seconds", ttl_seconds, 1, 1 << 31),
            **({} if keep is None else {"keep": check_choice("keep", keep, "memory", "disk", "replica")}),
        )
        return cls(cache, name, plain, parts, begun)

    def send(self, part: int, batches: Callable[[], Batches], *, attempt: int = 1) -> str:
        """Sends a part and returns its receipt. It may be sent any number of times, and counts once.

        batches: returns its record batches, or tables; it is called again if the part has to be sent again, and what it
        raises ends the attempt, of which nothing stays. Retries while servers don't answer or have no memory, for the
        cache's retry_seconds.
        """
        check_int("attempt", attempt, 1, 1 << 31)
        (receipt,) = self._send_parts([(part, batches)], 1, attempt=attempt)
        return receipt

    def _try_send(self, part: int, batches: Callable[[], Batches], attempt: int, stop: threading.Event) -> str:
        what = f"put part {part} of {self.name!r}"
        attempts = Attempts(what, self._cache.retry_seconds, stop)
        while True:
            _check(stop)
            try:
                return self._send(part, batches, attempt, stop)
            except _SourceError as error:
                if isinstance(error.cause, ColumnError):
                    raise ColumnError(f"{what}: {error.cause}") from None
                error.cause.add_note(f"in {what}")
                raise error.cause from None
            except CALL_ERRORS as error:
                if code_of(error) in ("FAILED_PRECONDITION", "NOT_FOUND", "UNAUTHENTICATED", "UNAVAILABLE"):
                    self._refresh()
                if code_of(error) in ("INVALID_ARGUMENT", "FAILED_PRECONDITION"):
                    raise RefusedError(f"{what}: {reason_of(error)}") from error
                attempts.failed(error)

    def send_all(
        self, parts: Mapping[int, Callable[[], Batches]], *, workers: int = 4, progress: bool = True
    ) -> Published:
        """Sends parts, so many at a time, and publishes them."""
        return self.publish(self.send_parts(parts, workers=workers, progress=progress))

    def send_parts(
        self, parts: Mapping[int, Callable[[], Batches]], *, workers: int = 4, progress: bool = False
    ) -> list[str]:
        """Sends parts, so many at a time, and returns their receipts.

        If one fails, the others end with their next batch.
        """
        check_mapping("parts", parts, "{0: lambda: [table]}")
        show = check_bool("progress", progress)
        return self._send_parts(list(parts.items()), check_int("workers", workers, 1), show=show)

    def _send_parts(
        self, parts: Sequence[tuple[int, Callable[[], Batches]]], workers: int, *, attempt: int = 1, show: bool = False
    ) -> list[str]:
        for number, batches in parts:
            check_int("part", number, 0, self.parts, "parts")
            if not callable(batches):
                raise TypeError(f"batches of part {number} = {batches!r}: want a function that returns record batches")
        receipts: list[str] = []
        pool, stop = DaemonThreads(workers, "datacache-put"), threading.Event()
        with PartProgress(f"putting {self.name}", len(parts), show=show) as shown:
            running = [pool.submit(self._try_send, number, batches, attempt, stop) for number, batches in parts]
            try:
                for each in running:
                    receipts.append(each.result())
                    shown.done(len(receipts))
            except BaseException:
                stop.set()
                raise
            finally:
                pool.shutdown(cancel_futures=True)
        return receipts

    def publish(self, receipts: Sequence[str] | None = None) -> Published:
        """Publishes the parts of the receipts, all at once; None: the last good attempt of every part that was sent.

        May be called again with the same receipts, with the same result.
        """
        pieces: list[list[str] | None] = [None]
        if receipts is not None:
            given = [check_text("receipts", receipt) for receipt in check_list("receipts", receipts, "receipts")]
            pieces = [given[i : i + _RECEIPTS] for i in range(0, len(given), _RECEIPTS)]
            if not pieces:
                raise ValueError("receipts = []: want those of the parts to publish, or None for all that were sent")
        answer: dict[str, Any] = {}
        for at, piece in enumerate(pieces):
            more = at + 1 < len(pieces)
            answer = self._cache.act(
                "put.publish",
                put=self.id,
                receipts=piece,
                **({"from": at * _RECEIPTS, "more": more} if piece is not None else {}),
            )
        name, _, fingerprint = answer["dataset"].partition("@")
        return Published(name=name, fingerprint=fingerprint, rows=answer["rows"])

    def status(self) -> dict[str, Any]:
        """What the cache has of the put: parts, with rows, bytes and hash, and the numbers of those that it lost.

        With "dataset" once it is published, and "commit" (table, state, and snapshot or reason) once one was begun.
        """
        whole = self._page(0, _PAGE)
        while "next" in whole:
            page = self._page(whole.pop("next"), _PAGE)
            whole = {**page, "parts": whole["parts"] + page["parts"], "lost": whole["lost"] + page["lost"]}
        return whole

    def _page(self, first: int, most: int) -> dict[str, Any]:
        return self._cache.act("put.status", put=self.id, **{"from": first, "most": most})

    def abort(self) -> None:
        """Gives the put up; does nothing if it is published or there is no cache any more."""
        with contextlib.suppress(DataCacheError):  # the cache gives it up after its ttl_seconds
            self._cache.act("put.abort", put=self.id)

    def _refresh(self) -> None:
        """Asks where the data nodes are now."""
        now = self._page(0, 1)
        self._ticket, self._nodes = now["ticket"], now["nodes"]

    def _send(self, part: int, batches: Callable[[], Batches], attempt: int, stop: threading.Event) -> str:
        command = {"v": 1, "kind": "put", "ticket": self._ticket, "part": part, "attempt": attempt}
        node = self._nodes[part * len(self._nodes) // self.parts]
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command).encode())
        writer, results = self._cache.connect(node).do_put(descriptor, self.schema)
        rows, pieces = 0, self._pieces(batches())
        try:
            while (batch := _next(pieces)) is not None:
                _check(stop)
                writer.write_batch(batch)
                rows += batch.num_rows
            # pyarrow ends the stream in the same way when an exception leaves this function
            writer.write_metadata(json.dumps({"rows": rows}).encode())
            writer.done_writing()
            answer = results.read()
        except CALL_ERRORS:
            writer.close()  # raises the server's reason, if there is one
            raise
        except BaseException:
            with contextlib.suppress(*CALL_ERRORS):
                writer.close()
            raise
        writer.close()
        return json.loads(answer.to_pybytes())["receipt"]

    def _pieces(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The rows in batches that servers take."""
        for each in batches:
            for batch in _cast(each, self.schema).to_batches():
                rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
                for at in range(0, batch.num_rows, rows):
                    yield batch.slice(at, rows)


class _SourceError(Exception):
    """What the caller's own batches raised, unlike an error of the call that sends them."""

    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.cause = cause


def _next(pieces: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(pieces, None)
    except Exception as error:
        raise _SourceError(error) from error


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise DataCacheError("the put was given up, as another part failed or the process was interrupted")


def parts_of(table: pa.Table) -> int:
    """In how many parts a table is put: of a power of two of rows each, and about 64 MiB."""
    rows = max(1, table.num_rows)
    each = 1 << max(0, (_PART_BYTES * rows // max(1, table.nbytes)).bit_length() - 1)
    return min(MOST_PARTS, -(-rows // each))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with values in place of dictionaries and strings in place of views, and without pandas' index."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _PANDAS}
    return pa.schema([field.with_type(_plain(field.type)) for field in schema], metadata)


def _plain(dt: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(dt) or pa.types.is_run_end_encoded(dt):
        return _plain(dt.value_type)
    if dt == pa.string_view():
        return pa.large_string()
    if dt == pa.binary_view():
        return pa.large_binary()
    if isinstance(dt, pa.BaseExtensionType):
        return dt
    if pa.types.is_struct(dt):
        return pa.struct([field.with_type(_plain(field.type)) for field in dt])
    if pa.types.is_large_list(dt):
        return pa.large_list(dt.value_field.with_type(_plain(dt.value_type)))
    if pa.types.is_fixed_size_list(dt):
        return pa.list_(dt.value_field.with_type(_plain(dt.value_type)), dt.list_size)
    if pa.types.is_list(dt):
        return pa.list_(dt.value_field.with_type(_plain(dt.value_type)))
    return dt


def _cast(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if table.schema.equals(schema):
        return table
    if table.schema.names != schema.names:
        raise ColumnError(f"columns: {table.schema.names}, the put began with {schema.names}")
    columns: list[Any] = []
    for field in schema:
        column = table[field.name]
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise ColumnError(f"column {field.name!r}: {column.type} can't be put as {field.type}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _table(data: Any) -> pa.Table:
    """The rows as a table."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    module = type(data).__module__.partition(".")[0]
    if module == "datasets" and hasattr(data, "with_format"):
        schema = data.features.arrow_schema
        return pa.concat_tables([schema.empty_table(), *data.with_format("arrow").iter(batch_size=1 << 14)])
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars" and type(data).__name__ == "DataFrame":
        return data.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest())  # pyarrow casts few views
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    try:
        batches = [pa.Table.from_batches([b]) if isinstance(b, pa.RecordBatch) else b for b in data]
    except TypeError:
        batches = []
    if not batches or not all(isinstance(b, pa.Table) for b in batches):
        raise TypeError(
            f"data = {_short(data)}: want a table, a frame of pandas or polars, a Dataset of datasets, or record"
            " batches, at least one of them"
        )
    return pa.concat_tables(batches)
