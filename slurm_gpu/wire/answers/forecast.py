"""What slurm-gpudbd answers when it is asked how long a job will wait; nothing but Python's own is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecord:
    """What became of the last forecasts: `held` of `n` jobs began within the interval told; since when."""

    n: int
    held: int
    since_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastAccuracy:
    """How near forecasts were of `kinds` groups of like jobs, made in training from what was known before."""

    kinds: int
    within_2x: float
    within_3x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """The wait is `factor` times as long as that of a job that is ordinary in respect of `what`."""

    what: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """How long a job goes on to wait; seconds are from `at_s` on."""

    id: str | None
    """As Slurm prints it; None of a job that is not submitted."""
    full: bool
    """False: another user's job, without reasons."""
    at_s: int
    lower_s: float
    median_s: float
    upper_s: float
    source: str
    """`tables` or `learned`."""
    reasons: Sequence[Reason]
    created_s: int
    """When it was learned what this stands on: so many looks at waiting jobs, since then."""
    looks: int
    since_s: int
    with_gpus: bool
    judged: ForecastAccuracy | None
    """None where too few jobs like it have waited."""
    past: ForecastRecord
    remark: str | None = None
    """What was wrong with what was learned last, so that it stands on something else."""
