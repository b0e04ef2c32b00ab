"""Run one application of bench/colocation_gpu.py in a separate process, and report its steps.

    .venv/bin/python bench/gpu_worker.py NAME cuda|cpu SCALE

The process prints `{"ready": true}` once it runs. For each line `BEGIN END` on standard input, in seconds of
the monotonic clock, it prints the number of steps in that time. The process exits when standard input ends.
If memory runs out, the process reports this and exits. Steps are queued in at most two batches of about
20 ms: the GPU never waits, and the end of each batch is known.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.gpu_applications import CPU, TORCH, Step

BATCH_S = 0.02
_AHEAD = 2

Done = Callable[[], None]
"""Returns once a batch is done."""


class Steps:
    """Counts of steps over time; between two times the count is interpolated."""

    def __init__(self, now_s: float) -> None:
        self._at_s, self._n = [now_s], [0.0]

    def add(self, at_s: float, n: float) -> None:
        """Add steps that have ended now."""
        self._at_s.append(at_s)
        self._n.append(self._n[-1] + n)

    def between(self, begin_s: float, end_s: float) -> float:
        """Return the steps between two times; raise ValueError if part of that time was not recorded."""
        if not self._at_s[0] <= begin_s < end_s <= self._at_s[-1]:
            raise ValueError(f"seen is {self._at_s[0]} to {self._at_s[-1]}, not {begin_s} to {end_s}")
        return self._by(end_s) - self._by(begin_s)

    def _by(self, at_s: float) -> float:
        after = min(max(bisect_right(self._at_s, at_s), 1), len(self._at_s) - 1)
        since_s, span_s = at_s - self._at_s[after - 1], self._at_s[after] - self._at_s[after - 1]
        part = since_s / span_s if span_s > 0 else 1.0
        return self._n[after - 1] + part * (self._n[after] - self._n[after - 1])


class Orders:
    """The lines of standard input, read by a thread."""

    def __init__(self) -> None:
        self.window: tuple[float, float] | None = None
        self.ends = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            begin_s, end_s = map(float, line.split())
            self.window = begin_s, end_s
        self.ends = True


def run(step: Step, mark: Callable[[], Done], memory_mib: Callable[[], float]) -> None:
    """Run until standard input ends; call `mark` after each batch."""
    orders = Orders()
    n = 1
    while True:  # enough steps for an accurate time
        began_s = time.monotonic()
        for _ in range(n):
            step()
        mark()()
        took_s = time.monotonic() - began_s
        if took_s >= BATCH_S / 2 or n >= 1 << 16:
            break
        n = min(n * 4 if took_s < BATCH_S / 8 else max(n + 1, round(n * BATCH_S / took_s)), 1 << 16)
    report(ready=True, batch=n)
    steps, waiting = Steps(time.monotonic()), deque[Done]()
    while not orders.ends:
        for _ in range(n):
            step()
        waiting.append(mark())
        if len(waiting) < _AHEAD:
            continue
        waiting.popleft()()
        now_s = time.monotonic()
        steps.add(now_s, n)
        if orders.window is not None and now_s >= orders.window[1]:
            begin_s, end_s = orders.window
            orders.window = None
            report(steps=steps.between(begin_s, end_s), memory_mib=memory_mib())
            steps = Steps(now_s)


def report(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def on_gpu(name: str, scale: float) -> None:
    """Run with PyTorch, on the one visible GPU."""
    import torch

    device = torch.device("cuda", 0)
    torch.manual_seed(1)

    def mark() -> Done:
        event = torch.cuda.Event()
        event.record()
        done: Done = event.synchronize
        return done

    try:
        run(TORCH[name](device, scale), mark, lambda: torch.cuda.max_memory_reserved(device) / 2**20)
    except torch.cuda.OutOfMemoryError as error:
        report(out_of_memory=str(error))


def on_cpu(name: str, scale: float) -> None:
    """Run with numpy."""
    run(
        CPU[name](scale),
        lambda: lambda: None,
        lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted({*TORCH, *CPU}))
    parser.add_argument("device", choices=("cuda", "cpu"))
    parser.add_argument("scale", type=float)
    options = parser.parse_args()
    (on_gpu if options.device == "cuda" else on_cpu)(options.name, options.scale)
