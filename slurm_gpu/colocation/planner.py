"""Define the common protocol of all planners: their views, assumptions and decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Member:
    """A job as a planner receives it."""

    job: int
    application: int
    """Index into the profiles."""
    left_s: float
    """Estimated remaining work, in seconds of running alone."""
    done_s: float = 0.0
    """Completed work, in seconds of running alone; it determines the current phase."""
    submit_s: float = 0.0
    killed: int = 0
    """Number of times that the job was requeued because of co-runners."""
    ran_s: float = 0.0
    """Seconds since the start of the job, if known; never less than its completed work."""

    @property
    def lost_s(self) -> float:
        """Return the time lost to co-runners so far."""
        return max(self.ran_s - self.done_s, 0.0)


@dataclass(frozen=True, slots=True)
class PlannerGpu:
    """One GPU and the jobs that run on it."""

    running: tuple[Member, ...] = ()
    name: str | None = None
    """Name that identifies the GPU across views; None if its position in the views identifies it."""


@dataclass(frozen=True, slots=True)
class PlannerView:
    """All information that a planner may use at one moment. Jobs that arrive later are not included."""

    now_s: float
    waiting: tuple[Member, ...]
    """The waiting jobs, in the order of submission."""
    gpus: tuple[PlannerGpu, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """The jobs to start now on one GPU, in addition to the jobs that run there."""

    gpu: int
    jobs: tuple[int, ...]


class Belief(Protocol):
    """A planner's assumptions about applications: recorded values, predictions or the true values."""

    most_together: int
    """Maximum number of jobs that share a GPU."""
    cap: float
    """Maximum slowdown of any job: 1.10 by default with `considerate`; math.inf for no cap.

    The cap applies to the whole run: individual phases may be slower.
    """

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return the applications' speeds over their whole runs; see Speeds.together."""
        ...

    def fits(self, members: Sequence[Member]) -> bool:
        """Return whether the jobs can run together to the end without running out of memory, with headroom.

        The jobs continue from their current phases, and memory is checked at every moment.
        """
        ...

    def may_share(self, members: Sequence[Member]) -> bool:
        """Return whether the jobs fit, are few enough, and have no slowdown (1/speed) above the cap.

        A single job is always permitted.
        """
        ...

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """Return the time until the last job ends at the lowest likely speeds, if no further job starts.

        The result is math.inf if the jobs may run out of memory.
        """
        ...


class Planner(Protocol):
    """An algorithm that decides which jobs start.

    A planner is called after every arrival, end and kill, until it returns no more jobs. A planner that is
    also a `Waker` is additionally called at the times that it requests. Planners are deterministic: random
    numbers come from a seed that is passed when the planner is created.
    """

    name: str

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Return the jobs to start now, or nothing if all wait until the next event.

        The result must not be empty if every GPU is idle.
        """
        ...


@runtime_checkable
class Waker(Protocol):
    """A planner that may have to be called again even if no job has ended."""

    @property
    def wake_s(self) -> float:
        """Return the next time to call the planner, later than the last view; math.inf if there is none."""
        ...


def wake_s(planner: Planner) -> float:
    """Return the time by which a planner must be called again; math.inf for no limit."""
    return planner.wake_s if isinstance(planner, Waker) else math.inf
