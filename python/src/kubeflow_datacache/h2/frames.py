# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames (RFC 9113)."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTING: Final = struct.Struct("!HI")
_HEADER: Final = struct.Struct("!HBBBI")  # the length is a 3-byte integer
HEADER_BYTES: Final = _HEADER.size
LARGEST: Final = (1 << 24) - 1  # maximum frame payload, as announced in our SETTINGS
WINDOW: Final = (1 << 31) - 1  # the largest flow-control window
STREAM_BITS: Final = (1 << 31) - 1  # mask of the stream identifier; the highest bit is reserved
FIRST_WINDOW: Final = 65_535  # initial flow-control window
FIRST_LARGEST: Final = 16_384  # initial maximum frame payload, which every peer accepts

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

_HEADER_TABLE_SIZE, _ENABLE_PUSH, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 1, 2, 4, 5
_ERRORS: Final = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    2: "INTERNAL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    4: "SETTINGS_TIMEOUT",
    5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    9: "COMPRESSION_ERROR",
    10: "CONNECT_ERROR",
    11: "ENHANCE_YOUR_CALM",
    12: "INADEQUATE_SECURITY",
    13: "HTTP_1_1_REQUIRED",
}


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Encodes a frame."""
    return len(payload).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + payload


def decode_header(raw: bytes) -> tuple[int, int, int, int]:
    """Decodes the header of a frame: payload length, type, flags and stream."""
    high, low, kind, flags, stream = _HEADER.unpack(raw)
    return high << 8 | low, kind, flags, stream & STREAM_BITS


def client_preface(window: int) -> bytes:
    """The client's first bytes: preface, SETTINGS, and the connection's window, which must exceed FIRST_WINDOW.

    SETTINGS disable the dynamic header table and server push. They set stream windows and frames to the maximum, so
    that our server sends each message as one frame.
    """
    settings = {
        _HEADER_TABLE_SIZE: 0,
        _ENABLE_PUSH: 0,
        _INITIAL_WINDOW_SIZE: WINDOW,
        _MAX_FRAME_SIZE: LARGEST,
    }
    payload = b"".join(_SETTING.pack(name, value) for name, value in settings.items())
    return PREFACE + frame(SETTINGS, 0, 0, payload) + window_update(0, window - FIRST_WINDOW)


def window_update(stream: int, count: int) -> bytes:
    """A WINDOW_UPDATE for a stream, or for the connection as stream 0."""
    return frame(WINDOW_UPDATE, 0, stream, struct.pack("!I", count))


def data(stream: int, payload: bytes, *, last: bool) -> bytes:
    """DATA frames small enough for every peer; `last` sets END_STREAM."""
    parts = [payload[i : i + FIRST_LARGEST] for i in range(0, len(payload), FIRST_LARGEST)] or [b""]
    end = END_STREAM if last else 0
    return b"".join(frame(DATA, end if i == len(parts) - 1 else 0, stream, part) for i, part in enumerate(parts))


def initial_window(settings: bytes) -> int | None:
    """The initial stream window in a SETTINGS payload; None if it is not set."""
    if len(settings) % _SETTING.size:
        return None
    return dict(_SETTING.iter_unpack(settings)).get(_INITIAL_WINDOW_SIZE)


def error_name(code: int) -> str:
    """The name of an error code in RST_STREAM or GOAWAY."""
    return _ERRORS.get(code, f"error {code}")
