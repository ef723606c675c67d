# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HPACK (RFC 7541) without the dynamic table, whose size this client's SETTINGS set to 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeflow_datacache.h2 import huffman
from kubeflow_datacache.h2.errors import ProtocolError

Header = tuple[str, str]

# The static table (Appendix A), entries 1 to 61: the name, and the value, if any, after a space.
_TABLE: Final = """\
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204|\
:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate|\
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control|\
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type|\
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|\
last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after|\
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate"""
_STATIC: Final = [("", ""), *((name, value) for name, _, value in (one.partition(" ") for one in _TABLE.split("|")))]
_MOST_BITS: Final = 32  # maximum bits of an integer; no header block needs more


def encode(headers: Iterable[Header]) -> bytes:
    """Encodes a header block, with every field as a literal without indexing."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def decode(block: bytes) -> list[Header]:
    """Decodes a header block. Raises ProtocolError if it is malformed or needs the dynamic table."""
    source, out = _Block(block), list[Header]()
    while source.left:
        first = source.byte()
        if first & 0x80:
            out.append(_static(source.integer(first, 7)))
        elif first & 0xE0 == 0x20:
            if size := source.integer(first, 5):
                raise ProtocolError(f"HPACK: the dynamic table grows to {size} bytes, of which our SETTINGS allow none")
        # literal: with indexing (01), never indexed (0001), or without (0000); all the same without a dynamic table
        else:
            index = source.integer(first, 6 if first & 0x40 else 4)
            name = _static(index)[0] if index else source.text()
            out.append((name, source.text()))
    return out


def _static(index: int) -> Header:
    if not 0 < index < len(_STATIC):
        raise ProtocolError(f"HPACK: index {index} is in no table")
    return _STATIC[index]


def _text(value: str) -> bytes:
    raw = value.encode()
    return _integer(len(raw), 7) + raw


def _integer(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    out, value = [most], value - most
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


class _Block:
    """Reads a header block from start to end."""

    def __init__(self, block: bytes) -> None:
        self._block, self._at = block, 0

    @property
    def left(self) -> int:
        return len(self._block) - self._at

    def byte(self) -> int:
        return self._take(1)[0]

    def integer(self, first: int, bits: int) -> int:
        """Decodes an integer (5.1); the low bits of its first byte are the prefix."""
        value = first & (1 << bits) - 1
        if value < (1 << bits) - 1:
            return value
        for shift in range(0, _MOST_BITS, 7):
            byte = self.byte()
            value += (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
        raise ProtocolError("HPACK: an integer of more than 32 bits")

    def text(self) -> str:
        """Decodes a string (5.2)."""
        first = self.byte()
        raw = self._take(self.integer(first, 7))
        return (huffman.decode(raw) if first & 0x80 else raw).decode("latin-1")

    def _take(self, count: int) -> bytes:
        if count > self.left:
            raise ProtocolError(f"HPACK: a header block ends {count - self.left} bytes early")
        self._at += count
        return self._block[self._at - count : self._at]
