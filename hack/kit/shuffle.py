# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that runs modules, and the tests in them, in a random order: -p kit.shuffle --shuffle SEED.

Modules stay together, since their tests share what is expensive to start.
"""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.addoption(
        "--shuffle", type=int, default=0, metavar="SEED", help="run tests in the random order of this seed"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles the tests."""
    draw = random.Random(config.getoption("--shuffle"))
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    groups = list(modules.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]
