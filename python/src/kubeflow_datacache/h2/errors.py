# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exceptions for protocol violations."""

from __future__ import annotations


class ProtocolError(Exception):
    """The server violated HTTP/2, HPACK, gRPC or Flight. The message says how."""


class DictionaryError(Exception):
    """The stream contains dictionaries, which this client cannot decode: pyarrow decodes them only in its own stream
    readers."""
