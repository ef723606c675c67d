# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Client credentials: TLS roots, client certificates and bearer tokens."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import ssl
import tempfile
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, TypedDict
from urllib.parse import urlsplit

from kubeflow_datacache.arguments import check_text
from kubeflow_datacache.errors import RefusedError

Pem = bytes | str | os.PathLike[str]
Token = Callable[[], str] | str | os.PathLike[str]

_ENVIRONMENT: Final = {
    "tls_roots": "DATACACHE_TLS_ROOTS",
    "tls_certificate": "DATACACHE_TLS_CERTIFICATE",
    "tls_key": "DATACACHE_TLS_KEY",
    "tls_hostname": "DATACACHE_TLS_HOSTNAME",
    "token": "DATACACHE_TOKEN_FILE",
}
_TLS: Final = "grpc+tls"
_END: Final = "-----END CERTIFICATE-----"
_SERVER_NAME: Final = "datacache"  # a name of all servers of a cache that has a CA of its own


class CredentialOptions(TypedDict, total=False):
    """Credentials of a DataCache. PEM is given as bytes, as text, or as the path of a file.

    tls_roots: PEM of the certificate authorities to trust; None for those of the operating system. tls_certificate,
    tls_key: PEM of the client certificate (followed by its chain) and of its private key, for servers that require
    client certificates. Files are read again for every connection, so they may be rotated; with transport "grpc", only
    for the first connection to each server. tls_hostname: the host name to verify in server certificates instead of the
    host in the address; the head and the data nodes then share this name. token: a bearer token sent with every call to
    the head ("authorization: Bearer ..."), whose answers admit to the data nodes. Either the path of a file, which is
    read again for every call and so may be rotated, or a function that returns the token (picklable if the cache is
    pickled). Sent over TLS or to loopback addresses only.
    """

    tls_roots: Pem | None
    tls_certificate: Pem | None
    tls_key: Pem | None
    tls_hostname: str | None
    token: Token | None


