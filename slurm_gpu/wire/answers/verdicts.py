"""The answer to GET /v1/verdicts; docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """A fault of a running job that later results have not contradicted."""

    job_id: int
    start_s: int
    user: str
    cause: str
    kind: str
    confidence: float
    devices: Sequence[tuple[str, str]]
    """The culprits, as (node, UUID)."""
    nodes: Sequence[str]
    since_s: float | None
    """The beginning of the fault; None if it began with the job or before the first available sample."""
    reported_at_s: int
    """The time of the first report."""
    last_s: int
    """The time of the last confirmation."""
    verdict: Mapping[str, Any]
    """The verdict, as described in docs/diagnose.md, without `groups`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSuspect:
    """A GPU, or a node (`device` None), that caused the faults of several jobs."""

    node: str
    device: str | None
    jobs: int
    users: int
    healthy: int
    first_s: float
    last_s: float
    next_step: str
    """The command with which an operator can drain the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The current verdicts and suspects."""

    as_of_s: float | None
    """The time at which the running jobs were last examined; None if slurm-gpudbd does not watch jobs."""
    watched: int
    """The number of running jobs with at least two GPUs."""
    verdicts: Sequence[JobVerdict]
    suspects: Sequence[ReportedSuspect]
