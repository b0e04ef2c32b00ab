"""Draw cases for bench/diagnose.py: training runs with a fault, and healthy ones with other activities.

Equal (seed, class, number) give equal cases, regardless of other draws.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bench.diagnose_injector_fault import Fault
from bench.diagnose_injector_faults import CAUSES, draw_fault, wants_pipeline
from bench.diagnose_injector_job import Job, draw_job
from bench.diagnose_injector_play import Draw, Pause, Play
from bench.diagnose_injector_record import (
    EDGE_S,
    Collector,
    Recording,
    draw_collector,
    record_timeline,
    record_window,
)
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.steps.table import StepSeries
from slurm_gpu.diagnose.verdict import Cause

WINDOW_S = 600
TIMELINES = 4
"""One case in this number lasts hours and has timelines; the others are windows of ten minutes."""
HEALTHY_KINDS = (
    "plain",
    "checkpoints",
    "evaluation",
    "loading",
    "hiccups",
    "beginning",
    "larger batch",
    "ended",
)
UNDECIDABLE_KINDS = ("slow links from the beginning", "all slow from the beginning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """An activity of a training run from `at_s` on: a pause, or different steps for a while."""

    at_s: float
    pause: Pause | None = None
    condition: Condition | None = None
    until_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One recorded training run, and its expected verdict."""

    name: str
    kind: str
    fault: Fault | None
    """None: the training run is healthy."""
    recording: Recording
    groups: Groups | None
    running: bool
    length_s: float
    timeline: bool
    undecidable: bool = False
    """Whether the recorded values equal those of a healthy training run."""
    play: Play | None = field(default=None, repr=False)
    steps: StepSeries | None = field(default=None, repr=False)
    """The timings of the training itself."""

    @property
    def job(self) -> Job:
        """Return the training run."""
        return self.recording.job

    @property
    def cause(self) -> Cause:
        """Return the expected verdict."""
        return Cause.HEALTHY if self.fault is None else self.fault.cause

    @property
    def gpu_hours(self) -> float:
        """Return the observed GPU-hours."""
        return self.job.n_workers * self.length_s / 3600


def generator(seed: int, name: str, number: int) -> np.random.Generator:
    """Return the random generator of this case."""
    return np.random.default_rng([seed, zlib.crc32(name.encode()), number])


def faulty(seed: int, cause: Cause, number: int) -> Case:
    """Return the `number`th training run with a fault of this class."""
    rng = generator(seed, cause.value, number)
    timeline = number % TIMELINES == TIMELINES - 1 and cause is not Cause.HANG
    # Kinds of faults and kinds of recorded data vary independently.
    turn = number + number // TIMELINES
    length_s = _length(rng, timeline=timeline)
    job = _job(rng, length_s, pipeline=wants_pipeline(cause, turn))
    fault = draw_fault(cause, turn, job, length_s, rng)
    if timeline and fault.stop is not None:
        timeline, length_s = False, WINDOW_S
        job = _job(rng, length_s)
        fault = draw_fault(cause, turn, job, length_s, rng)
    life = _activities(job, rng, length_s, "")
    collector = draw_collector(job, rng, length_s)
    if fault.needs_hosts:
        collector = replace(collector, hosts=True)
        if timeline:  # without host values, a timeline only shows that all workers are slower
            fault = replace(fault, named=False, since_s=fault.since_s or 0.4 * length_s)
    if fault.lost is not None and fault.since_s is not None:
        collector = replace(collector, lost=((fault.lost, fault.since_s),))
    return _case(f"{cause.value} {number}", fault.kind, job, fault, life, collector, rng, length_s, timeline)


