"""Measure time and memory of one diagnosis in a separate process.

.venv/bin/python -m bench.diagnose_cost FILE # a pickled Series; bench/diagnose.py calls it
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.series import Series

_GPUS = 128
_DAY_S = 86400
_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The maximum time in seconds from records to verdict, and the memory of the whole process."""

    seconds: float
    memory_mb: float


def costs(seed: int) -> dict[str, Cost]:
    """Measure the last ten minutes of a training run on 128 GPUs, and its timeline of a day."""
    return {name: _cost_of(series) for name, series in _drawn(seed)}


def _drawn(seed: int) -> Iterator[tuple[str, Series]]:
    # The modules are imported here, because the measured process does not need them.
    from bench.diagnose_injector import WINDOW_S, generator, perform
    from bench.diagnose_injector_job import draw_job
    from bench.diagnose_injector_play import Play
    from bench.diagnose_injector_record import EDGE_S, draw_collector, record_timeline, record_window

    for name, length_s in (("window", WINDOW_S), ("course of 24 h", _DAY_S)):
        rng = generator(seed, f"cost, {name}", 0)
        step_s = (2.0, 4.0) if length_s == WINDOW_S else (60.0, 90.0)
        job = draw_job(rng, n_gpus=_GPUS, pipeline=True, step_s=step_s)
        play = Play(job=job, rng=rng, start=-EDGE_S)
        perform(play, length_s + EDGE_S, None, [])
        record = record_window if length_s == WINDOW_S else record_timeline
        recording = record(play, draw_collector(job, rng, length_s, gaps=False), length_s, rng)
        yield name, recording.series()


def _cost_of(series: Series) -> Cost:
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        pickle.dump(series, file)
        file.flush()
        argv = [sys.executable, "-m", "bench.diagnose_cost", file.name]
        root = Path(__file__).resolve().parents[1]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=root)
    return Cost(**json.loads(done.stdout))


def main() -> None:
    """Diagnose the series in a file, and print a Cost as JSON."""
    series: Series = pickle.loads(Path(sys.argv[1]).read_bytes())
    seconds = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        diagnose(series)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": max(seconds), "memory_mb": _most_mb()}))


def _most_mb() -> float:
    """Return the peak memory of this process; getrusage includes that of its parent before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no VmHWM, the peak memory")


if __name__ == "__main__":
    main()
