"""Build training runs from two traced straggling jobs by resampling, as step timings and as streams.

The traces (arXiv 2505.05713; ST: 2 replicas of 4 stages, 32 steps, the last stage does 1.63 times as much
work; SE: 32 replicas of 2 stages, 43 steps, sequences of unequal length) have no telemetry. A block bootstrap
draws consecutive steps, and replicas and stages, from one trace. The times of ST, relative to the median of
each stage, give the variation of computing in a healthy training run. The microbatches of SE, relative to
their stage's median and raised to a power, give sequences with a chosen inequality. These times replace those
of bench/diagnose_injector_play.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet
from numpy.typing import NDArray

from bench.diagnose_injector import WINDOW_S, Case, generator, perform
from bench.diagnose_injector_fault import Fault
from bench.diagnose_injector_job import Floats, Job, draw_job
from bench.diagnose_injector_play import Play
from bench.diagnose_injector_record import EDGE_S, draw_collector, record_window
from bench.diagnose_injector_steps import Condition
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.steps.table import read_steps
from slurm_gpu.diagnose.verdict import Cause

KINDS = ("healthy", "stage", "healthy", "sequence", "healthy", "slow GPU", "healthy", "shard")
BLOCK = 4
"""Number of consecutive steps that are drawn together."""
TIMED_STEPS = 40
"""Number of steps in a file of timings, about as many as in the traces."""
_OPERATIONS = ("forward-compute", "backward-compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Seconds of computing: forward and backward (2, steps, microbatches, stages, replicas)."""

    seconds: Floats

    def relative(self) -> Floats:
        """Return times relative to the median of each stage's forward and backward passes."""
        return np.asarray(self.seconds / np.median(self.seconds, axis=(1, 2, 4), keepdims=True))


@cache
def read_trace(path: Path) -> Trace:
    """Read a Parquet file of the published format. Raises ValueError for a missing operation."""
    names = ["dp_rank", "stage", "step", "mb_id", "optype", "duration"]
    table = pyarrow.parquet.read_table(path, columns=names)
    kind = np.array(table["optype"].to_pylist())
    columns = {name: np.asarray(table[name]) for name in names if name != "optype"}
    wanted = np.isin(kind, _OPERATIONS)
    places, sizes = [], []
    for name in ("step", "mb_id", "stage", "dp_rank"):
        values, place = np.unique(columns[name][wanted], return_inverse=True)
        places.append(place)
        sizes.append(len(values))
    seconds = np.full((2, *sizes), np.nan)
    which = (kind[wanted] == _OPERATIONS[1]).astype(np.intp)
    seconds[(which, *places)] = columns["duration"][wanted]
    if np.isnan(seconds).any():
        raise ValueError(f"{path}: not every step, microbatch, stage and replica has both its operations")
    return Trace(seconds=seconds)


