# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A client process: reads requests as lines on stdin and answers each with a line of JSON on stdout.

The same client reads all servers: pyarrow's Flight client, chunk by chunk, without converting or keeping anything. The
plain TCP copy is read with recv_into. Our own server is also read by our loader where many clients are measured. Each
request opens new connections; only the calls of a latency request share them.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from contextlib import ExitStack
from typing import Any

import pyarrow.flight as fl

RECEIVE_BYTES = 1 << 20
# A stream that takes longer has failed.
TIMEOUT_SECONDS = 300.0
# Calls before the measured ones, to connect and to load code.
WARM_UP_CALLS = 20


def drain(reader: fl.FlightStreamReader) -> tuple[int, int]:
    """Reads a stream to its end. Returns rows and bytes."""
    rows = size = 0
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return rows, size
        rows += chunk.data.num_rows
        size += chunk.data.nbytes


def read_ticket(request: dict[str, Any]) -> tuple[int, int]:
    """Reads a reference Flight server with one DoGet."""
    limit = fl.FlightCallOptions(timeout=TIMEOUT_SECONDS)
    tls = {"tls_root_certs": request["roots"].encode()} if "roots" in request else {}
    with fl.connect(request["uri"], **tls) as client:
        return drain(client.do_get(fl.Ticket(request["ticket"].encode()), limit))


def read_dataset(request: dict[str, Any]) -> tuple[int, int]:
    """Reads datacache or Trainer's own cache: GetFlightInfo from the head, then all endpoints in order."""
    limit = fl.FlightCallOptions(timeout=TIMEOUT_SECONDS)
    if "path" in request:
        descriptor = fl.FlightDescriptor.for_path(*request["path"])
    else:
        descriptor = fl.FlightDescriptor.for_command(json.dumps(request["command"]).encode())
    rows = size = 0
    tls = {"tls_root_certs": request["roots"].encode()} if "roots" in request else {}
    with fl.connect(request["uri"], **tls) as head:
        info = head.get_flight_info(descriptor, limit)
    for endpoint in info.endpoints:
        with fl.connect(endpoint.locations[0], **tls) as node:
            r, s = drain(node.do_get(endpoint.ticket, limit))
        rows, size = rows + r, size + s
    if info.total_records not in (rows, -1):  # Trainer's own cache does not report bytes
        raise RuntimeError(f"{rows} rows came, {info.total_records} were promised")
    return rows, size


def read_loader(request: dict[str, Any]) -> tuple[int, int]:
    """Reads datacache with its own loader, unshuffled, as Arrow batches. Bytes are rows times the mean row size."""
    from kubeflow_datacache import DataCache, World  # imported here, as other requests do not need it

    rows = 0
    with DataCache(request["uri"], tls_roots=request.get("roots")) as cache:
        world = World(request["rank"], request["world"])
        for batch in cache.loader(global_batch_size=request["global_batch"], shuffle=False, tail="keep", world=world):
            rows += batch.arrow().num_rows
    return rows, round(rows * request["row_bytes"])


def read_tcp(request: dict[str, Any]) -> tuple[int, int]:
    """Reads the plain TCP copy. Returns bytes; there are no rows."""
    host, _, port = request["uri"].removeprefix("tcp://").rpartition(":")
    buffer, size = bytearray(RECEIVE_BYTES), 0
    with socket.create_connection((host, int(port)), TIMEOUT_SECONDS) as connection:
        connection.sendall(f"{request['ticket']}\n".encode())
        while count := connection.recv_into(buffer):
            size += count
    return 0, size


def time_calls(request: dict[str, Any]) -> dict[str, Any]:
    """Requests random small shards. Returns the seconds of each GetFlightInfo and of each DoGet's first batch."""
    total, picks = request["total"], random.Random(request["seed"])
    infos: list[float] = []
    firsts: list[float] = []
    rows = size = 0
    with ExitStack() as stack:
        head = stack.enter_context(fl.connect(request["uri"]))
        nodes: dict[str, fl.FlightClient] = {}
        for _ in range(WARM_UP_CALLS + request["calls"]):
            descriptor = fl.FlightDescriptor.for_path(str(picks.randrange(total)), str(total))
            start = time.perf_counter()
            info = head.get_flight_info(descriptor)
            infos.append(time.perf_counter() - start)
            endpoint = info.endpoints[0]
            location = endpoint.locations[0]
            if location.uri not in nodes:
                nodes[location.uri] = stack.enter_context(fl.connect(location))
            start = time.perf_counter()
            reader = nodes[location.uri].do_get(endpoint.ticket)
            first = reader.read_chunk()
            firsts.append(time.perf_counter() - start)
            r, s = drain(reader)
            rows, size = rows + first.data.num_rows + r, size + first.data.nbytes + s
    return {"rows": rows, "bytes": size, "infos": infos[WARM_UP_CALLS:], "firsts": firsts[WARM_UP_CALLS:]}


def read_after_pause(request: dict[str, Any]) -> tuple[int, int]:
    """Reads a Flight server twice over one connection with a pause in between; only the second DoGet counts."""
    limit = fl.FlightCallOptions(timeout=TIMEOUT_SECONDS)
    with fl.connect(request["uri"]) as client:
        ticket, location = fl.Ticket(request.get("ticket", "").encode()), None
        if "path" in request:
            endpoint = client.get_flight_info(fl.FlightDescriptor.for_path(*request["path"]), limit).endpoints[0]
            ticket, location = endpoint.ticket, endpoint.locations[0]
        with fl.connect(location or request["uri"]) as node:
            drain(node.do_get(ticket, limit))
            time.sleep(request["pause"])
            start = time.perf_counter()
            rows, size = drain(node.do_get(ticket, limit))
    request["wall"] = time.perf_counter() - start
    return rows, size


READERS = {"ticket": read_ticket, "dataset": read_dataset, "loader": read_loader, "tcp": read_tcp}


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    if request["reader"] == "calls":
        return time_calls(request)
    rows, size = (read_after_pause if "pause" in request else READERS[request["reader"]])(request)
    return {"rows": rows, "bytes": size}


def main() -> None:
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        request = json.loads(line)
        try:
            answer: dict[str, Any] = answer_to(request)
        except Exception as error:  # report the error to the parent and continue
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["wall"] = request.get("wall", time.perf_counter() - wall)
        answer["cpu"] = time.process_time() - cpu
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
