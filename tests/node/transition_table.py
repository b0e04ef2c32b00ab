"""All rows of the transition tables for allocations, in the order in which they apply."""

from typing import Any

from slurm_gpu.node.jobs import transitions
from slurm_gpu.node.jobs.transitions import Transition

TRANSITIONS: tuple[Transition[Any], ...] = (
    *transitions.ON_HOOK,
    *transitions.ON_REPORT,
    *transitions.ON_EXPIRY,
    *transitions.ON_RESTART,
    *transitions.ON_END,
    *transitions.ON_SETTLED,
)
