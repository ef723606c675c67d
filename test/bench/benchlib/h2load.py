# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""nghttp2's h2load: many clients in one single-threaded process."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow.flight as flight

from benchlib.process import Run, run

PROGRAM = "h2load"
_DO_GET = "arrow.flight.protocol.FlightService/DoGet"
# HTTP/2 window size as a power of two, as large as that of a long-running gRPC client.
_WINDOW_BITS = 24


def installed() -> bool:
    """Whether h2load is installed (Debian's nghttp2-client)."""
    return shutil.which(PROGRAM) is not None


def read(uri: str, path: list[str], connections: int, calls: int, expected: int, folder: Path) -> Run:
    """Reads a shard `calls` times over `connections` connections, one call at a time on each; every response must be
    complete.

    expected: Arrow bytes of the shard, without frames and message headers.
    """
    with flight.connect(uri) as client:
        endpoint = client.get_flight_info(flight.FlightDescriptor.for_path(*path)).endpoints[0]
    ticket = endpoint.ticket.serialize()
    message = folder / "h2load-ticket"
    message.write_bytes(b"\0" + len(ticket).to_bytes(4, "big") + ticket)
    address = endpoint.locations[0].uri.decode().removeprefix("grpc://")
    command = [PROGRAM, f"--requests={calls}", f"--clients={connections}", f"--data={message}"]
    command += [f"--window-bits={_WINDOW_BITS}", f"--connection-window-bits={_WINDOW_BITS}"]
    command += ["--header=content-type: application/grpc", "--header=te: trailers", f"http://{address}/{_DO_GET}"]
    done = run(command)
    data = re.search(r"\((\d+)\) data$", done.output, re.MULTILINE)
    whole = f" {calls} succeeded, 0 failed, 0 errored, 0 timeout" in done.output
    if not whole or data is None or int(data[1]) < calls * expected:
        raise RuntimeError(f"h2load did not get {calls} answers of {expected} bytes or more:\n{done.output}")
    return done
