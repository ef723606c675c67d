# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A certificate for servers on the loopback."""

from __future__ import annotations

from pathlib import Path

import trustme


class Certificate:
    """A certificate of the loopback from a CA of its own, as PEM files in a folder.

    flags are cacheserver's for it, files those of certificate and key, roots the PEM that its clients need.
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
