"""Run every planner of bench/colocation.py on the same jobs with the same beliefs, and compute the bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from bench.colocation_belief import LearnedBelief
from bench.colocation_beliefs import predicted_belief
from bench.colocation_trial_belief import TrialBelief
from bench.colocation_workloads import THESIS, THESIS_WORLD, thesis_jobs
from slurm_gpu.colocation.learned.models import read_any
from slurm_gpu.colocation.learned.net import Net
from slurm_gpu.colocation.planner import Belief, Member, PlannerView, Start
from slurm_gpu.colocation.planners.bound import least_makespan
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.registry import Setting, planner
from slurm_gpu.colocation.research.contest import BASELINE, TimedPlanner
from slurm_gpu.colocation.research.workloads import (
    TABLE,
    table_jobs,
    table_world,
)
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld, World
from slurm_gpu.colocation.tables.pair_table import PairTable
from slurm_gpu.colocation.tables.read import read_table

MODES = {"throughput": math.inf, "considerate": 1.10}
"""The largest slowdown in mode considerate."""
SLOWED = 1 / 6
"""The fraction of jobs that may be slowed down noticeably in mode considerate: 5 of 30."""
TOGETHER_THESIS, TOGETHER_TABLE = 3, 2
"""Maximum number of jobs that share a GPU: three in the thesis, two in tables of pairs."""


@dataclass(frozen=True, slots=True)
class Place:
    """The description of a benchmark's world, small enough to be sent to another process."""

    table: Path | None
    """A file of measured speeds; None: the thesis's applications."""
    gpu_model: str | None
    n_jobs: int
    n_gpus: int
    predicted: tuple[Path, ...] = ()
    """The files of `predict_unseen`, by division into folds; empty: planners get true speeds only."""
    nets: Path | None = None
    """The folder to which `colocation_learned.learn` wrote its nets."""
    slowed: float = SLOWED
    """The fraction of jobs that annealing may slow down noticeably in mode considerate."""

    @property
    def information(self) -> tuple[str, ...]:
        """Return the beliefs of planners by name."""
        return ("known", "predicted") if self.predicted else ("known",)

    @property
    def most_together(self) -> int:
        return TOGETHER_THESIS if self.table is None else TOGETHER_TABLE

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(THESIS) if self.table is None else TABLE

    def world(self) -> World:
        return THESIS_WORLD if self.table is None else _table_world(self.table, self.gpu_model)

    def jobs(self, workload: str, seed: int) -> list[SharingJob]:
        if self.table is None:
            return thesis_jobs(workload, seed, self.n_jobs)
        return table_jobs(read_table(self.table, self.gpu_model), workload, seed, self.n_jobs)


@cache
def _table_world(table: Path, gpu_model: str | None) -> World:
    return table_world(read_table(table, gpu_model))


def known(place: Place, cap: float) -> KnownBelief:
    """Return the true speeds."""
    return KnownBelief(place.world(), most_together=place.most_together, cap=cap)


def division(place: Place, seed: int) -> int:
    """Return the division whose predictions planners use for this list of jobs; divisions alternate."""
    return seed % len(place.predicted)


def believed(place: Place, information: str, cap: float, seed: int) -> KnownBelief:
    """Return the belief with this name: `known` or `predicted`."""
    if information == "known":
        return known(place, cap)
    if information == "predicted" and place.table is not None and place.predicted:
        path = place.predicted[division(place, seed)]
        return predicted_belief(place.world(), path, most_together=place.most_together, cap=cap)
    raise ValueError(f"there is no belief {information!r} here")


def setting_of(place: Place, mode: str, information: str, *, seed: int) -> Setting:
    """Return the inputs from which a planner is built."""
    world = place.world()
    return Setting(
        belief=believed(place, information, MODES[mode], seed),
        profiles=world.profiles,
        capacity_mib=world.capacity_mib,
        seed=seed,
        slowed=place.slowed,
        nets={} if place.nets is None else nets(place.nets, mode, information),
    )


LEARNED_OURS = "dqngpu"
LEARNED_THEIRS = ("dqngpu_thesis", "deeprm_max", "deeprm_mean")
"""Planners that need utilisation over time (not in tables of pairs), use no cap, and are trained once."""


def net_path(folder: Path, mode: str, information: str, name: str) -> Path:
    """Return the path of the net of a learned planner."""
    if name in LEARNED_THEIRS:
        mode, information = "throughput", "known"
    return folder / f"{name}-{mode}-{information}.npz"


