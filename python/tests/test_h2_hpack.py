# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""HPACK: the examples of RFC 7541, and invalid input."""

from __future__ import annotations

import random

import pytest

from kubeflow_datacache.h2 import hpack, huffman
from kubeflow_datacache.h2.errors import ProtocolError

# RFC 7541, C.4 and C.6.
CODED = {
    "f1e3c2e5f23a6ba0ab90f4ff": "www.example.com",
    "a8eb10649cbf": "no-cache",
    "25a849e95ba97d7f": "custom-key",
    "25a849e95bb8e8b4bf": "custom-value",
    "6402": "302",
    "aec3771a4b": "private",
    "d07abe941054d444a8200595040b8166e082a62d1bff": "Mon, 21 Oct 2013 20:13:21 GMT",
    "9d29ad171863c78f0b97c8e9ae82ae43d3": "https://www.example.com",
    "94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007": (
        "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
    ),
}


@pytest.mark.parametrize(("coded", "text"), list(CODED.items()))
def test_huffman(coded: str, text: str) -> None:
    assert huffman.decode(bytes.fromhex(coded)).decode() == text


@pytest.mark.parametrize(
    ("block", "want"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", [("custom-key", "custom-header")]),  # C.2.1
        ("040c2f73616d706c652f70617468", [(":path", "/sample/path")]),  # C.2.2
        ("100870617373776f726406736563726574", [("password", "secret")]),  # C.2.3
        ("82", [(":method", "GET")]),  # C.2.4
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
        ),  # C.4.1
        ("2088", [(":status", "200")]),  # sets the dynamic table's size to 0, as our SETTINGS require
        ("0f2e00", [("www-authenticate", "")]),  # index 61 in two bytes: 15 + 46
        ("", []),
    ],
)
def test_decoding(block: str, want: list[hpack.Header]) -> None:
    assert hpack.decode(bytes.fromhex(block)) == want


@pytest.mark.parametrize(
    ("block", "want"),
    [
        ("80", "index 0 is in no table"),
        ("be", "index 62 is in no table"),
        ("3fe11f", "grows to 4096 bytes"),
        ("40", "ends 1 bytes early"),
        ("400a63", "ends 9 bytes early"),
        ("ffffffffffffff", "more than 32 bits"),
        ("0084ffffffff", "end-of-string"),
        ("0081fe", "in the middle of a symbol"),
        ("0082ffff", "in the middle of a symbol"),
    ],
)
def test_blocks_that_are_refused(block: str, want: str) -> None:
    with pytest.raises(ProtocolError, match=want):
        hpack.decode(bytes.fromhex(block))


def test_what_is_encoded_is_decoded(rng: random.Random) -> None:
    for length in [0, 1, 126, 127, 128, 255, 16_511, 70_000]:
        fields = [(f"name-{length}", "".join(rng.choices("abc /-%", k=length)))]
        assert hpack.decode(hpack.encode(fields)) == fields
