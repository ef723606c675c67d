# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""oracle.py < JSON: which rows training must get, by the oracle of test/conformance, which must be on PYTHONPATH.

Reads a list of epochs' fields (epoch.Epoch) and prints for each its steps as [number, [row, ...]].
"""

import json
import sys

from order import Epoch

if __name__ == "__main__":
    epochs = [Epoch(**fields) for fields in json.load(sys.stdin)]
    json.dump([[[step.number, step.rows] for step in epoch.share()] for epoch in epochs], sys.stdout)
