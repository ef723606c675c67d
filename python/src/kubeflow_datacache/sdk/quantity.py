# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as the SDK wants them."""


def quantity(name: str, value: object) -> str | None:
    """Checks that a quantity is text: the SDK rejects numbers without naming the field."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{name} is {value!r}: it must be a Kubernetes quantity as text, such as '{value}'")