def healthy(seed: int, number: int) -> Case:
    """Return the `number`th healthy training run."""
    rng = generator(seed, "healthy", number)
    timeline = number % TIMELINES == TIMELINES - 1
    kind = HEALTHY_KINDS[(number + number // TIMELINES) % len(HEALTHY_KINDS)]
    length_s = _length(rng, timeline=timeline)
    job = _job(rng, length_s)
    life = _activities(job, rng, length_s, kind)
    collector = draw_collector(job, rng, length_s)
    return _case(f"healthy {number}", kind, job, None, life, collector, rng, length_s, timeline)


def undecidable(seed: int, number: int) -> Case:
    """Return a slow training run whose recorded values appear healthy."""
    rng = generator(seed, "undecidable", number)
    job = _job(rng, WINDOW_S)
    kind = UNDECIDABLE_KINDS[number % len(UNDECIDABLE_KINDS)]
    condition = Condition(comm=3.0) if number % 2 == 0 else Condition(clock=0.8)
    fault = Fault(
        cause=Cause.INCONCLUSIVE, kind=kind, size=0.3, since_s=None, condition=condition, named=False
    )
    life = _activities(job, rng, WINDOW_S, "")
    collector = draw_collector(job, rng, WINDOW_S)
    case = _case(f"undecidable {number}", kind, job, fault, life, collector, rng, WINDOW_S, False)
    return replace(case, undecidable=True)


def _length(rng: np.random.Generator, *, timeline: bool) -> float:
    return float(round(np.exp(rng.uniform(*np.log([3600, 86400]))))) if timeline else float(WINDOW_S)


def _job(rng: np.random.Generator, length_s: float, pipeline: bool | None = None) -> Job:
    if length_s == WINDOW_S:
        return draw_job(rng, pipeline=pipeline)
    # A day is simulated with longer steps, which appear the same in bins of minutes.
    least = max(4.0, length_s / 1500)
    return draw_job(rng, pipeline=pipeline, step_s=(least, least * 2))


def _case(
    name: str,
    kind: str,
    job: Job,
    fault: Fault | None,
    life: list[Activity],
    collector: Collector,
    rng: np.random.Generator,
    length_s: float,
    timeline: bool,
) -> Case:
    play = Play(job=job, rng=rng, start=-EDGE_S)
    perform(play, length_s + EDGE_S, fault, life)
    record = record_timeline if timeline else record_window
    events = () if fault is None else fault.events
    recording = record(play, collector, int(length_s), rng, events)
    stages = job.place()[0].astype(np.intp)
    names = tuple(f"stage {stage}" for stage in range(job.pipeline))
    has_groups = rng.random() < 0.5
    return Case(
        name=name,
        kind=kind,
        fault=fault,
        recording=recording,
        groups=Groups(of=stages, names=names, source="given") if has_groups else None,
        running=kind != "ended",
        length_s=length_s,
        timeline=timeline,
        play=play,
    )


def perform(
    play: Play, end_s: float, fault: Fault | None, life: list[Activity], compute: Draw | None = None
) -> None:
    """Run the activities in chronological order; the fault is active from its start on."""
    usual = Condition()
    since = np.inf if fault is None else -np.inf if fault.since_s is None else fault.since_s
    begun = fault is None or fault.since_s is None
    changes = sorted(life, key=lambda item: item.at_s)
    current: Activity | None = None
    while play.now < end_s:
        if not begun and fault is not None and play.now >= since:
            begun = True
            if fault.before is not None:
                play.pause(fault.before)
            if fault.stop is not None:
                play.pause(replace(fault.stop, seconds=end_s - play.now))
                return
        if current is not None and play.now >= current.until_s:
            current = None
        if current is None and changes and play.now >= changes[0].at_s:
            happening = changes.pop(0)
            if happening.pause is not None:
                play.pause(replace(happening.pause, seconds=min(happening.pause.seconds, end_s - play.now)))
            if happening.condition is not None:
                current = happening
            continue
        wrong = fault.condition if fault is not None and play.now >= since else usual
        condition = wrong
        if current is not None and current.condition is not None:
            usually = current.condition
            condition = replace(wrong, forward_only=usually.forward_only, microbatches=usually.microbatches)
        stops = [end_s, since if play.now < since else np.inf]
        stops.append(current.until_s if current is not None else changes[0].at_s if changes else np.inf)
        play.train(min(stops), condition, compute)


def _activities(job: Job, rng: np.random.Generator, length_s: float, kind: str) -> list[Activity]:
    """Return the activities other than training: always `kind`, and others at random."""
    found: list[Activity] = []
    window = length_s == WINDOW_S

    def has(name: str, part: float) -> bool:
        return kind == name or (kind != "plain" and rng.random() < part)

    if has("checkpoints", 0.35):
        period = float(np.exp(rng.uniform(*np.log([150, 1800] if window else [900, 7200]))))
        found += _checkpoints(job, rng, length_s, period)
    if has("evaluation", 0.12):
        period = float(rng.uniform(200, 1200) if window else rng.uniform(1800, 7200))
        long_s = float(rng.uniform(15, 90)) * (1 if window else 3)
        for at in np.arange(rng.uniform(0, 0.8 * min(period, length_s)), length_s, period):
            found.append(Activity(at_s=at, condition=Condition(forward_only=True), until_s=at + long_s))
            some = rng.random(job.n_workers) < 0.5
            found.append(
                Activity(at_s=at + long_s, pause=Pause(seconds=float(rng.uniform(0.2, 3)), spins=some))
            )
    if has("loading", 0.08):
        at = float(rng.uniform(0.05, 0.9) * length_s)
        pause = Pause(
            seconds=float(np.exp(rng.uniform(*np.log([5, 60])))),
            spins=_no_workers(job),
            writes=np.ones(job.n_nodes, dtype=bool),
            cpu=float(rng.uniform(0.5, 0.9)),
        )
        found.append(Activity(at_s=at, pause=pause))
    if window and has("hiccups", 0.25):
        for _ in range(int(rng.integers(1, 4))):
            spins = ~_no_workers(job)
            who = int(rng.integers(job.n_workers))
            spins[who : who + (1 if rng.random() < 0.7 else job.per_node)] = False
            pause = Pause(seconds=float(np.exp(rng.uniform(*np.log([0.5, 8])))), spins=spins, cpu=job.cpu)
            found.append(Activity(at_s=float(rng.uniform(0, length_s)), pause=pause))
    if kind == "beginning":
        first = Pause(
            seconds=float(rng.uniform(20, 90)), spins=_no_workers(job), cpu=float(rng.uniform(0.1, 0.6))
        )
        found.append(Activity(at_s=-EDGE_S, pause=first))
        at = first.seconds + float(rng.uniform(2, 8)) * job.step_s
        compiles = Pause(seconds=float(rng.uniform(2, 30)), spins=_no_workers(job), cpu=0.2)
        found.append(Activity(at_s=at, pause=compiles))
    if kind == "larger batch":
        more = float(rng.choice([1.5, 2.0]))
        at = float(rng.uniform(0.2, 0.8) * length_s)
        found.append(Activity(at_s=at, condition=Condition(microbatches=more), until_s=np.inf))
    if kind == "ended":
        idle = float(rng.uniform(2, 20))
        found = [item for item in found if item.at_s < length_s - idle - 5]
        found.append(
            Activity(at_s=length_s - idle, pause=Pause(seconds=idle + 2 * EDGE_S, spins=_no_workers(job)))
        )
    return found


def _checkpoints(job: Job, rng: np.random.Generator, length_s: float, period: float) -> list[Activity]:
    """Write checkpoints: by rank 0 while others wait, by all, or in the background after a copy."""
    way = rng.choice(3)
    spins = np.full(job.n_workers, way == 0)
    spins[0] = False
    writes = np.ones(job.n_nodes, dtype=bool)
    if way == 0:
        writes[1:] = False
    seconds = rng.uniform(1, 4) if way == 2 else np.exp(rng.uniform(*np.log([3, 90])))
    pauses = []
    for at in np.arange(rng.uniform(0, min(period, length_s)), length_s, period):
        long_s = float(seconds * rng.lognormal(0, 0.15))
        pause = Pause(seconds=long_s, spins=spins, writes=writes, copies_s=min(long_s / 3, 2.0))
        pauses.append(Activity(at_s=float(at), pause=pause))
    return pauses


def _no_workers(job: Job) -> NDArray[np.bool_]:
    return np.zeros(job.n_workers, dtype=bool)


__all__ = ["CAUSES", "HEALTHY_KINDS", "Case", "faulty", "healthy", "perform", "undecidable"]
