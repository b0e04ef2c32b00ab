"""Evaluate a small net of dense layers with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Net:
    """Dense layers with rectifiers between them.

    `weights[i]` has the shape (inputs, outputs), and `biases[i]` the shape (outputs).
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def __post_init__(self) -> None:
        if not self.weights or len(self.weights) != len(self.biases):
            raise ValueError(f"a net cannot have {len(self.weights)} weights and {len(self.biases)} biases")
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            n_inputs = self.weights[number - 1].shape[-1] if number else next(iter(weight.shape), 0)
            if weight.ndim != 2 or bias.ndim != 1 or weight.shape != (n_inputs, len(bias)):
                raise ValueError(
                    f"layer {number} has weights of shape {weight.shape} and biases of shape {bias.shape}; "
                    f"they must be ({n_inputs}, outputs) and (outputs)"
                )
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise ValueError(f"layer {number} contains a value that is not a finite number")

    def __call__(self, inputs: Floats) -> Floats:
        """Return the outputs (..., outputs) of the net for inputs (..., inputs)."""
        out = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            out = out @ weight
            out += bias
            np.maximum(out, 0, out=out)
        return out @ self.weights[-1] + self.biases[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Return the number of inputs, followed by the width of each layer."""
        return self.weights[0].shape[0], *(len(bias) for bias in self.biases)


def new_net(widths: Sequence[int], rng: np.random.Generator) -> Net:
    """Return layers with random weights (He initialisation).

    The weights of the last layer are near 0 to make all choices about equally likely.
    """
    weights = [(rng.normal(size=(n, m)) * (2 / n) ** 0.5).astype(np.float32) for n, m in pairwise(widths)]
    weights[-1] *= np.float32(0.1)
    return Net(tuple(weights), tuple(np.zeros(m, dtype=np.float32) for m in widths[1:]))
