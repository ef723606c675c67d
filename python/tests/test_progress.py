# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress display of the cache's load and of epochs, with tqdm and as plain lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest
from peer import Peer

from kubeflow_datacache import CacheFailedError, DataCache, UnreachableError, World
from kubeflow_datacache.monitoring import load_progress

ALONE = World(0, 1)


class Terminal(io.StringIO):
    """A fake terminal."""

    def isatty(self) -> bool:
        """Returns True, as a terminal does."""
        return True


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls the load at short intervals."""
    monkeypatch.setattr(load_progress, "_ASK_SECONDS", 0.001)


def look(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces standard error by a fake terminal. Called within tests, as pytest replaces it before each test."""
    pytest.importorskip("tqdm")
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    return out


def test_the_load_and_an_epoch_by_tqdm(peer: Peer, cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    peer.faults.head_unavailable = 3
    loader = cache.loader(global_batch_size=10, progress=True, world=ALONE)
    said = terminal.getvalue()
    assert "loading the cache:  25%|" in said
    assert "28/28" in said
    assert "100 rows" in said
    for _ in loader:
        pass
    epoch = terminal.getvalue().removeprefix(said)
    assert "epoch 0: 100%|" in epoch
    assert "| 10/10 [" in epoch
    assert "rows/s, bottleneck " in epoch
    assert epoch.endswith("\n")


def test_an_epoch_that_goes_on_in_its_middle(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    loader = cache.loader(global_batch_size=10, progress=True, world=ALONE)
    loader.load_state_dict({**loader.state_dict(), "next_step": 6})
    assert len(list(loader)) == 4
    assert "epoch 0:  60%|" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()


def test_a_cache_that_is_loaded_shows_nothing(cache: DataCache, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = look(monkeypatch)
    assert cache.wait(progress=True)["state"] == "Ready"
    assert terminal.getvalue() == ""


def test_the_load_in_a_log(peer: Peer, cache: DataCache, capsys: pytest.CaptureFixture[str]) -> None:
    peer.faults.head_unavailable = 3
    assert cache.wait(progress=True)["rows"] == 100
    assert capsys.readouterr().err.splitlines() == [
        "loading the cache: 25%, 7/28 splits, 25 rows",
        "loading the cache: 100%, 28/28 splits, 100 rows",
    ]
    peer.faults.head_unavailable = 3
    cache.wait()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("missing", [True, False], ids=["without tqdm", "without a terminal"])
def test_without_tqdm_or_a_terminal(
    cache: DataCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: bool
) -> None:
    if missing:
        monkeypatch.setattr(sys, "stderr", Terminal())
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    for _ in cache.loader(global_batch_size=10, progress=True, world=ALONE):
        pass
    said = sys.stderr.getvalue() if isinstance(sys.stderr, Terminal) else capsys.readouterr().err
    assert "10/10 steps, " in said


def test_a_load_that_fails_or_stands_still(peer: Peer, connect: Callable[..., DataCache]) -> None:
    peer.faults.head_unavailable = 1_000_000
    with pytest.raises(
        UnreachableError, match=r"the cache is Loading, and loaded nothing for .* \(retry_seconds = 0\.05"
    ):
        connect(peer.endpoint, 0.05).wait()
    peer.faults.failed = "no such file"
    with pytest.raises(CacheFailedError, match="the cache failed: no such file"):
        connect(peer.endpoint).wait(progress=True)
