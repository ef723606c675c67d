# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads files through pfio and its HTTP cache: reads names as lines on standard input, and writes texts as lines of
JSON.

Arguments: the URL of the source, file://FOLDER or s3://BUCKET/PREFIX, and pfio's http_cache. TestPfio runs it with an
unmodified pfio from PyPI.
"""

from __future__ import annotations

import json
import sys

import pfio.v2  # pyright: ignore[reportMissingImports] # in an environment of its own: hack/python/clients.txt
from pfio.cache import http_cache  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Answers until the end of standard input."""
    origin, cache = sys.argv[1:]
    http_cache._get_connection_pool(60)  # pyright: ignore # else pfio gives up after 3 s: a busy machine is no fault
    fs = pfio.v2.from_url(origin, http_cache=cache)  # pyright: ignore
    for line in sys.stdin:
        with fs.open(json.loads(line), "rb") as file:  # pyright: ignore
            text: str = file.read().decode()  # pyright: ignore
        print(json.dumps(text), flush=True)


if __name__ == "__main__":
    main()
