"""Set the number of examples of property tests: few and fixed in `make check`, many in `make fuzz`."""

import os

# The default number of examples per test; tests with another number scale it in proportion.
VARIABLE = "SLURM_GPU_EXAMPLES"
USUALLY = 25


def examples(normally: int = USUALLY) -> int:
    return normally * int(os.environ.get(VARIABLE, USUALLY)) // USUALLY


def is_long() -> bool:
    """Return whether the tests run in `make fuzz`."""
    return VARIABLE in os.environ
