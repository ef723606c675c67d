# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts the program into the wheel, and its processor into the wheel's name."""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# By GOARCH. The program is linked statically: any Linux of that processor runs it.
_PLATFORMS = {
    "amd64": "manylinux_2_17_x86_64.musllinux_1_1_x86_64",
    "arm64": "manylinux_2_17_aarch64.musllinux_1_1_aarch64",
}


class ProgramHook(BuildHookInterface):
    """Adds $CACHESERVER, built for Linux and $GOARCH."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See BuildHookInterface."""
        build_data["force_include"][os.environ["CACHESERVER"]] = "kubeflow_datacache_server/cacheserver"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_PLATFORMS[os.environ['GOARCH']]}"
