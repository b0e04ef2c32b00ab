"""Changing jobs, as root or SlurmUser. Each method raises SlurmError."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import SlurmCommands

# Jobs in one call of scontrol: slurmctld is held up for a tenth of a second.
_AT_ONCE = 200


class JobTerminationClient(SlurmCommands):
    """Ends jobs, and takes that back. Jobs are named as users know them: 17, 17_3.

    The raw number of an array's last task is that of the whole array: never end a job by its raw number.
    """

    def cancel(self, name: str) -> None:
        """End it."""
        self._query("scancel", name)

    def hold(self, name: str) -> None:
        """Send it back into the queue, where it waits until it is released."""
        self._query("scontrol", "requeuehold", name)

    def requeue(self, name: str) -> None:
        """Send one that has ended back into the queue."""
        self._query("scontrol", "requeue", name)

    def release(self, name: str) -> None:
        """Let one that is held start again."""
        self._query("scontrol", "release", name)


class SharedJobClient(SlurmCommands):
    """Gives jobs that share a GPU their place, their shards, or their turn again."""

    def start(self, job_id: int, node: str, gres: str) -> None:
        """Have a job that waits for its begin time start now, on this node, with `gres`, as gres:shard:2."""
        self._update(job_id, "StartTime=now", f"ReqNodeList={node}", f"TresPerNode={gres}")

    def unpin(self, job_id: int, gres: str) -> None:
        """Have a waiting job start on any node with `gres`, when Slurm likes."""
        self._update(job_id, "ReqNodeList=", f"TresPerNode={gres}")

    def requeue(self, job_id: int) -> None:
        """Send a job that runs, or has just ended, back into the queue."""
        self._query("scontrol", "requeue", str(job_id))

    def _update(self, job_id: int, *changes: str) -> None:
        self._query("scontrol", "update", f"JobId={job_id}", *changes)


@dataclass(frozen=True, slots=True)
class ConstrainedJob:
    """A pending job, or an array whose tasks are not split off yet."""

    job_id: int
    features: str
    """The value of --constraint, "" if there is none."""
    reason: str
    """Why it waits, as squeue prints it: Resources, Priority, ReqNodeNotAvail …"""


class ConstraintClient(SlurmCommands):
    """Reads and writes constraints of pending jobs."""

    def pending(self, job_ids: Collection[int]) -> list[ConstrainedJob]:
        """Those of these jobs that wait."""
        return [
            ConstrainedJob(job_id, "" if features == "(null)" else features, reason)
            for number, features, reason in self._squeue(("JobID", "Feature", "Reason"), "--states=PENDING")
            if (job_id := int(number)) in job_ids
        ]

    def write(self, job_ids: Sequence[int], features: str) -> None:
        """Give these jobs this constraint in place of theirs; their places in the queue stay.

        Where slurmctld refuses some, such as one that has started meanwhile, the others are changed all the
        same.
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
