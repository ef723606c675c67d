# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes a gRPC call for each key, a line on standard input, and writes the name of the server that answered.

Argument: the target. TestGRPCClients runs it with grpcio from PyPI, whose xDS client is configured by
GRPC_XDS_BOOTSTRAP.
"""

from __future__ import annotations

import sys

import grpc  # pyright: ignore[reportMissingModuleSource] # in an environment of its own: hack/python/clients.txt


def main() -> None:
    """Answers until the end of standard input."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary("/any/Call")
        for line in sys.stdin:
            key = line.removesuffix("\n")
            metadata = (("datacache-object", key),)
            _, rpc = call.with_call(b"", metadata=metadata, wait_for_ready=True, timeout=120)
            print(dict(rpc.initial_metadata())["peer"], flush=True)


if __name__ == "__main__":
    main()