@cache
def nets(folder: Path, mode: str, information: str) -> Mapping[str, Net]:
    """Return the models of all trained planners."""
    paths = {name: net_path(folder, mode, information, name) for name in (LEARNED_OURS, *LEARNED_THEIRS)}
    return {name: read_any(path).net for name, path in paths.items() if path.exists()}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one planner on one list of jobs."""

    workload: str
    seed: int
    mode: str
    information: str
    planner: str
    makespan_s: float
    alone_s: float
    """The makespan of `BASELINE`: one job per GPU, shortest first."""
    bound_s: float
    """Lower bound of the makespan of any schedule that respects the mode's cap."""
    spared_bound_s: float
    """The bound of schedules that also slow down at most a sixth of the jobs noticeably."""
    utilisation: float | None
    memory: float | None
    memory_peak_mib: float | None
    together: float
    out_of_memory: int
    separated: int
    """The number of times that the guard requeued a job."""
    slowdown: tuple[float, ...]
    """The slowdown of each job's completed run."""
    decisions_ms: tuple[float, ...]
    """Processor time of each call with a decision."""
    full_ms: tuple[float, ...]
    """Processor time of each decision in which waiting jobs filled the scorer's slots and a GPU had room."""

    @property
    def ratio(self) -> float:
        return self.makespan_s / self.alone_s

    @property
    def gap(self) -> float:
        return self.makespan_s / self.bound_s - 1

    @property
    def spared_gap(self) -> float:
        return self.makespan_s / self.spared_bound_s - 1


@dataclass(frozen=True, slots=True)
class Task:
    """All runs of one list of jobs."""

    place: Place
    workload: str
    seed: int
    planners: tuple[str, ...]


def runs(task: Task) -> list[Run]:
    """Run all planners; the baseline does not depend on the belief and runs once."""
    return list(_runs(task))


def _runs(task: Task) -> Iterator[Run]:
    place = task.place
    world, jobs = place.world(), place.jobs(task.workload, task.seed)
    first = _run(task, world, jobs, "throughput", "known", BASELINE, math.nan, (math.nan, math.nan))
    for mode, cap in MODES.items():
        bound_s, spared_s = (
            least_makespan(
                world,
                jobs,
                n_gpus=place.n_gpus,
                most_together=place.most_together,
                cap=cap,
                most_slowed=most_slowed,
            ).makespan_s
            for most_slowed in (math.inf, SLOWED * len(jobs))
        )
        bounds_s = bound_s, spared_s
        yield _with(first, mode, bounds_s)
        for information in place.information:
            for name in task.planners:
                if name != BASELINE:
                    yield _run(task, world, jobs, mode, information, name, first.makespan_s, bounds_s)


def _with(run: Run, mode: str, bounds_s: tuple[float, float]) -> Run:
    return replace(run, mode=mode, alone_s=run.makespan_s, bound_s=bounds_s[0], spared_bound_s=bounds_s[1])


def _run(
    task: Task,
    world: World,
    jobs: Sequence[SharingJob],
    mode: str,
    information: str,
    name: str,
    alone_s: float,
    bounds_s: tuple[float, float],
) -> Run:
    setting = setting_of(task.place, mode, information, seed=task.seed)
    timed = TimedPlanner(planner(name, setting), task.place.most_together)
    watcher = setting.belief if isinstance(setting.belief, TrialBelief) else None
    guard = watcher if math.isfinite(setting.belief.cap) else None
    ran = simulate(world, jobs, timed, n_gpus=task.place.n_gpus, watcher=watcher, guard=guard)
    return Run(
        task.workload,
        task.seed,
        mode,
        information,
        name,
        ran.makespan_s,
        alone_s,
        *bounds_s,
        ran.utilisation,
        ran.memory,
        ran.memory_peak_mib,
        ran.together,
        ran.out_of_memory,
        int(ran.separations.sum()),
        tuple(ran.slowdown.tolist()),
        tuple(timed.took_ms),
        tuple(timed.full_ms),
    )


def decisions_alone(place: Place, seeds: Sequence[int], name: str) -> dict[str, float | None]:
    """Return one planner's p99 in ms of decisions with full slots and of all (throughput, known speeds).

    Call this function while no other process of the benchmark runs, because processes that share a core's
    caches slow each other down.
    """
    full_ms: list[float] = []
    all_ms: list[float] = []
    for workload in place.workloads:
        for seed in seeds:
            setting = setting_of(place, "throughput", "known", seed=seed)
            timed = TimedPlanner(planner(name, setting), place.most_together)
            simulate(place.world(), place.jobs(workload, seed), timed, n_gpus=place.n_gpus)
            full_ms += timed.full_ms
            all_ms += timed.took_ms
    return {
        key: float(np.percentile(some, 99)) if some else None
        for key, some in (("decision_ms_p99", full_ms), ("decision_ms_p99_all", all_ms))
    }


