# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""A two-layer perceptron in numpy, trained with Adam: small, but large enough to learn the hidden rule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Weights = list[Floats]


class Model:
    """Maps features to classes. For data parallelism, call gradient() for several ranks before one update()."""

    def __init__(self, features: int, classes: int, hidden: int = 64, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.weights: Weights = [
            (random.standard_normal((features, hidden)) / features**0.5).astype(np.float32),
            np.zeros(hidden, np.float32),
            (random.standard_normal((hidden, classes)) / hidden**0.5).astype(np.float32),
            np.zeros(classes, np.float32),
        ]
        self._mean: Weights = [np.zeros_like(w) for w in self.weights]
        self._square: Weights = [np.zeros_like(w) for w in self.weights]
        self.updates = 0

    def parts(self) -> Weights:
        """The arrays of a checkpoint: weights and Adam's two moving averages. `updates` is the rest of the state."""
        return [*self.weights, *self._mean, *self._square]

    def gradient(self, x: Floats, y: Ints) -> tuple[float, int, Weights]:
        """The total loss of the batch, the number of correct rows, and the total gradient of each weight."""
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(x @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores -= scores.max(axis=1, keepdims=True)
        p = np.exp(scores)
        p /= p.sum(axis=1, keepdims=True)
        each = np.arange(len(y))
        loss = float(-np.log(p[each, y] + 1e-9).sum())
        right = int((p.argmax(axis=1) == y).sum())
        p[each, y] -= 1
        back = (p @ w2.T) * (hidden > 0)
        return loss, right, [x.T @ back, back.sum(axis=0), hidden.T @ p, p.sum(axis=0)]

    def update(self, gradient: Weights, rows: int, rate: float) -> None:
        """One step of Adam with the mean gradient over rows."""
        self.updates += 1
        fix = (1 - 0.999**self.updates) ** 0.5 / (1 - 0.9**self.updates)
        for w, g, mean, square in zip(self.weights, gradient, self._mean, self._square, strict=True):
            g = g / rows
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            w -= rate * fix * mean / (np.sqrt(square) + 1e-8)
