# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of caches, selections, mixtures and states are refused at construction, in the user's words."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.deadline import limit
from kit.ports import free_port
from server import Cache, Caches
from small import small_table

from kubeflow_datacache import DataCache, RefusedError, Split, mix


def as_any(value: object) -> Any:
    """Hides a wrong type from the type checker."""
    return value


# fmt: off
REFUSED: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda _: DataCache(None), TypeError, r"endpoint = None: want the address .* \"grpc://HOST:PORT\""),  # pyright: ignore[reportArgumentType]
    (lambda _: DataCache("grpc://host"), ValueError, r"endpoint = 'grpc://host': want grpc://HOST:PORT"),
    (lambda _: DataCache("grpc://:50051"), ValueError, r"want grpc://HOST:PORT"),
    (lambda _: DataCache("grpc://host:99999"), ValueError, r"want grpc://HOST:PORT"),
    (lambda _: DataCache("grpc://a:1", retry_seconds="2"), TypeError, r"retry_seconds = '2': want a number of seconds"),  # pyright: ignore[reportArgumentType]
    (lambda _: DataCache("grpc://a:1", retry_seconds=-2), ValueError, r"retry_seconds = -2: want at least 0"),
    (lambda _: DataCache("grpc://a:1", retry_seconds=float("nan")), ValueError, r"retry_seconds = nan: want"),
    (lambda c: c.loader(global_batch_size=8).load_state_dict("x"), TypeError, r"state = 'x': want what state_dict"),
    (lambda c: c.table().select("id"), TypeError, r"columns = 'id': want a list of names, as \['id'\]"),
    (lambda c: c.table().filter(3), TypeError, r"filter = 3: want a condition"),
    (lambda c: c.table().split(0.9), TypeError, r"split = 0.9: want Split"),
    (lambda _: Split(of=1.0, start=0, stop=1), TypeError, r"of = 1.0: want a whole number"),  # pyright: ignore[reportArgumentType]
    (lambda _: Split(of=2, start="0", stop=1), TypeError, r"start = '0': want a whole number"),  # pyright: ignore[reportArgumentType]
    (lambda _: Split(of=2, start=0, stop=3), ValueError, r"stop = 3: want"),
    (lambda _: Split(of=2, start=0, stop=1, shuffle="no"), TypeError, r"shuffle = 'no': want True or False"),  # pyright: ignore[reportArgumentType]
    (
        lambda c: mix(as_any([c]), global_batch_size=8),
        TypeError,
        r"parts = \[.*\]: want a dict .*\"web\": \(cache, 0.7\)",
    ),
    (lambda c: mix({"a": c}, global_batch_size=8), TypeError, r"parts\['a'\] = DataCache.*: want \(cache, weight\)"),
    (
        lambda c: mix(as_any({"a": (0.5, c)}), global_batch_size=8),
        TypeError,
        r"parts\['a'\] = \(0.5.*: want \(cache, weight\)",
    ),
]


@pytest.fixture(scope="module")
def real(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    """A cache of a small table."""
    folder = tmp_path_factory.mktemp("small")
    caches = Caches(server, folder / "logs")
    try:
        yield caches.of(small_table(folder, 20))
    finally:
        caches.close()


@pytest.mark.parametrize(("make", "kind", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused_at_construction(
    cache: DataCache, make: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(cache)


def test_what_a_streaming_data_loader_does_not_take(cache: DataCache) -> None:
    torch = pytest.importorskip("kubeflow_datacache.torch")
    dataset = torch.StreamingDataset(cache, global_batch_size=8)
    for name, hint in [
        ("shuffle", "it is a parameter of its StreamingDataset"),
        ("drop_last", 'here it is tail="drop"'),
        ("batch_size", "here it is global_batch_size"),
        ("sampler", "no parameter of a StreamingDataLoader"),
    ]:
        with pytest.raises(TypeError, match=f"{name} is .*{hint}"):
            torch.StreamingDataLoader(dataset, **{name: 1})
    with pytest.raises(TypeError, match=r"dataset = DataCache.*: want a StreamingDataset"):
        torch.StreamingDataLoader(cache)
    with pytest.raises(TypeError, match="state = 'x': want what state_dict"):
        torch.StreamingDataLoader(dataset).load_state_dict("x")


def test_a_filter_that_the_cache_does_not_take(real: Cache) -> None:
    with (
        DataCache(real.endpoint, retry_seconds=limit()) as cache,
        pytest.raises(RefusedError, match="unexpected character '~'"),
    ):
        cache.table().filter("x ~ 1")


@pytest.mark.parametrize("transport", ["h2", "grpc"])
def test_the_port_of_http_by_mistake(real: Cache, transport: Any) -> None:
    with (
        DataCache(real.http.replace("http:", "grpc:"), retry_seconds=limit(), transport=transport) as cache,
        pytest.raises(RefusedError, match=r"answers in HTTP/1\.\d.*port of --http.*want the port of --listen, 50051"),
    ):
        cache.status()


def test_nothing_of_the_environment_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "hunter2"
    monkeypatch.setenv("OF_SOMEBODY", secret)
    assert secret not in str(inspect.signature(DataCache.from_env))
    monkeypatch.setenv("DATACACHE_ENDPOINT", f"grpc+tls://127.0.0.1:{free_port()}")
    monkeypatch.setenv("DATACACHE_TLS_CERTIFICATE", str(tmp_path / "none"))
    monkeypatch.setenv("DATACACHE_TLS_KEY", secret)
    with pytest.raises(ValueError, match="tls_") as refused:
        DataCache.from_env()
    assert secret not in str(refused.value)
    monkeypatch.delenv("DATACACHE_TLS_CERTIFICATE")
    with pytest.raises(ValueError, match="go together") as refused:
        DataCache.from_env()
    assert secret not in str(refused.value)
    monkeypatch.delenv("DATACACHE_TLS_KEY")
    cache = DataCache.from_env()
    assert secret not in repr(cache) + str(pickle.dumps(cache))
