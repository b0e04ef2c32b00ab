"""Define the findings that notices report, as plain values that do not depend on the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slurm_gpu.alerts.alert import AlertKind, DiagnosisSummary

# The kind of a notice that is sent before a job is ended.
WARNING = "warning"
# The kind of a notice that is sent after a job was ended.
ENDED = "ended"
# The kinds of alerts that can cause notices to users.
ALERT_KINDS = (
    AlertKind.XID,
    AlertKind.UNHEALTHY,
    AlertKind.NEVER_USED,
    AlertKind.USED_THEN_IDLE,
    AlertKind.MEMORY_IDLE,
    AlertKind.PARTLY_UNUSED,
    AlertKind.THROTTLED,
)
# The default excludes diagnoses, which may be wrong and must be requested by name.
DEFAULT_ALERT_KINDS = frozenset(ALERT_KINDS) - {AlertKind.UNHEALTHY}
# Kinds of notices, the most important first.
KINDS = (WARNING, ENDED, *map(str, ALERT_KINDS))


class NoticedRun(NamedTuple):
    """One run of a job; a requeue starts another run."""

    job_id: int
    start_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticedJob:
    """A running job; `name` is arbitrary text that its owner has chosen."""

    run: NoticedRun
    id: str
    """The ID as shown to users: 17, 17_3 or 17+1."""
    user: str
    name: str
    account: str
    qos: str
    partition: str
    n_gpus: float

    @property
    def is_component(self) -> bool:
        """Whether the job is a component of a heterogeneous job, which Slurm ends as a whole."""
        return "+" in self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinding:
    """One condition of one job."""

    job: NoticedJob
    kind: str
    stage: int = 0
    """Number of the warning, from 0; 0 for other kinds."""
    since_s: float
    coverage: float
    """Observed share of the evaluated time."""
    n_devices: int = 0
    """Number of affected devices."""
    end_s: float | None = None
    """For a warning, the earliest time at which the job is ended."""
    due_s: float = 0.0
    """Earliest time of the notice."""
    diagnosis: DiagnosisSummary | None = None
    """The diagnosis; None unless `kind` is UNHEALTHY."""
