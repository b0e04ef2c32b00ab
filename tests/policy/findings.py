"""The outcomes of limits for a job, and the other jobs in the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .model import Request


class Outcome(Enum):
    """The result of comparing a job with one limit that applies to it."""

    FITS = "fits"
    OVER = "over"
    UNKNOWN = "cannot be checked"


@dataclass(frozen=True)
class Finding:
    """One limit of a rule or bundle, and the outcome for the job."""

    rule: str
    key: str
    mode: str
    outcome: Outcome
    denies_unknown: bool = False


@dataclass(frozen=True)
class Judgement:
    """All limits that apply to a job, with their outcomes."""

    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool:
        return not any(
            (one.mode == "enforce" and one.outcome is Outcome.OVER)
            or (one.mode in ("enforce", "fit") and one.outcome is Outcome.UNKNOWN and one.denies_unknown)
            for one in self.findings
        )

    @property
    def reported(self) -> set[tuple[str, str, str]]:
        """Return (rule, limit, mode or "error") of the limits that the job does not meet."""
        return {
            (one.rule, one.key, "error" if one.outcome is Outcome.UNKNOWN else one.mode)
            for one in self.findings
            if one.outcome is not Outcome.FITS
        }


# Limits on the hours of GPUs or CPUs.
HOUR_LIMITS = ("gpu_hours", "cpu_hours", "billing_hours")


# Hours used, by rule, UID or account (None: the whole group) and limit, such as gpu_hours:week, or
# gpu_hours:week_before for the previous week.
Hours = Mapping[tuple[str, int | str | None, str], float]


@dataclass(frozen=True)
class Known:
    """The other jobs, the time, and the hours of GPUs and CPUs used."""

    jobs: Sequence[Request]
    """Running and pending jobs."""
    pending: Sequence[Request]
    """The pending jobs among `jobs`."""
    now_s: int
    hours: Hours | None = None
    """None if no snapshot contains used hours."""
