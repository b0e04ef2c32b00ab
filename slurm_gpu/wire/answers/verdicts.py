"""What GET /v1/verdicts answers with, as the client hands it out: docs/api.md explains each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """Trouble of a job that runs: it was found, and nothing has contradicted it since."""

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
    """When it began; None: at the job's beginning, or before what could be looked at."""
    reported_at_s: int
    last_s: int
    """When it was first told, and found last."""
    verdict: Mapping[str, Any]
    """All of it, as docs/diagnose.md has it; without `groups`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldSuspect:
    """A GPU, or a node (`device` None), that was the culprit in several jobs."""

    node: str
    device: str | None
    jobs: int
    users: int
    healthy: int
    first_s: float
    last_s: float
    next_step: str
    """The command that drains it: for somebody to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What holds now."""

    as_of_s: float | None
    """When jobs were last looked at; None: nobody watches."""
    watched: int
    """Jobs of two GPUs and more."""
    verdicts: Sequence[JobVerdict]
    suspects: Sequence[ToldSuspect]