class Resampled:
    """Draws relative times (2, n, microbatches, stages, replicas) of steps from a trace, in blocks."""

    def __init__(self, relative: Floats, stages: int, replicas: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._relative = relative[..., rng.integers(relative.shape[4], size=replicas)]
        self._relative = self._relative[:, :, :, rng.integers(relative.shape[3], size=stages)]

    def draw(self, n: int) -> Floats:
        """Return the next n steps, with microbatches in random order."""
        n_steps, microbatches = self._relative.shape[1:3]
        begins = self._rng.integers(n_steps, size=-(-n // BLOCK))
        steps = ((begins[:, None] + np.arange(BLOCK)) % n_steps).ravel()[:n]
        return np.asarray(self._relative[:, steps][:, :, self._rng.permutation(microbatches)])


def resampled(seed: int, number: int, folder: Path) -> Case:
    """Return the `number`th training run, with steps from trace-ST.parquet and trace-SE.parquet."""
    rng = generator(seed, "resampled", number)
    kind = KINDS[number % len(KINDS)]
    sequences = kind == "sequence"
    st, se = (read_trace(folder / "straggler" / f"trace-{name}.parquet") for name in ("ST", "SE"))
    stages = int(rng.choice([2, 4]))
    job = _job(rng, stages, se if sequences else st)
    size = 0.0 if kind == "healthy" else float(rng.uniform(0.05, 0.6))
    fault = _fault(kind, job, size, rng)
    noise = Resampled(st.relative(), stages, job.data, rng)
    # Sequences are equally long for all stages, so one stage of the trace represents all.
    lengths = Resampled(_sequences(se, size if sequences else 0.0), 1, job.data, rng)
    passes = np.median((se if sequences else st).seconds[:, :, :, :1], axis=(1, 2, 3, 4))
    computed: list[Floats] = []

    def compute(n: int) -> Floats:
        seconds = noise.draw(n)
        if sequences:
            drawn = lengths.draw(n)
            seconds = np.resize(seconds, (*drawn.shape[:3], stages, job.data)) * drawn
        seconds = seconds * passes[:, None, None, None, None] * _work_factors(kind, job, size, fault)
        computed.append(seconds)
        return np.asarray(seconds.sum(axis=0))

    play = Play(job=job, rng=rng, start=-EDGE_S)
    perform(play, WINDOW_S + EDGE_S, fault, [], compute)
    collector = replace(draw_collector(job, rng, WINDOW_S), silent=())
    recording = record_window(play, collector, WINDOW_S, rng)
    names = tuple(f"stage {stage}" for stage in range(stages))
    return Case(
        name=f"resampled {number}",
        kind=kind,
        fault=fault,
        recording=recording,
        groups=Groups(of=job.place()[0].astype(np.intp), names=names, source="given"),
        running=True,
        length_s=float(WINDOW_S),
        timeline=False,
        steps=read_steps(table(computed[0], job, fault, rng)),
    )


def table(
    seconds: Floats, job: Job, fault: Fault | None, rng: np.random.Generator
) -> dict[str, NDArray[np.generic]]:
    """Return some steps as timings of a training run: one row per operation."""
    n, _, stages, replicas = seconds.shape[1:]
    chosen = np.sort(rng.choice(n, min(n, TIMED_STEPS), replace=False))
    slow = job.spread if fault is None else job.spread * _slowness(job, fault)
    seconds = seconds[:, chosen] * slow.reshape(stages, replicas)
    which, step, microbatch, stage, replica = np.indices(seconds.shape).reshape(5, -1)
    return {
        "dp_rank": replica,
        "stage": stage,
        "rank": stage * replicas + replica,
        "step": chosen[step],
        "mb_id": microbatch,
        "optype": np.array(_OPERATIONS)[which],
        "duration": seconds.ravel(),
    }


def _job(rng: np.random.Generator, stages: int, trace: Trace) -> Job:
    """Return a training run of that many stages, with steps as long as in the trace."""
    n_gpus = int(rng.choice([8, 16, 32]))
    job = draw_job(rng, n_gpus=n_gpus, pipeline=True)
    stage = np.arange(n_gpus) // (n_gpus // stages)
    return replace(
        job,
        pipeline=stages,
        tensor=1,
        data=n_gpus // stages,
        microbatches=trace.seconds.shape[2],
        microbatch_s=float(np.median(trace.seconds[:, :, :, :1], axis=(1, 2, 3, 4)).sum()),
        stage_work=np.ones(stages),
        jitter=1e-4,  # the trace contains its own variation
        tensor_comm=0.0,
        comm_s=0.2,
        optimizer_s=0.05,
        memory=np.clip(0.7 - 0.05 * stage + rng.normal(0, 0.004, n_gpus), 0, 1),
    )


def _fault(kind: str, job: Job, size: float, rng: np.random.Generator) -> Fault | None:
    stage, replica, _ = job.place()
    if kind == "healthy":
        return None
    if kind == "slow GPU":
        who = int(rng.integers(job.n_workers))
        clock = np.ones(job.n_workers)
        clock[who] = job.clock_bound / (job.clock_bound + size)
        condition = Condition(clock=clock)
        return Fault(
            cause=Cause.SLOW, kind=kind, size=size, since_s=None, condition=condition, culprits=(who,)
        )
    has_more = {
        "stage": stage == job.pipeline - 1,
        "shard": replica == int(rng.integers(job.data)),
        "sequence": np.zeros(job.n_workers, dtype=bool),
    }[kind]
    return Fault(
        cause=Cause.IMBALANCE,
        kind=f"{kind}, resampled",
        size=size,
        since_s=None,
        culprits=tuple(np.flatnonzero(has_more).tolist()),
        exact=False,
        named=kind != "sequence",
    )


def _work_factors(kind: str, job: Job, size: float, fault: Fault | None) -> Floats:
    """Return the factors of work (stages, replicas)."""
    more = np.ones(job.n_workers)
    if kind in ("stage", "shard") and fault is not None:
        more[list(fault.culprits)] += size
    return more.reshape(job.pipeline, job.data)


def _slowness(job: Job, fault: Fault) -> Floats:
    clock = np.broadcast_to(np.asarray(fault.condition.clock, dtype=float), job.n_workers)
    return np.asarray(job.clock_bound / clock + 1 - job.clock_bound)


def _sequences(trace: Trace, size: float) -> Floats:
    """Return SE's first stage, raised to a power: its slowest replica does 1 + size times the mean work."""
    relative = trace.relative()[:, :, :, :1]
    low, high = 0.0, 4.0
    for _ in range(30):
        power = (low + high) / 2
        work = (relative**power).mean(axis=(0, 2, 3))
        if (work.max(axis=1) / work.mean(axis=1)).mean() < 1 + size:
            low = power
        else:
            high = power
    return np.asarray(relative**low)
