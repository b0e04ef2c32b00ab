"""Print the progress of scale.py every half minute, so that a collapse is visible while it lasts."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

EACH_S = 30.0
RESULT = np.dtype(
    [("due_s", "f8"), ("sent_s", "f8"), ("done_s", "f8")]
    + [(field, "u4") for field in ("node", "n_records", "tries", "stored", "stale", "rejected")]
)
"""struct result of scale_plan.h: a shipment that was answered with 200."""


@contextlib.contextmanager
def printed_progress(results: Path, pids: Sequence[int]) -> Iterator[None]:
    """Print the answers of each half minute, and the processor time of slurm-gpudbd's `pids`, to stderr."""
    over = threading.Event()
    ours = [psutil.Process(pid) for pid in pids]

    def print_line() -> None:
        began_s = since_s = time.monotonic()
        before, n_answered = _spent(ours), 0
        while not over.wait(EACH_S):
            now_s, spent = time.monotonic(), _spent(ours)
            answered = np.fromfile(results, RESULT)  # only complete results
            line = _line(answered[n_answered:], now_s - since_s, *(spent - before))
            print(f"{now_s - began_s:6.0f} s: {line}", file=sys.stderr, flush=True)
            since_s, before, n_answered = now_s, spent, len(answered)

    thread = threading.Thread(target=print_line, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _spent(ours: Sequence[psutil.Process]) -> Any:
    """Return seconds of processor time, and the number of involuntary and voluntary context switches."""
    times = [process.cpu_times() for process in ours]
    cpu_s = sum(one.user + one.system for one in times)
    return np.array([cpu_s, sum(_n_switches(process.pid) for process in ours)])


def _n_switches(pid: int) -> int:
    n_switches = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):  # psutil counts only the main thread's
        with contextlib.suppress(OSError):  # the thread has ended
            lines = (line.split() for line in status.read_text().splitlines())
            n_switches += sum(int(line[1]) for line in lines if line[0].endswith("_ctxt_switches:"))
    return n_switches


def _line(answered: Any, seconds: float, cpu_s: float, n_switches: float) -> str:
    cost = f"slurm-gpudbd {100 * cpu_s / seconds:.0f} % of a core, {n_switches / seconds:.0f} switches/s"
    if not len(answered):
        return f"nothing was answered; {cost}"
    p50_s, p99_s = np.percentile(answered["done_s"] - answered["due_s"], (50, 99))
    n_records = int(answered["n_records"].sum())
    return (
        f"{len(answered) / seconds:.0f} posts/s, {n_records / seconds:.0f} records/s, p50 {p50_s:.3f} s, "
        f"p99 {p99_s:.3f} s; {cost}, {1000 * cpu_s / len(answered):.2f} ms a post"
    )
