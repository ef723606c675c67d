# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints, for each dataset of a JSON list of {repo, config, split, revision}, the column `file` of what load_dataset reads, without
repetitions, or the error."""

from __future__ import annotations

import json
import sys

import datasets

results: list[object] = []
for each in json.loads(sys.argv[1]):
    try:
        rows = datasets.load_dataset(
            each["repo"], each["config"] or None, split=each["split"], revision=each["revision"] or None
        )
        results.append(list(dict.fromkeys(rows["file"])))
    except Exception as err:
        results.append([f"{type(err).__name__}: {err}"])
print(json.dumps(results))
