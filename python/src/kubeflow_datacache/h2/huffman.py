# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoder of HPACK's Huffman code (RFC 7541, appendix B)."""

from __future__ import annotations

from typing import Final

from kubeflow_datacache.h2.errors import ProtocolError

_END: Final = 256  # the end-of-string symbol, which must not occur; padding is a prefix of its code
# Code length in bits of each symbol 0 to 256, in hex. The code is canonical: the lengths determine it.
_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b0806060605050506"
    "06060606060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f05060506050606"
    "060507070606060506070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617"
    "1617171816151416161717151716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a1819"
    "13151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)


def _symbols() -> dict[tuple[int, int], int]:
    """Maps (bits, code) to symbols: codes count up in order of length, then of symbol."""
    found: dict[tuple[int, int], int] = {}
    code = before = 0
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(_LENGTHS)):
        code <<= bits - before
        found[bits, code] = symbol
        code, before = code + 1, bits
    return found


_SYMBOLS: Final = _symbols()


def decode(coded: bytes) -> bytes:
    """Decodes a Huffman-coded string."""
    out = bytearray()
    bits = code = 0
    for byte in coded:
        for shift in range(7, -1, -1):
            bits, code = bits + 1, code << 1 | byte >> shift & 1
            symbol = _SYMBOLS.get((bits, code))
            if symbol is None:
                continue
            if symbol == _END:
                raise ProtocolError("HPACK: a string holds the end-of-string symbol")
            out.append(symbol)
            bits = code = 0
    if bits > 7 or code != (1 << bits) - 1:
        raise ProtocolError("HPACK: a Huffman-coded string ends in the middle of a symbol")
    return bytes(out)
