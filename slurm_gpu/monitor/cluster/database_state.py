"""What slurm-gpuweb reads of slurm-gpudbd, and when it last could."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_gpu.wire import Live
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.reservation import Reservation
from slurm_gpu.wire.answers.running import Running, RunningUse
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import Verdicts


class ClusterSource(Protocol):
    """The part of DatabaseClient that the page is drawn from."""

    def cluster(self) -> ClusterState:
        """All nodes, the jobs on them and those that wait."""

    def live(self) -> Mapping[str, Live]:
        """What the devices of each node do now, by node."""

    def nodes(self) -> Sequence[NodeReport]:
        """The nodes that run slurm-gpud, and their devices."""

    def reservations(self, past: int = 0, ids: Sequence[int] = ()) -> Sequence[Reservation]:
        """Those that are not over."""

    def running(self) -> Running:
        """How the jobs that run have used their GPUs."""

    def verdicts(self) -> Verdicts:
        """Trouble of the jobs that run."""


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
