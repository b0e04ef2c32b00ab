"""The outcome of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class JobTransition(StrEnum):
    """A change of a job's state."""

    SUBMIT = "submit"
    START = "start"
    END = "end"
    REQUEUE = "requeue"
    """Preempted; it waits again."""
    CANCEL = "cancel"
    """Cancelled before it started."""


class ModelEvent(NamedTuple):
    """One entry of the log."""

    at_s: float
    what: JobTransition
    job: int
    nodes: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ModelOutcome:
    """Columns by job; NaN for events that did not happen."""

    start_s: NDArray[np.float64]
    """Start of the first run."""
    end_s: NDArray[np.float64]
    restarts: NDArray[np.int32]
    limited_s: NDArray[np.float64]
    """The part of the wait for the first start that limits caused; NaN if the job never started."""
    log: tuple[ModelEvent, ...] = ()
    """All events in order, if a log was requested."""
