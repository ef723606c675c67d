# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cache that takes known readers only: the loader finds token and CA, and never speaks plain text."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self, get_args

import pytest
import trustme
from kit.deadline import limit
from server import Cache, Caches
from small import ROWS, small_table

from kubeflow_datacache import DataCache, RefusedError, UnreachableError, World, services
from kubeflow_datacache.cache import Transport
from readers import AUDIENCE, STATIC, Readers

TRANSPORTS = get_args(Transport)
NAMED = "team-b/books"


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Readers:
    """The CA, rules and tokens of a cache."""
    return Readers(tmp_path_factory.mktemp("readers"))


@pytest.fixture(scope="module")
def known(server: Path, readers: Readers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A cache that takes known readers only."""
    folder = tmp_path_factory.mktemp("known")
    caches = Caches(server, folder / "logs")
    cache = caches.start(["--metadata", small_table(folder, ROWS).metadata], env=readers.env)
    cache.wait("Ready")
    yield cache
    cache.stop()


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The place of the folders of credentials in a training container."""
    monkeypatch.setattr(services, "FOLDER", tmp_path)
    return tmp_path


def fill(folder: Path, readers: Readers, token: str = STATIC) -> Path:
    """Writes what admission mounts."""
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(readers.roots)
    (folder / "token").write_text(token + "\n")
    return folder


def environ(cache: Cache, **more: str) -> dict[str, str]:
    """The environment of a training container whose cache has this address."""
    return {"TRAIN_JOB_NAME": "train", "DATACACHE_ENDPOINT": cache.endpoint.replace("grpc://", "grpc+tls://"), **more}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_loader_finds_token_and_ca(known: Cache, readers: Readers, mounted: Path, transport: Transport) -> None:
    fill(mounted / "own", readers, readers.token(audience=f"{AUDIENCE}/trainjobs/train"))
    with DataCache.from_env(environ(known, DATACACHE_TRANSPORT=transport)) as cache:
        table = pickle.loads(pickle.dumps(cache)).table(columns=["id"])
        assert table[7] == {"id": 7}
        loader = cache.loader(seed=1, global_batch_size=10, tail="keep", columns=["id"], world=World(0, 1))
        assert sorted(i for step in loader for i in step["id"].to_pylist()) == list(range(ROWS))
    assert "job=team-a/train" in known.log("local")


def test_the_address_is_by_tls_where_a_ca_is(readers: Readers, mounted: Path) -> None:
    assert DataCache.from_env({"TRAIN_JOB_NAME": "train"}).endpoint == "grpc://train-cache-service:50051"
    fill(mounted / "own", readers)
    assert DataCache.from_env({"TRAIN_JOB_NAME": "train"}).endpoint == "grpc+tls://train-cache-service:50051"
    fill(mounted / services.service_name("x", NAMED).rpartition("-")[2], readers)
    named = DataCache.from_env({"TRAIN_JOB_NAME": "train"}, name=NAMED)
    assert named.endpoint.startswith("grpc+tls://train-cache-service-")
    (mounted / "own" / "ca.crt").unlink()  # a cache without known readers: the ConfigMap is optional
    assert DataCache.from_env({"TRAIN_JOB_NAME": "train"}).endpoint == "grpc://train-cache-service:50051"


def test_a_plain_address_is_refused_where_a_ca_is(known: Cache, readers: Readers, mounted: Path) -> None:
    fill(mounted / "own", readers)
    with pytest.raises(ValueError, match=rf"DATACACHE_ENDPOINT = '{known.endpoint}': .*{mounted}/own has the CA"):
        DataCache.from_env({"DATACACHE_ENDPOINT": known.endpoint})


@pytest.mark.parametrize("missing", ["ca.crt", "token"])
def test_missing_files_raise_at_construction(readers: Readers, mounted: Path, missing: str) -> None:
    folder = fill(mounted / "own", readers)
    (folder / missing).unlink()
    message = rf"own/{missing}: No such file or directory: .*admission adds both.*kubectl datacache login"
    with pytest.raises(ValueError, match=message):
        DataCache.from_env({"TRAIN_JOB_NAME": "train", "DATACACHE_CREDENTIALS": str(folder)})
    (folder / missing).write_text("\n")
    with pytest.raises(ValueError, match=rf"own/{missing}: it is empty"):
        DataCache.from_env({"TRAIN_JOB_NAME": "train", "DATACACHE_CREDENTIALS_TEAM_B_BOOKS": str(folder)}, name=NAMED)
    shutil.rmtree(folder)
    assert DataCache.from_env({"TRAIN_JOB_NAME": "train"}).endpoint.startswith("grpc://")


def test_a_ca_without_token_raises_at_construction(readers: Readers, mounted: Path) -> None:
    (fill(mounted / "own", readers) / "token").unlink()
    with pytest.raises(ValueError, match="own/token: No such file"):
        DataCache.from_env({"TRAIN_JOB_NAME": "train"})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("namespace", "audience", "message"),
    [
        ("team-c", AUDIENCE, "team-c/default may not read this cache: ask its owner"),
        ("team-a", AUDIENCE.replace("reviews", "books"), "token is for books, not reviews"),
    ],
)
def test_who_may_not_read_is_told_at_once(
    known: Cache, readers: Readers, mounted: Path, transport: Transport, namespace: str, audience: str, message: str
) -> None:
    fill(mounted / "own", readers, readers.token(namespace, audience))
    with (
        DataCache.from_env(environ(known, DATACACHE_TRANSPORT=transport), retry_seconds=1e9) as cache,
        pytest.raises(RefusedError, match=message),
    ):
        cache.table()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_plain_text_is_told_at_once(known: Cache, mounted: Path, transport: Transport) -> None:
    assert not list(mounted.iterdir())
    with (
        DataCache(known.endpoint, transport=transport, retry_seconds=1e9) as cache,
        pytest.raises(RefusedError, match=r"takes known readers over TLS: .*kubectl datacache login reviews"),
    ):
        cache.table()


