# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A TLS certificate for loopback servers."""

from __future__ import annotations

from pathlib import Path

import trustme


class Certificate:
    """A loopback certificate from a new CA, as PEM files in a folder.

    flags: cacheserver's flags to use it. files: certificate and key. roots: the PEM for its clients.
    """

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        issued = ca.issue_cert("127.0.0.1")
        cert, key, roots = (folder / f"{name}.pem" for name in ("cert", "key", "ca"))
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        ca.cert_pem.write_to_path(str(roots))
        self.files = [str(cert), str(key)]
        self.flags = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(roots)]
        self.roots = ca.cert_pem.bytes().decode()
