"""Read the jobs that wait for resources and the site factors of their priorities, in two calls.

sprio prints the factors of jobs that are eligible and not held; squeue prints the times from which they are
eligible.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import WaitingJob
from slurm_gpu.slurm.tres import parse_job_tres

SQUEUE = (
    "squeue",
    "--all",
    "--noheader",
    "--states=PENDING",
    "--Format=JobID:0|,EligibleTime:0|,NumNodes:0|,tres-alloc:0|",
)
SPRIO = ("sprio", "--noheader", "--format=%i|%S")
# A word in sprio's error if PriorityType is not multifactor.
_NO_FACTORS = "multifactor"


def parse_waiting(squeue: str, sprio: str) -> Iterator[WaitingJob]:
    """Join the output of both commands by job; raise SlurmError for a line with an unexpected format."""
    factors = dict(_factor(line.strip()) for line in sprio.splitlines() if line.strip())
    for line in squeue.splitlines():
        if not line.strip():
            continue
        fields = line.strip().split("|")
        if len(fields) < 4 or not fields[0].isdigit():
            raise SlurmError(f"squeue printed {line.strip()!r} for a waiting job")
        job_id, eligible, nodes = int(fields[0]), fields[1], fields[2].rpartition("-")[2]
        if job_id in factors and eligible.isdigit() and nodes.isdigit():
            yield WaitingJob(job_id, int(eligible), int(nodes), factors[job_id], _tres(fields[3]))


def has_no_factors(error: SlurmError) -> bool:
    """Return whether sprio failed because this Slurm's priorities have no factors."""
    return _NO_FACTORS in str(error)


def _tres(text: str) -> dict[str, float]:
    try:
        return parse_job_tres(text)
    except ValueError as error:
        raise SlurmError(f"squeue printed an invalid request for a waiting job: {error}") from None


def _factor(line: str) -> tuple[int, int]:
    job_id, _, factor = line.partition("|")
    try:
        return int(job_id), int(float(factor))
    except ValueError:
        raise SlurmError(f"sprio printed {line!r}, not a job and its site factor") from None
