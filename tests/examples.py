"""How many examples a property test makes: few in `make check`, forty times as many in `make fuzz`."""

import os

VARIABLE = "SLURM_GPU_EXAMPLES"
"""How many a test makes that says no number of its own; others make more in proportion."""
USUALLY = 25


def examples(normally: int = USUALLY) -> int:
    return normally * int(os.environ.get(VARIABLE, USUALLY)) // USUALLY
