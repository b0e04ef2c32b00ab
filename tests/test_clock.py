"""The machine's clocks."""

import time
from pathlib import Path

from slurm_gpu.clock import SystemClock


def test_monotonic_is_the_uptime_that_a_shell_hook_reads():
    before = float(Path("/proc/uptime").read_text().split()[0])
    now = SystemClock().monotonic()
    after = float(Path("/proc/uptime").read_text().split()[0])
    assert before - 0.02 <= now <= after + 0.02


def test_wall_is_epoch_and_the_boot_has_a_name():
    clock = SystemClock()
    assert abs(clock.wall() - time.time()) < 1
    assert clock.boot_id() == SystemClock().boot_id() != ""
