# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Command-line options shared by several commands."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from benchlib import machine
from benchlib.tables import SHAPES

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datacache"


def add_tables(parser: argparse.ArgumentParser) -> None:
    """Options for the tables and their size."""
    parser.add_argument(
        "--scale", type=float, default=1.0, help="size of the tables; 1 is about 1 GB of Arrow each (default)"
    )
    parser.add_argument("--tables", type=words(list(SHAPES)), default=list(SHAPES), help=f"of {','.join(SHAPES)}")
    parser.add_argument(
        "--data",
        type=Path,
        default=CACHE / "bench",
        help="where the tables are kept (2.8 GB at scale 1; default %(default)s)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    """Option for our server."""
    parser.add_argument("--nodes", type=int, default=2, help="data nodes of our server (default 2)")
    parser.add_argument("--server", type=Path, default=machine.REPOSITORY / "bin" / "cacheserver")


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Option for Trainer's own data cache."""
    parser.add_argument(
        "--trainer-cache",
        type=Path,
        metavar="DIR",
        help="programs of the data cache that ships with Trainer, as `make trainer-cache` builds them (default: none)",
    )


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace, *, server: bool = True) -> None:
    """Exits with an error if the options of the functions above are invalid."""
    if chosen.scale <= 0 or chosen.nodes < 1:
        parser.error("--nodes must be at least 1, --scale above 0")
    if server and not chosen.server.exists():
        parser.error(f"{chosen.server} is not there: run `make build`, or give another --server")


def words(allowed: list[str]) -> Callable[[str], list[str]]:
    """Parser of a comma-separated list of allowed words; returns them in the order of `allowed`."""

    def parse(value: str) -> list[str]:
        given = value.split(",")
        if unknown := [w for w in given if w not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return [w for w in allowed if w in given]

    return parse


def counts(value: str) -> list[int]:
    """Parser of a comma-separated list of positive integers."""
    numbers = [int(word) for word in value.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("want numbers from 1, with commas between them")
    return numbers
