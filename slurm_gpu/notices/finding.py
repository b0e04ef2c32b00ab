"""What there is to tell somebody, of which job: plain values, without any cluster behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu.alerts.alert import AlertKind, DiagnosisSummary

WARNING = "warning"
"""The kind of a notice that a job is about to be ended."""
ENDED = "ended"
"""The kind of one that it was."""
ALERT_KINDS = (
    AlertKind.XID,
    AlertKind.UNHEALTHY,
    AlertKind.HELD_IDLE,
    AlertKind.USED_THEN_IDLE,
    AlertKind.MEMORY_IDLE,
    AlertKind.PARTLY_UNUSED,
    AlertKind.THROTTLED,
)
"""Those that users may be told of."""
DEFAULT_ALERT_KINDS = frozenset(ALERT_KINDS) - {AlertKind.UNHEALTHY}
"""And of which they are where nobody says: a diagnosis may be mistaken, and a site asks for it by name."""
KINDS = (WARNING, ENDED, *map(str, ALERT_KINDS))
"""Of notices, those that matter most first."""


class NoticedRun(NamedTuple):
    """One run of a job: who is requeued begins anew."""

    job_id: int
    start_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticedJob:
    """A job that runs. Its name is whatever its owner made it."""

    run: NoticedRun
    id: str
    """As users know it: 17, 17_3 or 17+1."""
    user: str
    name: str
    account: str
    qos: str
    partition: str
    n_gpus: float

    @property
    def is_component(self) -> bool:
        """Whether it is a part of a heterogeneous job, which Slurm ends as a whole."""
        return "+" in self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinding:
    """One thing about one job."""

    job: NoticedJob
    kind: str
    stage: int = 0
    """Which warning, the first is 0; 0 of all else."""
    since_s: float
    coverage: float
    """How much was seen of the time that it is judged by."""
    n_devices: int = 0
    """That it is about."""
    end_s: float | None = None
    """Of a warning: the earliest end."""
    due_s: float = 0.0
    """Not told sooner."""
    diagnosis: DiagnosisSummary | None = None
    """Of UNHEALTHY: what was found."""
