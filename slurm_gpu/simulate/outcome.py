"""What came of a model's jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class JobTransition(StrEnum):
    """What happened to a job."""

    SUBMIT = "submit"
    START = "start"
    END = "end"
    REQUEUE = "requeue"
    """It was preempted, and waits again."""
    GIVE_UP = "give up"
    """It was cancelled before it started."""


class ModelEvent(NamedTuple):
    """One line of the log."""

    at_s: float
    what: JobTransition
    job: int
    nodes: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class ModelOutcome:
    """Columns by job; NaN for what never happened."""

    start_s: NDArray[np.float64]
    """Of its first run."""
    end_s: NDArray[np.float64]
    restarts: NDArray[np.int32]
    held_s: NDArray[np.float64]
    """How much of the wait for the first start its limits were in the way; NaN for what never started."""
    log: tuple[ModelEvent, ...] = ()
    """All events in their order, where they were asked for."""
