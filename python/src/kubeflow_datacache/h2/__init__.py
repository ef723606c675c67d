# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Arrow Flight's calls over sockets of our own: HTTP/2 (RFC 9113), HPACK (RFC 7541) and gRPC as far as Flight needs.

pyarrow's client puts every message together from pieces into fresh memory. This one receives a message where it stays:
the body goes from the kernel straight into the buffer that the record batch, and then numpy and torch, look at.
"""

from kubeflow_datacache.h2.exchange import Exchange
from kubeflow_datacache.h2.reader import Reader
from kubeflow_datacache.h2.unary import Unary

__all__ = ["Exchange", "Reader", "Unary"]
