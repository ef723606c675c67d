# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of `make bench NAME=servers`: tables, processes, clients, measurements, report."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "hack"))  # where kit is, also for a script that is run as a file