def test_a_renewed_token_is_used_for_the_next_call(known: Cache, readers: Readers, mounted: Path) -> None:
    folder = fill(mounted / "own", readers)
    with DataCache.from_env(environ(known)) as cache:
        assert cache.status()["state"] == "Ready"
        fill(folder, readers, "revoked")
        with pytest.raises(RefusedError, match="not valid here"):
            cache.status()
        fill(folder, readers, readers.token())
        assert cache.status()["state"] == "Ready"


def test_another_ca_is_refused_until_the_file_has_it(
    server: Path, readers: Readers, mounted: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Readers(tmp_path_factory.mktemp("other"))
    folder = fill(mounted / "own", readers)
    (folder / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
    caches = Caches(server, mounted / "logs")
    one = caches.start(["--metadata", small_table(mounted, ROWS).metadata], env=other.env)
    try:
        one.wait("Ready")
        with DataCache.from_env(environ(one), retry_seconds=1e9) as cache:
            with pytest.raises(RefusedError, match=r"not accepted: .*SHA-256 of ours \w{16}.*, of the server's \w{16}"):
                cache.status()
            fill(folder, other)
            assert cache.status()["state"] == "Ready"
    finally:
        one.stop()


class Middle:
    """A man in the middle who answers in plain HTTP/2, whatever a client begins with, and keeps what it sends."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.began = threading.Event()  # when something was seen
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # an empty SETTINGS frame
            while piece := client.recv(1 << 16):
                self.seen += piece
                self.began.set()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_is_sent_to_who_answers_in_plain_text(readers: Readers, mounted: Path, transport: Transport) -> None:
    fill(mounted / "own", readers)
    with Middle() as middle:
        environ = {"DATACACHE_ENDPOINT": f"grpc+tls://127.0.0.1:{middle.port}", "DATACACHE_TRANSPORT": transport}
        with (
            DataCache.from_env(environ, retry_seconds=1) as cache,
            pytest.raises((RefusedError, UnreachableError)),
        ):
            cache.status()
        assert middle.began.wait(limit())
    assert middle.seen[0] == 0x16, "the client began with something else than TLS"
    assert STATIC.encode() not in middle.seen
    assert b"status" not in middle.seen
