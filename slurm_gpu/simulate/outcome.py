"""Define the outcome of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class JobTransition(StrEnum):
    """A change in the state of a job."""

    SUBMIT = "submit"
    START = "start"
    END = "end"
    REQUEUE = "requeue"
    """The job was preempted and waits again."""
    CANCEL = "cancel"
    """The job was cancelled before it started."""


class ModelEvent(NamedTuple):
    """One entry of the log."""

    at_s: float
    what: JobTransition
    job: int
    nodes: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ModelOutcome:
    """The outcome in columns with one value per job; NaN for events that did not happen."""

    start_s: NDArray[np.float64]
    """Start of the first run."""
    end_s: NDArray[np.float64]
    restarts: NDArray[np.int32]
    limited_s: NDArray[np.float64]
    """Seconds for which limits delayed the first start; NaN if the job never started."""
    log: tuple[ModelEvent, ...] = ()
    """All events in order, if a log was requested."""
