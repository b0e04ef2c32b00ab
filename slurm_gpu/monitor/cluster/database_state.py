"""Store the data read from slurm-gpudbd. Each kind of data is read at its own interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.reservation import Reservation
from slurm_gpu.wire.answers.running import Running, RunningUse
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """The last answers of slurm-gpudbd. Times are from this host's wall clock unless Slurm reports them."""

    cluster: ClusterState
    live: Mapping[str, Live]
    live_s: float
    """The time at which `live` was read."""
    reports: Sequence[NodeReport]
    reservations: Sequence[Reservation] | None
    """The reservations, or None if they could not be read."""
    running: Running | None
    """The use of running jobs, or None if it could not be read, as from an older slurm-gpudbd."""
    verdicts: Verdicts | None = None
    """The verdicts, or None if they could not be read, as from an older slurm-gpudbd."""

    @property
    def as_of_s(self) -> float:
        """Return the older of the times of `live` and `cluster`, both of which change every second."""
        return min(self.live_s, self.cluster.as_of_s)

    def uses(self) -> Mapping[int, RunningUse]:
        """Return how the current run of each job has used its GPUs."""
        if self.running is None:
            return {}
        return self.running.uses_of({job.job_id: job.start_s for job in self.cluster.jobs})
