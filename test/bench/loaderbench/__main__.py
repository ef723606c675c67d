# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=loader`: see README.md beside this package, or --help."""

import sys

from loaderbench.cli import main

sys.exit(main(sys.argv[1:]))
