"""The number of examples of a property test: few and fixed in `make check`, many and new in `make fuzz`."""

import os

# The default number of examples of a test; other tests scale in proportion.
VARIABLE = "SLURM_GPU_EXAMPLES"
USUALLY = 25


def examples(normally: int = USUALLY) -> int:
    return normally * int(os.environ.get(VARIABLE, USUALLY)) // USUALLY


def is_long() -> bool:
    """Whether this is `make fuzz`."""
    return VARIABLE in os.environ
