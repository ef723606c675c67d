# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""oracle.py < JSON: prints the rows that training must get, by the oracle of test/conformance (on PYTHONPATH).

Reads a list of epochs' fields (order.Epoch) and prints the steps of each as [number, [row, ...]].
"""

import json
import sys

from order import Epoch

if __name__ == "__main__":
    epochs = [Epoch(**fields) for fields in json.load(sys.stdin)]
    json.dump([[[step.number, step.rows] for step in epoch.share()] for epoch in epochs], sys.stdout)