APPLICATIONS = (26, 52, 100)
"""Numbers of applications in generated tables: as many as Gavel's, and up to four times as many."""


def decisions_by_applications(place: Place, seeds: Sequence[int]) -> dict[int, float]:
    """Return the p99 in ms of dqngpu's decisions with full slots, by the number of applications.

    Tables are generated (throughput, known speeds). The lists of each number run in turn, so that a change of
    the load affects all numbers.
    """
    full_ms: dict[int, list[float]] = {n: [] for n in APPLICATIONS}
    for seed in seeds:
        for n, took_ms in full_ms.items():
            random = np.random.default_rng((n, seed))
            world = _generated(random, n)
            drawn = random.integers(n, size=_GENERATED_JOBS)
            work_s = np.exp(random.uniform(4, 6.4, _GENERATED_JOBS))
            setting = Setting(
                belief=KnownBelief(world, most_together=place.most_together),
                profiles=world.profiles,
                capacity_mib=world.capacity_mib,
                nets={} if place.nets is None else nets(place.nets, "throughput", "known"),
            )
            timed = TimedPlanner(planner(LEARNED_OURS, setting), place.most_together)
            jobs = [SharingJob(int(one), float(s)) for one, s in zip(drawn, work_s, strict=True)]
            simulate(world, jobs, timed, n_gpus=place.n_gpus)
            took_ms += timed.full_ms
    return {n: float(np.percentile(some, 99)) for n, some in full_ms.items()}


_GENERATED_JOBS = 150


def _generated(random: np.random.Generator, n: int) -> TableWorld:
    """Return random applications, each with a sensitivity to co-runners and an effect on them."""
    sensitive, light = random.uniform(0.3, 1, (2, n))
    speeds = (sensitive[:, None] + light) / 2 + random.normal(0, 0.05, (n, n))
    profiles = [
        ApplicationProfile(f"generated {one}", "generated", (ProfilePhase(seconds=100.0),))
        for one in range(n)
    ]
    return TableWorld(profiles, PairTable([one.application for one in profiles], speeds.clip(0.2, 1)))


MEMORY_ERROR = 0.2
"""The maximum relative deviation of jobs' memory from the recorded value."""


class AnyFit:
    """Start waiting jobs at random wherever the belief permits sharing, for many different groups."""

    name = "any that fits"

    def __init__(self, belief: Belief, seed: int) -> None:
        self._belief, self._random = belief, np.random.default_rng(seed)

    def choose(self, view: PlannerView) -> list[Start]:
        for gpu in self._random.permutation(len(view.gpus)).tolist():
            running = view.gpus[gpu].running
            if len(running) >= self._belief.most_together:
                continue
            for at in self._random.permutation(len(view.waiting)).tolist():
                one: Member = view.waiting[at]
                if not running or self._belief.may_share((*running, one)):
                    return [Start(gpu, (one.job,))]
        return []


@dataclass(frozen=True, slots=True)
class Placements:
    """The results for jobs whose memory differs from their profiles."""

    n: int
    out_of_memory: int
    together: float
    """Mean number of jobs on a GPU, over the time in which it had any."""


def place_with_errors(headroom: float | None, n_placements: int, seed: int) -> Placements:
    """Place the thesis's jobs, with memory errors of up to MEMORY_ERROR, until `n_placements` is reached.

    `headroom` is a fraction of each job's memory, used with a belief without errors. If it is None, the
    belief and the headroom are learned from these jobs.
    """
    random = np.random.default_rng(seed)
    belief: KnownBelief | LearnedBelief
    if headroom is None:
        belief = LearnedBelief(
            THESIS_WORLD.profiles, THESIS_WORLD.capacity_mib, most_together=TOGETHER_THESIS
        )
    else:
        belief = KnownBelief(THESIS_WORLD, most_together=TOGETHER_THESIS, headroom=headroom)
    watcher = belief if isinstance(belief, LearnedBelief) else None
    n = kills = 0
    together: list[float] = []
    while n < n_placements:
        jobs = [
            SharingJob(one.application, one.work_s, memory_factor=factor)
            for one, factor in zip(
                thesis_jobs("random", int(random.integers(1 << 31)), 100),
                random.uniform(1 - MEMORY_ERROR, 1 + MEMORY_ERROR, 100).tolist(),
                strict=True,
            )
        ]
        ran = simulate(THESIS_WORLD, jobs, AnyFit(belief, int(random.integers(1 << 31))), watcher=watcher)
        n += ran.placements
        kills += ran.out_of_memory
        together.append(ran.together)
    return Placements(n, kills, float(np.mean(together)))
