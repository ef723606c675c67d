# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Where datacache's server is: cacheserver, a program for Linux that this package carries."""

import os
import sys
from pathlib import Path
from typing import NoReturn

CACHESERVER = Path(__file__).parent / "cacheserver"
"""The program."""


def main() -> NoReturn:
    """Becomes the program, with this process's arguments: the command cacheserver."""
    os.execv(CACHESERVER, ["cacheserver", *sys.argv[1:]])
