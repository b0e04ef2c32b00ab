"""CPU time in nanoseconds and memory of a process and its children."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

_CPUCLOCK_SCHED = 2
_MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """Usage of a process with its running and ended children; PSS divides shared pages."""

    at_s: float
    cpu_s: float
    rss_mib: float
    pss_mib: float
    processes: int


def cost(pid: int) -> Cost:
    """Return the current usage."""
    main = psutil.Process(pid)
    family = [main, *main.children(recursive=True)]
    cpu_s = rss = pss = 0.0
    for process in family:
        memory = process.memory_full_info()
        rss, pss = rss + memory.rss, pss + memory.pss
        ended = process.cpu_times()
        cpu_s += _cpu_clock_s(process.pid) + ended.children_user + ended.children_system
    return Cost(time.monotonic(), cpu_s, rss / _MIB, pss / _MIB, len(family))


def percent_of_a_core(before: Cost, after: Cost) -> float:
    """Return the CPU time between two measurements, in percent of one core."""
    return 100 * (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)


def _cpu_clock_s(pid: int) -> float:
    """Return the CPU time of all threads of a process (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
