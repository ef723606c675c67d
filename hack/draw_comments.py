#!/usr/bin/env python3
# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Draws random comments of the repository, for a reader other than their author to judge.

Each must be plain technical English that a stranger reads once (CONTRIBUTING.md). Prints the seed; the same seed draws
the same comments from the same commit. Generated files, licences and directives are excluded.
"""

import argparse
import ast
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_GO = re.compile(r"(?m)(?:^[ \t]*//.*\n)+|(?<![\":])//[ \t].*$")
_HASH = re.compile(r"(?m)(?:^[ \t]*#.*\n)+|[ \t]#[ \t].*$")
_NO_PROSE = re.compile(r"//(go:|nolint|line )|# (type: ignore|pyright|noqa)|Copyright The|Code generated|#!")


def _found(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each comment and docstring."""
    text = path.read_text()
    if "Code generated" in text[:400]:
        return
    for match in (_GO if path.suffix == ".go" else _HASH).finditer(text):
        if not _NO_PROSE.search(match[0]):
            yield text.count("\n", 0, match.start()) + 1, match[0].strip("\n")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (said := ast.get_docstring(node)):
                yield node.body[0].lineno, said


def main() -> None:
    """Print the drawn comments with their file and line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("files", nargs="*", default=["*.go", "*.py"], help="pathspecs of git (default: %(default)s)")
    options = parser.parse_args()
    files = subprocess.check_output(["git", "ls-files", *options.files], text=True).split()
    places = [(file, line, text) for file in files for line, text in _found(Path(file)) if len(text.split()) > 3]
    print(f"seed {options.seed}: {options.count} of {len(places)} comments")
    for file, line, text in random.Random(options.seed).sample(places, options.count):
        print(f"\n{file}:{line}\n{text}")


if __name__ == "__main__":
    main()
