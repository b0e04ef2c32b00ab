"""What slurm-gpuweb reads of slurm-gpudbd, and when it last could."""

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
    """The last answers; each moment is by the wall clock of this host, but for Slurm's own."""

    cluster: ClusterState
    live: Mapping[str, Live]
    live_s: float
    """When `live` was read."""
    reports: Sequence[NodeReport]
    reservations: Sequence[Reservation] | None
    """None while they could not be read."""
    running: Running | None
    """None while it could not be read, as of an older slurm-gpudbd."""
    verdicts: Verdicts | None = None
    """Likewise."""

    @property
    def as_of_s(self) -> float:
        """When all that changes by the second was true."""
        return min(self.live_s, self.cluster.as_of_s)

    def uses(self) -> Mapping[int, RunningUse]:
        """By job, how the run that goes on now has used its GPUs."""
        if self.running is None:
            return {}
        return self.running.uses_of({job.job_id: job.start_s for job in self.cluster.jobs})
