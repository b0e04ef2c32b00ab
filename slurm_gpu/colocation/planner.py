"""The one protocol of all planners: what they see, what they believe, and what they answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Member:
    """A job as a planner sees it."""

    job: int
    application: int
    """Index into the profiles."""
    left_s: float
    """Remaining work in seconds alone, as far as known."""
    done_s: float = 0.0
    """Completed work, which determines the phase."""
    submit_s: float = 0.0
    killed: int = 0
    """How often it ran out of memory with co-runners and was restarted."""
    ran_s: float = 0.0
    """How long it has been running, if known: at least its completed work."""

    @property
    def lost_s(self) -> float:
        """Time lost through co-runners until now."""
        return max(self.ran_s - self.done_s, 0.0)


@dataclass(frozen=True, slots=True)
class PlannerGpu:
    """One GPU and who runs on it."""

    running: tuple[Member, ...] = ()
    name: str | None = None
    """Identity of a GPU across views that contain different GPUs; None: its position."""


@dataclass(frozen=True, slots=True)
class PlannerView:
    """All that a planner may know at a moment; nothing of the future but what waits."""

    now_s: float
    waiting: tuple[Member, ...]
    """In the order of submission."""
    gpus: tuple[PlannerGpu, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """These jobs start now on this GPU, together, with those that run there."""

    gpu: int
    jobs: tuple[int, ...]


class Belief(Protocol):
    """The planner's assumptions about applications: recorded, predicted, or (known) the truth."""

    most_together: int
    """Jobs that may share a GPU at most."""
    cap: float
    """Greatest slowdown of any job: 1.10 with `considerate`; math.inf: no cap.

    It applies to the whole run: single phases may be slower.
    """

    def speeds(self, applications: tuple[int, ...]) -> tuple[float, ...]:
        """Return their speeds over their whole runs, as in Speeds.together."""
        ...

    def fits(self, members: Sequence[Member]) -> bool:
        """Return whether they run together to the end without running out of memory, with headroom.

        This is checked at each time: they continue from their current phases.
        """
        ...

    def may_share(self, members: Sequence[Member]) -> bool:
        """Return whether they fit, are few enough, and no slowdown (1/speed) exceeds the cap. One alone
        always may.
        """
        ...

    def at_worst_s(self, members: Sequence[Member]) -> float:
        """Return the time until the last of them ends without further co-runners, at the lowest likely
        speeds.

        math.inf if they may run out of memory.
        """
        ...


class Planner(Protocol):
    """Decides who starts; called after every arrival, end and kill, until it answers with nothing.

    One that is a `Waker`, too, is called at the times that it says.

    Deterministic: what is random in it comes from a seed that it was made with.
    """

    name: str

    def choose(self, view: PlannerView) -> Sequence[Start]:
        """Return the jobs that start now. Empty: all wait until the next event (never if every GPU is
        idle).
        """
        ...


@runtime_checkable
class Waker(Protocol):
    """A planner that may want to be asked again at a time at which nothing ends."""

    @property
    def wake_s(self) -> float:
        """Return the next such time after that of the last view; math.inf: none."""
        ...


def wake_s(planner: Planner) -> float:
    """Return when it must be called again at the latest; math.inf: no limit."""
    return planner.wake_s if isinstance(planner, Waker) else math.inf
