"""Compute the price of a second of each application's work on an optimally shared GPU.

The shortest time that a queue can take is the solution of a linear program, whose variables are the seconds
for which each pair runs together. The dual program gives every application a price in GPU seconds per second
of work: 1 if the application runs alone, and less if it fits well with jobs that run anyway. A group whose
speeds, weighted by price, sum to 1 belongs to the best schedule. Unweighted speeds would pair the most
compatible jobs with each other, although other jobs need them as partners. Exact prices require an LP
solver. This module instead softens the constraints of the program with an entropy term, and computes its
prices by damped fixed-point steps.
"""

from __future__ import annotations

import numpy as np

from slurm_gpu.colocation.learned.net import Floats

# Initial price, which assumes a pair with a typical gain.
FIRST_PRICE = 0.6
# Number of steps for the initial prices, which apply to all queues of the same applications.
FIRST_STEPS = 24
# Number of steps at each decision, starting from the previous prices.
NEXT_STEPS = 4

_SOFTNESS = np.float32(0.03)
# Fraction of a queue's time for which a pair with a value of exactly 1 runs.
_SPREAD = np.float32(0.02)
# Step size: undamped steps (1) oscillate.
_STEP = np.float32(0.9) * _SOFTNESS
_STEEPEST = np.float32(3.0)


def refine(speed: Floats, pairs: Floats, work: Floats, price: Floats, steps: int) -> Floats:
    """Return improved prices (n, A) of A applications for each of n queues.

    `speed` (A, A): [a, b] is the speed of a with b. `pairs` (n, A, A): 1 if both applications have work and
    may run together, otherwise 0. `work` (n, A) may be in any unit; the price of an application without work
    does not change.
    """
    has_work = work > 0
    share = np.where(has_work, work, 1) / np.maximum(work.sum(axis=1, keepdims=True), np.float32(1e-30))
    log_share = np.log(share / _SPREAD)
    steep = speed / _SOFTNESS
    weights = np.stack([speed * pairs, speed * speed * pairs]) * np.exp(-1 / _SOFTNESS)
    use, both, weighed = np.empty_like(pairs), np.empty_like(pairs), np.empty_like(weights)
    before, price = price, price.copy()
    for _ in range(steps):
        np.multiply(steep, price[:, :, None], out=use)
        np.add(use, use.transpose(0, 2, 1), out=both)
        np.minimum(both, _STEEPEST + 1 / _SOFTNESS, out=both)
        np.exp(both, out=both)
        np.multiply(both, weights, out=weighed)
        got, slope = np.add.reduce(weighed, axis=3) + np.exp((price - 1) / _SOFTNESS)
        price += (log_share - np.log(got)) * (got / slope) * _STEP
        np.minimum(price, 1, out=price)
        np.maximum(price, 0, out=price)
    return np.where(has_work, price, before)
