"""How many examples a fuzz test makes, and from which seed: few, or as `make fuzz` says."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import seed

COUNT = "SLURM_GPU_FUZZ"
"""Variable with the number of examples of a long run, such as 50000."""
SEED = "SLURM_GPU_FUZZ_SEED"
"""Variable with the seed of a long run, a whole number."""


def is_long() -> bool:
    return COUNT in os.environ


def examples(normally: int, *, one_in: int = 1) -> int:
    """How many examples a fuzz test makes in all; `one_in` so many of a long run."""
    return int(os.environ[COUNT]) // one_in if is_long() else normally


def seeded(part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a test that is made in parts: each has a seed of its own, which a long run prints."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        number = int(os.environ.get(SEED, "0")) + zlib.crc32(part.encode())
        if is_long():
            print(f"{part}: seed {number}")
        return seed(number)(test)

    return decorate
