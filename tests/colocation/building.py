"""Build small worlds, simple planners, and random worlds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from slurm_gpu.colocation.planner import Belief, PlannerView, Start
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.outcome import SharingEvent, SharingTransition
from slurm_gpu.colocation.simulation.simulator import SharingJob
from slurm_gpu.colocation.simulation.world import TableWorld, World
from slurm_gpu.colocation.tables.pair_table import PairTable

CAPACITY_MIB = 12000.0


def profile(name: str, *phases: tuple[float, float]) -> ApplicationProfile:
    """Return a profile of phases (seconds, memory in MiB) that use half of the GPU."""
    return ApplicationProfile(
        name, "card", tuple(ProfilePhase(seconds=s, memory_mib=mib, util=0.5) for s, mib in phases)
    )


def pairs(speeds: Sequence[Sequence[float]], *profiles: ApplicationProfile) -> TableWorld:
    names = [one.application for one in profiles]
    return TableWorld(profiles, PairTable(names, np.array(speeds, dtype=float)), CAPACITY_MIB)


class PhaseWorld:
    """A world whose speeds depend on phases: two applications in odd phases slow each other down."""

    def __init__(self, profiles: Sequence[ApplicationProfile], table: PairTable) -> None:
        self.profiles, self.capacity_mib, self._table = profiles, CAPACITY_MIB, table

    def speeds(self, running: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
        speeds = self._table.together(tuple(application for application, _ in running))
        odd = sum(phase % 2 for _, phase in running)
        return tuple(speed / max(odd, 1) for speed in speeds)


class OneAtATime:
    """Give every job its own GPU, first come, first served."""

    name = "one at a time"

    def choose(self, view: PlannerView) -> list[Start]:
        free = [index for index, gpu in enumerate(view.gpus) if not gpu.running]
        return [Start(gpu, (one.job,)) for gpu, one in zip(free, view.waiting, strict=False)]


class Replay:
    """Start jobs as recorded in a log; with the same jobs and world, the simulation is then the same."""

    name = "replay"

    def __init__(self, log: Sequence[SharingEvent]) -> None:
        self._log, self._at = log, 0

    def choose(self, view: PlannerView) -> list[Start]:
        while self._at < len(self._log) and self._log[self._at].what is not SharingTransition.START:
            self._at += 1
        starts: list[Start] = []
        for event in self._log[self._at :]:
            if event.what is not SharingTransition.START or event.at_s > view.now_s:
                break
            starts.append(Start(event.gpu, (event.job,)))
        self._at += len(starts)
        return starts

    @property
    def wake_s(self) -> float:
        return next(
            (one.at_s for one in self._log[self._at :] if one.what is SharingTransition.START), math.inf
        )


class Reckless:
    """Starts any jobs, in groups, with any co-runners, regardless of memory; may let jobs wait."""

    name = "reckless"

    def __init__(self, seed: int, most_together: int) -> None:
        self._random, self._most = np.random.default_rng(seed), most_together

    def choose(self, view: PlannerView) -> list[Start]:
        gpu = int(self._random.integers(len(view.gpus)))
        room = self._most - len(view.gpus[gpu].running)
        idle = not any(one.running for one in view.gpus)
        if not idle and (room < 1 or self._random.random() < 0.3):
            return []
        n = int(self._random.integers(1, min(room, len(view.waiting)) + 1))
        chosen = self._random.choice(len(view.waiting), size=n, replace=False)
        return [Start(gpu, tuple(view.waiting[int(one)].job for one in chosen))]


class Trusting:
    """Starts jobs in the order of submission, with any co-runners that its belief permits."""

    name = "trusting"

    def __init__(self, belief: Belief) -> None:
        self._belief = belief

    def choose(self, view: PlannerView) -> list[Start]:
        for index, gpu in enumerate(view.gpus):
            for one in view.waiting:
                if self._belief.may_share((*gpu.running, one)):
                    return [Start(index, (one.job,))]
        return []


@st.composite
def profiles(draw: st.DrawFn, name: str) -> ApplicationProfile:
    phase = st.tuples(
        st.floats(0.5, 60.0), st.sampled_from((0.0, 300.0, 3000.0, 5999.0, 6000.0, 6001.0, CAPACITY_MIB))
    )
    return profile(name, *draw(st.lists(phase, min_size=1, max_size=4)))


@st.composite
def worlds(draw: st.DrawFn, *, phases: bool = True) -> World:
    """Draw applications with any speeds, including pairs that cannot run together.

    With `phases`, speeds may also depend on phases.
    """
    n = draw(st.integers(1, 4))
    some = [draw(profiles(f"app{i}")) for i in range(n)]
    speeds = np.array(
        draw(st.lists(st.lists(st.floats(0.05, 1.0), min_size=n, max_size=n), min_size=n, max_size=n))
    )
    for i, j in draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=2)):
        speeds[i, j] = speeds[j, i] = 0.0
    table = PairTable([one.application for one in some], speeds)
    even = TableWorld(some, table, CAPACITY_MIB)
    return draw(st.sampled_from((PhaseWorld(some, table), even))) if phases else even


@st.composite
def jobs(draw: st.DrawFn, world: World, max_size: int = 8) -> list[SharingJob]:
    """Draw jobs that each fit into an empty GPU."""
    one = st.builds(
        SharingJob,
        application=st.integers(0, len(world.profiles) - 1),
        work_s=st.floats(0.1, 200.0),
        submit_s=st.sampled_from((0.0, 0.0, 3.0, 50.0)),
        memory_factor=st.sampled_from((0.8, 1.0)),
    )
    return draw(st.lists(one, min_size=1, max_size=max_size))
