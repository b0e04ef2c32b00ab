"""The answer to GET /v1/forecast: how long a job is expected to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRecord:
    """The past forecasts since `since_s`: `correct` of `n` jobs started within the predicted interval."""

    n: int
    correct: int
    since_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastAccuracy:
    """The accuracy measured in training, for `kinds` groups of similar jobs predicted from earlier data."""

    kinds: int
    within_2x: float
    within_3x: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason for a long or short wait: the wait is `factor` times that of a job with a typical `what`."""

    what: str
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The predicted remaining wait of a job, in seconds from `at_s`."""

    id: str | None
    """The job ID as Slurm prints it; None for a job that has not been submitted."""
    full: bool
    """Whether the forecast contains reasons; False for another user's job."""
    at_s: int
    lower_s: float
    median_s: float
    upper_s: float
    source: str
    """The model that made the forecast: `tables` or `learned`."""
    reasons: Sequence[Reason]
    created_s: int
    """The time at which the model was trained, from `samples` polls of pending jobs since `since_s`."""
    samples: int
    since_s: int
    with_gpus: bool
    judged: ForecastAccuracy | None
    """The accuracy in training; None if too few similar jobs have waited."""
    past: ForecastRecord
    remark: str | None = None
    """The reason for not using the newest model."""
