# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""nghttp2's h2load, an HTTP/2 client independent of gRPC: many concurrent calls, all answered completely."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from client import Client, path_descriptor
from lake import Made
from server import Cache, Caches, Mode

from kit.deadline import limit

SERVICE = "arrow.flight.protocol.FlightService"
INFOS, STREAMS = 5000, 500
CONNECTIONS, CALLS_A_CONNECTION = 50, 20
# Every batch reports the server's time ("busy_us"); its number of digits changes the length by up to this.
DIGITS = 32


@pytest.fixture
def client(mode: Mode, caches: Caches, table: Callable[[str], Made], connect: Callable[[Cache], Client]) -> Client:
    """A client of the plain table on two nodes."""
    return connect(caches.of(table("plain"), mode=mode))


def h2load(address: str, method: str, message: bytes, folder: Path, calls: int) -> int:
    """Sends the same message `calls` times; returns the bytes of all response messages. Every call must succeed."""
    program = shutil.which("h2load")
    if not program:
        pytest.skip("h2load is not installed (Debian's nghttp2-client)")
    body = folder / "message"
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    command = [program, f"--requests={calls}", f"--clients={min(calls, CONNECTIONS)}"]
    command += [f"--max-concurrent-streams={CALLS_A_CONNECTION}", f"--data={body}"]
    command += ["--header=content-type: application/grpc", "--header=te: trailers"]
    done = subprocess.run(
        [*command, f"http://{address}/{SERVICE}/{method}"], capture_output=True, text=True, timeout=limit(), check=False
    )
    report = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, report
    assert f"{calls} done, {calls} succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout, report
    data = re.search(r"\((\d+)\) data$", done.stdout, re.MULTILINE)
    assert data, report
    return int(data[1])


def test_get_flight_info_many_times_at_once(client: Client, tmp_path: Path) -> None:
    address, message = client.endpoint.removeprefix("grpc://"), path_descriptor(0, 100).serialize()
    # A call that gRPC rejects is a success in HTTP, but has no message.
    one = h2load(address, "GetFlightInfo", message, tmp_path, 1)
    assert one > 0, "GetFlightInfo was refused"
    assert h2load(address, "GetFlightInfo", message, tmp_path, INFOS) == INFOS * one


def test_do_get_many_times_at_once(client: Client, tmp_path: Path) -> None:
    endpoint = client.path(0, 1).endpoints[0]
    address, message = endpoint.locations[0].uri.removeprefix(b"grpc://").decode(), endpoint.ticket.serialize()
    one = h2load(address, "DoGet", message, tmp_path, 1)
    slack = STREAMS * DIGITS
    assert one > slack, "DoGet was refused, or a stream can't be told from the digits of busy_us"
    assert abs(h2load(address, "DoGet", message, tmp_path, STREAMS) - STREAMS * one) <= slack
