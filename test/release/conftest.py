# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a rehearsal published: 'make release-rehearsal' says where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oci import IMAGES, REPOSITORY, Registry, digest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for where things were published and the programs that install them."""
    for name, text in {
        "--registry": "HOST:PORT/PATH of the images",
        "--published": "the folder of the release",
        "--wheels": "the folder of the wheel",
        "--key": "the public key of the signatures",
        "--cosign": "the program",
        "--helm": "the program",
    }.items():
        parser.addoption(name, required=True, help=text)


@pytest.fixture(scope="session")
def option(request: pytest.FixtureRequest) -> Any:
    """Reads an option."""
    return lambda name: str(request.config.getoption(name))


@pytest.fixture(scope="session")
def registry(option: Any) -> Registry:
    """The registry with the images."""
    host, _, path = option("--registry").partition("/")
    return Registry(host, path)


@pytest.fixture(scope="session")
def version() -> str:
    """The version that is released: v0.1.0."""
    return (REPOSITORY / "VERSION").read_text().strip()


@pytest.fixture(scope="session")
def digests(registry: Registry, version: str) -> dict[str, str]:
    """Digests of the images that the version's tags name."""
    return {name: digest(registry.get("manifests", name, version)) for name in IMAGES}


@pytest.fixture(scope="session")
def programs(registry: Registry, digests: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The programs in the images, by image and processor: cacheserver/arm64."""
    found: dict[str, Path] = {}
    for name, index in digests.items():
        for entry in registry.manifest(name, index)["manifests"]:
            arch = entry["platform"]["architecture"]
            root = tmp_path_factory.mktemp(f"{name}-{arch}")
            config = registry.unpack(name, entry["digest"], root)
            assert (config["os"], config["architecture"]) == ("linux", arch)
            assert config["config"]["User"] == "65532:65532"
            found[f"{name}/{arch}"] = root / config["config"]["Entrypoint"][0].lstrip("/")
    return found
