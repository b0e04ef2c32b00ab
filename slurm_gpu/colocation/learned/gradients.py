"""Train a net's weights by gradient descent, either in numpy or on another device with torch.

The nets are so small that importing torch takes longer than training a net on new data. The torch version is
in torch_gradients.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slurm_gpu.colocation.learned.net import Floats, Net

# The only device that does not require torch.
HERE = "cpu"
# Parameters of Adam: the decay rates of its two means, the constant against division by 0, and the maximum
# norm of a gradient.
RATES, TINY, LONGEST = (0.9, 0.999), 1e-8, 1.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """Training data from n decisions: the chosen options, and how much more likely they should become."""

    inputs: NDArray[np.float32] | NDArray[np.bool_]
    """Inputs of the net: (n, S, F) if the net has one output, or (n, F) if it has S outputs."""
    allowed: NDArray[np.bool_]
    """(n, S) whether each option is allowed."""
    choice: NDArray[np.intp]
    """(n) index of the chosen option."""
    weight: NDArray[np.float32]
    """(n) weight of the choice: 1 in imitation; its advantage, which may be negative, in reinforcement."""


class Learner(Protocol):
    """A net with the state of its Adam optimizer."""

    rate: float
    """The learning rate of the next steps."""

    @property
    def net(self) -> Net:
        """Return the current net."""
        ...

    def step(self, lessons: Sequence[Lesson], entropy: float = 0.0) -> float:
        """Take one gradient step on all lessons, and return the loss before the step.

        `entropy` is the weight of an entropy term, which keeps the choices from becoming certain too early.
        """
        ...

    def state(self) -> dict[str, Floats]:
        """Return the optimizer's state for `restore`."""
        ...

    def restore(self, state: Mapping[str, Floats]) -> None:
        """Restore a state that `state` returned; raise ValueError if it belongs to another net."""
        ...


def learner_on(device: str, net: Net, rate: float, *, threads: int = 1) -> Learner:
    """Return a learner for a device; only torch uses `threads`."""
    if device == HERE:
        return NumpyLearner(net, rate)
    from slurm_gpu.colocation.learned.torch_gradients import TorchLearner

    return TorchLearner(net, rate, device=device, threads=threads)


class NumpyLearner:
    """See Learner."""

    def __init__(self, net: Net, rate: float) -> None:
        self.rate = rate
        self._layers = [
            array.copy() for layer in zip(net.weights, net.biases, strict=True) for array in layer
        ]
        """The weights, then the biases, of each layer in turn."""
        self._n_steps = 0
        self._means = [np.zeros_like(array) for array in self._layers]
        self._squares = [np.zeros_like(array) for array in self._layers]

    @property
    def net(self) -> Net:
        """See Learner."""
        arrays = [array.copy() for array in self._layers]
        return Net(tuple(arrays[::2]), tuple(arrays[1::2]))

    def step(self, lessons: Sequence[Lesson], entropy: float = 0.0) -> float:
        """See Learner."""
        n = sum(len(lesson.choice) for lesson in lessons)
        slopes = [np.zeros_like(array) for array in self._layers]
        loss = sum(self._learn(lesson, entropy, n, slopes) for lesson in lessons)
        length = sum(float(np.vdot(slope, slope)) for slope in slopes) ** 0.5
        shorter = np.float32(min(LONGEST / (length + 1e-6), 1.0))
        self._n_steps += 1
        stays, stays_squared = RATES
        along = self.rate / (1 - stays**self._n_steps)
        spread = (1 - stays_squared**self._n_steps) ** 0.5
        for array, slope, mean, square in zip(self._layers, slopes, self._means, self._squares, strict=True):
            slope *= shorter
            mean += np.float32(1 - stays) * (slope - mean)
            square *= np.float32(stays_squared)
            square += np.float32(1 - stays_squared) * slope * slope
            array -= np.float32(along) * mean / (np.sqrt(square) / np.float32(spread) + np.float32(TINY))
        return loss

    def _learn(self, lesson: Lesson, entropy: float, n: int, slopes: Sequence[Floats]) -> float:
        """Return the loss of one lesson, and add its gradient to `slopes`."""
        each, allowed = np.arange(len(lesson.choice)), lesson.allowed
        # If every option has its own row, the rows of options that are not allowed are skipped.
        rows = lesson.inputs[allowed] if lesson.inputs.ndim == 3 else lesson.inputs
        seen = self._forward(rows.astype(np.float32, copy=False))
        scores = np.full(allowed.shape, -np.inf, dtype=np.float32)
        scores[allowed] = seen[-1][:, 0] if lesson.inputs.ndim == 3 else seen[-1][allowed]
        scores -= scores.max(axis=1, keepdims=True)
        odds = np.exp(scores)
        total = odds.sum(axis=1, keepdims=True)
        logs, odds = np.where(allowed, scores - np.log(total), 0), odds / total
        loss = -float(lesson.weight @ logs[each, lesson.choice])
        slope = odds * lesson.weight[:, None]
        slope[each, lesson.choice] -= lesson.weight
        if entropy:
            surprise = (odds * logs).sum(axis=1, keepdims=True)
            loss += entropy * float(surprise.sum())
            slope += np.float32(entropy) * odds * (logs - surprise)
        slope *= np.float32(1 / n)
        self._backward(seen, slope[allowed][:, None] if lesson.inputs.ndim == 3 else slope, slopes)
        return loss / n

    def _forward(self, rows: Floats) -> list[Floats]:
        """Return the input of each layer, followed by the output of the last layer."""
        seen = [rows]
        for number in range(0, len(self._layers), 2):
            out = seen[-1] @ self._layers[number]
            out += self._layers[number + 1]
            if number + 2 < len(self._layers):
                np.maximum(out, 0, out=out)
            seen.append(out)
        return seen

    def _backward(self, seen: Sequence[Floats], slope: Floats, slopes: Sequence[Floats]) -> None:
        for number in range(len(self._layers) - 2, -1, -2):
            before = seen[number // 2]
            slopes[number][...] += before.T @ slope
            slopes[number + 1][...] += slope.sum(axis=0)
            if number:
                slope = slope @ self._layers[number].T
                slope *= before > 0

    def state(self) -> dict[str, Floats]:
        """See Learner; the state is empty before the first step."""
        if not self._n_steps:
            return {}
        steps = np.array(self._n_steps, dtype=np.float32)
        named = {"step": [steps] * len(self._layers), "exp_avg": self._means, "exp_avg_sq": self._squares}
        return {f"{name}.{number}": one for name, some in named.items() for number, one in enumerate(some)}

    def restore(self, state: Mapping[str, Floats]) -> None:
        """See Learner."""
        if not state:
            return
        for number, array in enumerate(self._layers):
            for name, some in (("exp_avg", self._means), ("exp_avg_sq", self._squares)):
                one = state[f"{name}.{number}"]
                if one.shape != array.shape:
                    raise ValueError(
                        f"{name}.{number} has shape {one.shape}, but its layer has {array.shape}"
                    )
                some[number] = one.copy()
        self._n_steps = int(state["step.0"])
