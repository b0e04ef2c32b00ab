"""Set the number of examples and the seed of fuzz tests: small by default, or as `make fuzz` sets them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import seed

# Environment variable with the number of examples of a long run, such as 50000.
COUNT = "SLURM_GPU_FUZZ"
# Environment variable with the seed of a long run, a whole number.
SEED = "SLURM_GPU_FUZZ_SEED"


def is_long() -> bool:
    return COUNT in os.environ


def examples(normally: int, *, one_in: int = 1) -> int:
    """Return the number of examples of a fuzz test; a long run divides the configured number by `one_in`."""
    return int(os.environ[COUNT]) // one_in if is_long() else normally


def seeded(part: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate one part of a test with its own seed, which a long run prints."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        number = int(os.environ.get(SEED, "0")) + zlib.crc32(part.encode())
        if is_long():
            print(f"{part}: seed {number}")
        return seed(number)(test)

    return decorate
