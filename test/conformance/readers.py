# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who reads a cache under test: its CA, its access file, and tokens as a Kubernetes API server signs them."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = "datacache.kubeflow.org/namespaces/team-a/datacaches/reviews"
STATIC = "a-static-token"


class Readers:
    """The CA and the access file of a cache in a folder, and the key that signs tokens of ServiceAccounts."""

    def __init__(self, folder: Path) -> None:
        self._key, self._folder = ec.generate_private_key(ec.SECP256R1()), folder
        self.ca, self.access, self.authority = trustme.CA(), folder / "access.json", folder / "authority.pem"
        self.roots = self.ca.cert_pem.bytes()
        self.authority.write_bytes(self.roots + self.ca.private_key_pem.bytes())
        (folder / "tokens").write_text(f"{STATIC} ops/alice\n")
        self.write()

    @property
    def env(self) -> dict[str, str]:
        """The environment of the servers."""
        return {"TLS_AUTHORITY": str(self.authority), "ACCESS_FILE": str(self.access)}

    def write(self, **changes: Any) -> None:
        """Writes the access file, with changes."""
        point = self._key.public_key().public_numbers()
        key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "k1", "x": _bytes(point.x), "y": _bytes(point.y)}
        rules = {
            "readers": "Known",
            "audiences": [AUDIENCE],
            "namespaces": ["team-a"],
            "issuers": [{"url": ISSUER, "keys": {"keys": [key]}}],
            "tokens": str(self._folder / "tokens"),
        }
        self.access.write_text(json.dumps({**rules, **changes}))

    def token(self, namespace: str = "team-a", audience: str = AUDIENCE, **changes: Any) -> str:
        """A token of a namespace's account "default", with changes of its claims and, as header, of its header."""
        now = int(time.time())
        header = changes.pop("header", {"alg": "ES256", "kid": "k1"})
        claims = {"iss": ISSUER, "sub": f"system:serviceaccount:{namespace}:default", "aud": [audience]}
        claims |= {"iat": now, "nbf": now, "exp": now + 600}
        own = {"namespace": namespace, "serviceaccount": {"name": "default"}, "pod": {"name": "train-0"}}
        text = f"{_json(header)}.{_json({**claims, 'kubernetes.io': own, **changes})}"
        r, s = decode_dss_signature(self._key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_text(r.to_bytes(32) + s.to_bytes(32))}"


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    """The headers of a call with a token."""
    return [(b"authorization", f"Bearer {token}".encode())]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(number: int) -> str:
    return _text(number.to_bytes(32))


def _json(value: Any) -> str:
    return _text(json.dumps(value).encode())
