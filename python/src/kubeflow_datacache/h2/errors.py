# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a server may do that no server should."""

from __future__ import annotations


class ProtocolError(Exception):
    """The server broke the rules of HTTP/2, HPACK, gRPC or Flight. The message says which."""


class DictionaryError(Exception):
    """A stream has dictionaries, which pyarrow reads in streams of its own alone."""
