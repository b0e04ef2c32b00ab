"""Track the decisions of a planner at one moment and the options that remain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start

# Sharing pays if it completes this much more work per second, relative to one job alone. Speeds are mostly
# predicted, and a gain smaller than their error may in fact be a loss.
LEAST_GAIN = 0.03


class PlannerDecision:
    """The starts decided at one moment; each waiting job starts at most once."""

    def __init__(self, view: PlannerView, belief: Belief) -> None:
        self.belief = belief
        self.running: list[tuple[Member, ...]] = [gpu.running for gpu in view.gpus]
        """Running jobs by GPU, including those that start now."""
        self.waiting: dict[int, Member] = {member.job: member for member in view.waiting}
        """Waiting jobs by number, in the order of submission."""
        self.starts: list[Start] = []

    @property
    def idle(self) -> list[int]:
        """Return the indices of GPUs without jobs."""
        return [gpu for gpu, running in enumerate(self.running) if not running]

    @property
    def shareable(self) -> list[int]:
        """Return the indices of GPUs that have jobs and can accept another one."""
        most = self.belief.most_together
        return [gpu for gpu, running in enumerate(self.running) if 0 < len(running) < most]

    def may_join(self, gpu: int, *members: Member) -> bool:
        """Return whether these jobs may run together with the jobs on this GPU."""
        return self.belief.may_share([*self.running[gpu], *members])

    def start(self, gpu: int, *members: Member) -> None:
        """Record that these jobs start on this GPU."""
        for member in members:
            del self.waiting[member.job]
        self.running[gpu] += members
        self.starts.append(Start(gpu, tuple(member.job for member in members)))


def speed_sum(belief: Belief, members: Iterable[Member]) -> float:
    """Return the work that all jobs together complete per second; a single job completes 1."""
    return sum(belief.speeds(tuple(member.application for member in members)))


def gain(belief: Belief, running: Sequence[Member], joining: Sequence[Member]) -> float:
    """Return how much more work per second is done with `joining`; negative if sharing cannot pay."""
    return speed_sum(belief, [*running, *joining]) - (speed_sum(belief, running) if running else 0.0)
