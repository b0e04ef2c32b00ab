"""Define clients that change jobs as root or SlurmUser. Their methods raise SlurmError on failure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import SlurmCommands

# Maximum number of jobs in one call of scontrol; such a call keeps slurmctld busy for 0.1 s.
_AT_ONCE = 200


class JobTerminationClient(SlurmCommands):
    """Ends and requeues jobs. A job is identified by the id that users see, such as 17 or 17_3.

    Never end a job by its raw ID: the last task of an array has the raw ID of the whole array.
    """

    def cancel(self, name: str) -> None:
        """Cancel a job."""
        self._query("scancel", name)

    def hold(self, name: str) -> None:
        """Requeue a job, and hold it until it is released."""
        self._query("scontrol", "requeuehold", name)

    def requeue(self, name: str) -> None:
        """Requeue a job that has ended."""
        self._query("scontrol", "requeue", name)

    def release(self, name: str) -> None:
        """Release a held job."""
        self._query("scontrol", "release", name)


class SharedJobClient(SlurmCommands):
    """Starts, unpins and requeues jobs that share GPUs."""

    def start(self, job_id: int, node: str, gres: str) -> None:
        """Start a job before its begin time on `node`, and set its GRES per node, such as gres:shard:2."""
        self._update(job_id, "StartTime=now", f"ReqNodeList={node}", f"TresPerNode={gres}")

    def unpin(self, job_id: int, gres: str) -> None:
        """Allow Slurm to start a waiting job on any node, and set its GRES per node."""
        self._update(job_id, "ReqNodeList=", f"TresPerNode={gres}")

    def requeue(self, job_id: int) -> None:
        """Requeue a job that is running or has just ended."""
        self._query("scontrol", "requeue", str(job_id))

    def _update(self, job_id: int, *changes: str) -> None:
        self._query("scontrol", "update", f"JobId={job_id}", *changes)


@dataclass(frozen=True, slots=True)
class ConstrainedJob:
    """A pending job, or the tasks of an array that are not split off."""

    job_id: int
    features: str
    """The value of --constraint; "" if there is none."""
    reason: str
    """The reason that squeue prints: Resources, Priority, ReqNodeNotAvail …"""


class ConstraintClient(SlurmCommands):
    """Reads and writes constraints of pending jobs."""

    def pending(self, job_ids: Collection[int]) -> list[ConstrainedJob]:
        """Return the jobs among `job_ids` that are pending."""
        return [
            ConstrainedJob(job_id, "" if features == "(null)" else features, reason)
            for number, features, reason in self._squeue(("JobID", "Feature", "Reason"), "--states=PENDING")
            if (job_id := int(number)) in job_ids
        ]

    def write(self, job_ids: Sequence[int], features: str) -> None:
        """Replace the constraint of jobs, which keep their place in the queue.

        If slurmctld refuses to change some jobs, for example because they have just started, the others are
        still changed.
        """
        failed: list[SlurmError] = []
        for first in range(0, len(job_ids), _AT_ONCE):
            ids = ",".join(map(str, job_ids[first : first + _AT_ONCE]))
            try:
                self._query("scontrol", "update", f"JobId={ids}", f"Features={features}")
            except SlurmError as error:
                failed.append(error)
        if failed:
            raise failed[0]
