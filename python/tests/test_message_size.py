# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The message sizes that a feed requests from data nodes."""

from __future__ import annotations

import pytest

from kubeflow_datacache.fetch.feed import batch_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("prefetch", "streams", "readers", "want"),
    [
        pytest.param(48 * MIB, 1, 1, 4 * MIB, id="the longest"),
        pytest.param(48 * MIB, 8, 1, 3 * MIB, id="two for each of eight nodes"),
        pytest.param(48 * MIB, 48, 1, MIB // 2, id="two for each of many nodes"),
        pytest.param(48 * MIB, 0, 1, 4 * MIB, id="an epoch without rows"),
        pytest.param(MIB, 2, 1, MIB // 4, id="little read ahead"),
        pytest.param(1, 1, 1, MIB // 16, id="nothing read ahead"),
        pytest.param(48 * MIB, 2, 100, 256 * MIB // 100, id="a hundred ranks"),
        pytest.param(48 * MIB, 2, 10_000, MIB, id="ten thousand ranks"),
    ],
)
def test_messages_are_as_long_as_bounds_allow(prefetch: int, streams: int, readers: int, want: int) -> None:
    assert batch_bytes(prefetch, streams=streams, readers=readers) == want
