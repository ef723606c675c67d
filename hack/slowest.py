# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Prints the slowest tests of all runners from the reports that the test targets write: slowest.py FOLDER [COUNT].

FOLDER holds NAME.json (go test -json, by gotestsum) and NAME.xml (JUnit, by pytest). A Go test counts with its
subtests.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree


def of_go(report: Path) -> Iterator[tuple[float, str]]:
    """Seconds and name of each test in a report of go test -json."""
    for line in report.read_text().splitlines():
        event = json.loads(line)
        name = event.get("Test", "")
        if event["Action"] in ("pass", "fail") and name and "/" not in name:
            yield event["Elapsed"], f"{event['Package'].rpartition('datacache/')[2]} {name}"


def of_pytest(report: Path) -> Iterator[tuple[float, str]]:
    """Seconds and name of each test in a report in JUnit's format."""
    for case in ElementTree.parse(report).iter("testcase"):
        yield float(case.get("time", 0)), f"{case.get('classname')} {case.get('name')}"


def main(folder: Path, count: int) -> None:
    """Prints the count slowest tests of all reports in the folder."""
    tests = [test for report in sorted(folder.glob("*.json")) for test in of_go(report)]
    tests += [test for report in sorted(folder.glob("*.xml")) for test in of_pytest(report)]
    if not tests:
        sys.exit(f"slowest: no report in {folder}: run a test target first")
    for seconds, name in sorted(tests, reverse=True)[:count]:
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(seconds for seconds, _ in tests):8.1f} s  all {len(tests)} tests, one after the other")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 40)
