"""Memory that a daemon no longer needs is returned to the system."""

import platform
import subprocess
import sys
import threading

import pytest

from slurm_gpu.daemon.heap import EVERY_S, Heap, giving_back
from tests.node.fakes import FakeClock

# Frees most blocks; each remaining block keeps a separate page of memory in use.
_HOLES = """
from slurm_gpu.daemon.heap import give_back
def own_kib():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
before = own_kib()
stays = [bytes(3000) for _ in range(10_000)][::20]
full = own_kib()
give_back()
print(full - before, own_kib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_holes_between_what_stays_are_given_back() -> None:
    output = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True).stdout
    with_holes_kib, without_kib = map(int, output.split())
    assert with_holes_kib > 20_000
    assert without_kib < with_holes_kib / 3


def test_memory_is_returned_once_a_minute() -> None:
    clock = FakeClock()
    times: list[float] = []
    heap = Heap(clock, lambda: times.append(clock.monotonic()))
    start_s = clock.monotonic()
    for _ in range(400):
        clock.advance(1)
        heap.tend()
    assert times == [pytest.approx(start_s + n * EVERY_S) for n in range(1, 7)]


def test_a_thread_does_it_until_that_is_left() -> None:
    twice, times = threading.Event(), []

    def give_back() -> None:
        times.append(threading.current_thread())
        if len(times) >= 2:
            twice.set()

    with giving_back(give_back, every_s=0.001):
        assert twice.wait(timeout=30)
    assert not any(thread.is_alive() for thread in times)
