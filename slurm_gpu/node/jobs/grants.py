"""Store each job's granted share of its GPUs, as reported by slurm-gpudbd."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_gpu.node.allocation.tracker import Allocation
from slurm_gpu.node.shipping.shipment import JobFacts

log = logging.getLogger(__name__)

_WHOLE_GPU_MGPU = 1000

# A run, by job ID and restart count.
Run = tuple[int, int]


class Grants:
    """The granted shares of open runs, in 1/1000 of a GPU."""

    def __init__(self) -> None:
        self._granted: dict[Run, int] = {}
        self._impossible: set[Run] = set()

    def update_jobs(self, jobs: JobFacts, allocations: Iterable[Allocation]) -> Mapping[Run, int]:
        """Update the grants of the open allocations, and return the grants by run."""
        open_runs = {(allocation.key.job_id, allocation.key.restart) for allocation in allocations}
        for run in open_runs:
            job_id, restart = run
            facts = jobs.get(job_id, {})
            # A report on another run of the job does not apply: the owner may have changed the request.
            reported = facts.get("granted_mgpu") if facts.get("restart", restart) == restart else None
            granted = _possible(reported)
            if granted is not None:
                self._granted[run] = granted
            elif reported is not None and run not in self._impossible:
                self._impossible.add(run)
                log.warning(
                    "slurm-gpudbd reports an invalid GPU share of job %d: %.80r instead of 0 to 1000; "
                    "it is not recorded",
                    job_id,
                    reported,
                )
        self._granted = {run: granted for run, granted in self._granted.items() if run in open_runs}
        self._impossible &= open_runs
        return self._granted


def _possible(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and 0 <= value <= _WHOLE_GPU_MGPU else None
