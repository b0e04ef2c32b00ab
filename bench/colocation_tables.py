"""Write tables of pairs that our own model of interference generates, for benchmarks of co-location.

Two applications on one GPU compete for three resources:

- GPU time: the driver gives equal slices to all applications that have work (max-min fairness).
- Memory bandwidth: each obtains a share in proportion to its demand.
- The L2 cache: a step takes longer in proportion to the use of the cache by the other.

The effect of the cache has the form of iGniter's model (Xu and others, IEEE TPDS 34(3), 2023; its README
on GitHub has the formula). The rest is our own model, inspired by iGniter's delay of scheduling and by Jog
and others (Anatomy of GPU Memory System for Multi-Application Execution, MEMSYS 2015); no formula is theirs.

The scarcer of the first two resources limits an application; the effect of the cache and a constant cost of
scheduling are added. Pairs that exceed the memory of the GPU cannot run together. Applications are models
with one to six batch sizes; their use of a GPU saturates with the size. Each application deviates from its
model's use by several per cent, and each speed has a measurement error of one per cent. A table contains
names, sizes, steps per second alone, and speeds, but not the use. Seeds below 1000 were used for development.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from bench.arguments import number
from slurm_gpu.colocation.tables.measured import Measured
from slurm_gpu.colocation.tables.pair_file import write_json

Floats = NDArray[np.float64]

FEWEST, MOST = 10, 100
"""The range from which the number of applications is drawn if none is given."""
_SIZES = (8, 16, 32, 64, 128, 256)
_DEVIATION = 0.05
"""Standard deviation of the logarithm of an application's use, relative to its model's use."""
_ERROR = 0.01
"""Standard deviation of the logarithm of a measured speed."""
_SCHEDULING = 0.01
"""Additional time of a step that does not run alone."""


@dataclass(frozen=True)
class Uses:
    """The use of a GPU by n applications that run alone, each of shape (n,), as fractions of the GPU."""

    time: Floats
    bandwidth: Floats
    cache: Floats
    sensitivity: Floats
    """Additional time of a step per unit of the other's use of the cache."""
    memory: Floats


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--applications", type=number(1), help=f"by default, {FEWEST} to {MOST} by the seed")
    parser.add_argument("out", type=Path, help="a JSON file, which is overwritten")
    args = parser.parse_args()
    write_json(args.out, generated(args.seed, args.applications))


def generated(seed: int, n: int | None = None) -> Measured:
    """Return a table of n applications."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(FEWEST, MOST + 1)) if n is None else n
    names, alone_per_s, uses = _applications(rng, n)
    speeds = pair_speeds(uses) * np.exp(rng.normal(0, _ERROR, (n, n)))
    speeds = np.minimum(speeds, 1.0)
    return Measured(
        f"generated-{seed}",
        names,
        alone_per_s,
        {(one, (other,)): float(speeds[one, other]) for one in range(n) for other in range(n)},
    )


def pair_speeds(uses: Uses) -> Floats:
    """Return the speed (n, n) of each application with each, relative to running alone; 0 if they do not fit.

    An application that uses less than its fair share of the GPU's time is not limited by this share.
    """
    time, other = uses.time[:, None], uses.time[None]
    by_time = time / np.minimum(time, np.maximum(0.5, 1 - other))
    by_bandwidth = np.maximum(uses.bandwidth[:, None] + uses.bandwidth, 1.0)
    by_cache = 1 + uses.sensitivity[:, None] * uses.cache
    speeds = 1 / (np.maximum(by_time, by_bandwidth) * by_cache + _SCHEDULING)
    return np.where(uses.memory[:, None] + uses.memory > 1, 0.0, speeds)


def _applications(rng: np.random.Generator, n: int) -> tuple[tuple[str, ...], tuple[float, ...], Uses]:
    """Return n applications of several models; the load of a table ranges from light to heavy."""
    load = rng.uniform(0.4, 1.6)
    names: list[str] = []
    alone_per_s: list[float] = []
    rows: list[Floats] = []
    model = 0
    while len(names) < n:
        first, many = int(rng.integers(3)), int(rng.integers(1, len(_SIZES) + 1))
        peak = np.array([load, load, 0.6, 0.8, 0.8]) * rng.uniform((0.4, 0.2, 0, 0, 0.2), 1.0)
        half = 2 ** rng.uniform(0, 5)
        step_s, exponent = 10 ** rng.uniform(-2.5, -0.5), rng.uniform(0.6, 1.0)
        for size in _SIZES[first : first + many][: n - len(names)]:
            grows = size / (size + half)
            use = peak * np.array([grows, grows, np.sqrt(grows), 1.0, 0.3 + 0.7 * size / _SIZES[-1]])
            rows.append(np.clip(use * np.exp(rng.normal(0, _DEVIATION, 5)), 0.01, 1.0))
            names.append(f"model-{model} (batch size {size})")
            alone_per_s.append(
                float(1 / (step_s * (1 + (size / half) ** exponent) * np.exp(rng.normal(0, 0.03))))
            )
        model += 1
    return tuple(names), tuple(alone_per_s), Uses(*np.array(rows).T)


if __name__ == "__main__":
    main()
