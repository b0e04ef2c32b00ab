"""The clocks of SystemClock agree with those of the kernel."""

import time
from pathlib import Path

from slurm_gpu.clock import SystemClock


def test_monotonic_equals_proc_uptime():
    before = float(Path("/proc/uptime").read_text().split()[0])
    now = SystemClock().monotonic()
    after = float(Path("/proc/uptime").read_text().split()[0])
    assert before - 0.02 <= now <= after + 0.02


def test_wall_is_epoch_time_and_boot_has_an_id():
    clock = SystemClock()
    assert abs(clock.wall() - time.time()) < 1
    assert clock.boot_id() == SystemClock().boot_id() != ""
