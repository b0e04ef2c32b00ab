"""What a diagnosis costs: time and memory of one, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass

import numpy as np

from bench.diagnose_injector import WINDOW_S, generator, perform
from bench.diagnose_injector_job import draw_job
from bench.diagnose_injector_play import Play
from bench.diagnose_injector_record import (
    EDGE_S,
    Recording,
    draw_collector,
    record_timeline,
    record_window,
)
from slurm_gpu.diagnose.judge import diagnose

_GPUS = 128
_DAY_S = 86400
_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`seconds` from what was told to the verdict, at worst of a few; the memory of the whole process."""

    seconds: float
    memory_mb: float


def costs(seed: int) -> dict[str, Cost]:
    """Of the last ten minutes of a training on 128 GPUs, and of its course of a day."""
    recordings = {}
    for name, length_s in (("window", WINDOW_S), ("course of 24 h", _DAY_S)):
        rng = generator(seed, f"cost, {name}", 0)
        step_s = (2.0, 4.0) if length_s == WINDOW_S else (60.0, 90.0)
        job = draw_job(rng, n_gpus=_GPUS, pipeline=True, step_s=step_s)
        play = Play(job=job, rng=rng, start=-EDGE_S)
        perform(play, length_s + EDGE_S, None, [])
        record = record_window if length_s == WINDOW_S else record_timeline
        recordings[name] = record(play, draw_collector(job, rng, length_s, gaps=False), length_s, rng)
    found = {}
    for name, recording in recordings.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found[name] = pool.apply(_cost, (recording,))
    return found


def _cost(recording: Recording) -> Cost:
    seconds = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        diagnose(recording.series())
        seconds.append(time.perf_counter() - begin)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cost(seconds=float(np.max(seconds)), memory_mb=used)
