# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A small Arrow Flight client: HTTP/2 (RFC 9113), HPACK (RFC 7541) and the parts of gRPC that Flight needs.

pyarrow's client copies the pieces of each message into new memory. This client receives a message's body directly from
the kernel into the buffer that the record batch, numpy and torch then use.
"""

from kubeflow_datacache.h2.exchange import Exchange
from kubeflow_datacache.h2.reader import Reader
from kubeflow_datacache.h2.shared import Shared
from kubeflow_datacache.h2.unary import UnaryCall

__all__ = ["Exchange", "Reader", "Shared", "UnaryCall"]