@dataclass(frozen=True)
class Credentials:
    """Validated CredentialOptions. Tokens and keys are left out of the repr."""

    roots: Pem | None = None
    certificate: Pem | None = field(default=None, repr=False)
    key: Pem | None = field(default=None, repr=False)
    hostname: str | None = None
    token: Token | None = field(default=None, repr=False)

    @classmethod
    def of(cls, options: CredentialOptions) -> Self:
        """Validates options. Raises ValueError or TypeError, naming the option."""
        for name in options:
            if name not in CredentialOptions.__annotations__:
                raise TypeError(f"{name} is no parameter of a DataCache; there are {', '.join(_ENVIRONMENT)}")
        for name in ("tls_roots", "tls_certificate", "tls_key"):
            if not isinstance(value := options.get(name), str | bytes | os.PathLike | None):
                raise TypeError(f"{name}: {type(value).__name__}: want a path, or PEM")
        if (host := options.get("tls_hostname")) is not None:
            check_text("tls_hostname", host)
        token = options.get("token")
        if not (isinstance(token, str | os.PathLike | None) or callable(token)):
            raise TypeError(f"token: {type(token).__name__}: want the path of a file that holds it, or a function")
        own = cls(
            options.get("tls_roots"),
            options.get("tls_certificate"),
            options.get("tls_key"),
            options.get("tls_hostname"),
            options.get("token"),
        )
        if (own.certificate is None) != (own.key is None):
            raise ValueError("tls_certificate and tls_key go together: give both or neither")
        if own.certificate is not None or own.roots is not None:
            own.context()  # raises if a file is not there, or certificate and key do not match
        if own.token is not None and not callable(own.token):
            own._bearer()
        return own

    @staticmethod
    def options_from(environ: Mapping[str, str], given: CredentialOptions) -> CredentialOptions:
        """The given options, and for those not given the values from the environment."""
        told: Any = {name: environ[variable] for name, variable in _ENVIRONMENT.items() if environ.get(variable)}
        own: Any = {name: value for name, value in given.items() if value is not None}
        merged: Any = {**told, **own}
        return merged

    @staticmethod
    def in_folder(folder: Path, *, wanted: bool) -> CredentialOptions:
        """The options for the token and the CA in a folder. None if it has no CA, unless they are wanted.

        Raises ValueError, naming the file and how to get it.
        """
        ca, token = folder / "ca.crt", folder / "token"
        if not wanted and not ca.exists():
            return {}
        for path in (ca, token):
            try:
                empty = not path.read_bytes().strip()
            except OSError as error:
                reason = error.strerror
            else:
                if not empty:
                    continue
                reason = "it is empty"
            raise ValueError(
                f"{path}: {reason}: {folder} should have ca.crt, the CA of the cache, and token, which says who reads."
                " In a TrainJob admission adds both: create the TrainJob anew. Elsewhere write them with"
                ' "kubectl datacache login NAME --dir DIR", and set DATACACHE_CREDENTIALS to DIR'
            )
        return {"tls_roots": ca, "tls_hostname": _SERVER_NAME, "token": token}

    @property
    def uses_tls(self) -> bool:
        """Whether any option implies TLS."""
        return any((self.roots, self.certificate, self.hostname))

    def headers(self, location: str) -> list[tuple[str, str]]:
        """The request headers for a server. Raises RefusedError if a token would be sent without encryption."""
        if self.token is None:
            return []
        address = urlsplit(location)
        if address.scheme != _TLS and not _on_this_machine(address.hostname or ""):
            raise RefusedError(
                f"token: {location} is not reached by TLS, and whoever sees the connection would have it: use grpc+tls://"
            )
        return [("authorization", f"Bearer {self._bearer()}")]

    def context(self) -> ssl.SSLContext:
        """The client's TLS context."""
        roots = _pem("tls_roots", self.roots)
        try:
            context = ssl.create_default_context(cadata=roots.decode() if roots else None)
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"tls_roots{_shown(self.roots)}: want PEM of certificates ({error})") from None
        context.set_alpn_protocols(["h2"])
        if self.certificate is not None and self.key is not None:
            with _file(self.certificate) as certificate, _file(self.key) as key:
                try:
                    context.load_cert_chain(certificate, key)
                except (OSError, ssl.SSLError) as error:
                    raise ValueError(
                        "tls_certificate, tls_key: want PEM of a certificate and of its private key, or the paths of"
                        f" files of them ({getattr(error, 'reason', None) or error.strerror})"
                    ) from None
        return context

    def flight_arguments(self) -> dict[str, Any]:
        """The credentials as keyword arguments of pyarrow.flight.connect."""
        own = {
            "tls_root_certs": _pem("tls_roots", self.roots),
            "cert_chain": _pem("tls_certificate", self.certificate),
            "private_key": _pem("tls_key", self.key),
            "override_hostname": self.hostname,
        }
        return {name: value for name, value in own.items() if value is not None}

    def without_token(self) -> Self:
        """The credentials for data nodes, which admit by the head's tickets."""
        return replace(self, token=None)

    def fingerprint(self) -> str:
        """The SHA-256 of the first trusted certificate; "" if it is not known."""
        with contextlib.suppress(ValueError, OSError):
            if pem := _pem("tls_roots", self.roots):
                return fingerprint_of(ssl.PEM_cert_to_DER_cert(pem.decode().partition(_END)[0] + _END))
        return ""

    def _bearer(self) -> str:
        assert self.token is not None
        if callable(self.token):
            token = self.token()
        else:
            try:
                token = Path(self.token).read_text()
            except (OSError, UnicodeDecodeError) as error:
                # The message leaves the value out, as it may be the token itself.
                reason = error.strerror if isinstance(error, OSError) else "it holds no text"
                raise ValueError(
                    "token: want the path of a file that holds it, or a function that returns it; no such file can be"
                    f" read ({reason})"
                ) from None
        token = token.strip()
        if not token.isascii() or not token.isprintable() or not token:
            raise ValueError("token: want one line of printable ASCII")
        return token


def fingerprint_of(certificate: bytes) -> str:
    """The SHA-256 of a certificate as DER, shortened, as a person compares it."""
    return hashlib.sha256(certificate).hexdigest()[:16]


def _pem(name: str, given: Pem | None) -> bytes | None:
    """The PEM bytes, given as text, bytes or a path."""
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str) and "-----BEGIN" in given:
        return given.encode()
    try:
        return Path(given).read_bytes()
    except OSError as error:
        shown = "" if name == "tls_key" else _shown(given)  # the value may be the key itself
        reason = f"want PEM, or the path of a file of it ({error.strerror})"
        raise ValueError(f"{name}{shown}: {reason}") from None


def _shown(given: Pem | None) -> str:
    return "" if isinstance(given, bytes) or "-----BEGIN" in str(given) else f" = {str(given)!r}"


@contextlib.contextmanager
def _file(pem: Pem) -> Generator[str]:
    """Path of a file with the PEM. PEM given as text or bytes is written to a private temporary file."""
    if not isinstance(pem, bytes) and "-----BEGIN" not in str(pem):
        yield os.fspath(pem)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem if isinstance(pem, bytes) else str(pem).encode())
        file.flush()
        yield file.name


def _on_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
