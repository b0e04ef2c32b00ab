"""Only processes with the preloaded clock see steps of a simulated host."""

import os
import subprocess
import sys
import time

import pytest
from conftest import Nvml

from lab import nvml as nvml_sources
from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import GpuSpec
from lab.simgpu.world import World

NEAR_S = 20.0  # the time that a busy machine may need to start a process
GPU = "GPU-00000000-0000-0000-0000-00000000000a"

# Print the time from each function, once for every line read.
ASK = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.time.restype = ctypes.c_long
for line in sys.stdin:
    pair, other = (ctypes.c_long * 2)(), (ctypes.c_long * 2)()
    assert libc.gettimeofday(pair, None) == 0
    assert libc.timespec_get(other, 1) == 1
    from_libc = [libc.time(None), pair[0] + pair[1] / 1e6, other[0] + other[1] / 1e9]
    walls = [time.time(), time.clock_gettime(5), *from_libc]
    print(*walls, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


@pytest.fixture(scope="session")
def wallclock(tmp_path_factory):
    return nvml_sources.build_wallclock(tmp_path_factory.mktemp("wallclock"))


@pytest.fixture
def world(tmp_path):
    create(tmp_path / "w", [GpuSpec(GPU)], boot=time.time() - 100)
    return World(tmp_path / "w")


@pytest.fixture
def environment(tmp_path, wallclock, world):
    return {**os.environ, "LD_PRELOAD": str(wallclock), "SIMGPU_WORLD": str(tmp_path / "w")}


def test_processes_see_clock_steps_and_their_reversal(world, environment):
    with subprocess.Popen(
        [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as asking:
        for step_s, ahead_s in ((0, 0), (3600, 3600), (-3600, 0), (-86400, -86400)):
            world.step_clock(step_s * 10**9)
            asking.stdin.write("now\n")
            asking.stdin.flush()
            *walls, monotonic_s, boot_s = map(float, asking.stdout.readline().split())
            assert [wall_s - time.time() for wall_s in walls] == pytest.approx([ahead_s] * 5, abs=NEAR_S)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=NEAR_S)
            assert boot_s == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=NEAR_S)
        asking.stdin.close()


def test_a_shell_script_sees_it_too(world, environment):
    world.step_clock(-3600 * 10**9)
    command = ["sh", "-c", "date +%s"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) - time.time() == pytest.approx(-3600, abs=NEAR_S)
    assert done.stderr == ""


def test_without_a_world_the_real_clock_is_used_with_a_warning(environment, tmp_path):
    for path in (tmp_path / "missing", tmp_path / "empty"):
        (tmp_path / "empty").touch()
        done = subprocess.run(
            ["date", "+%s"],
            env={**environment, "SIMGPU_WORLD": str(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) == pytest.approx(time.time(), abs=NEAR_S)
        assert "SIMGPU_WORLD must name the world file of this host" in done.stderr


def test_gpus_work_on_by_their_schedules(world, environment, nvml_library, monkeypatch, tmp_path):
    now_ns = world.now_ns()
    points = [Point(now_ns - 30 * 10**9, 60, 0), Point(now_ns + 900 * 10**9, 60, 0)]
    world.register(0, points, 4242, started=0)
    world.step_clock(3600 * 10**9)
    monkeypatch.setenv("LD_PRELOAD", environment["LD_PRELOAD"])
    monkeypatch.setenv("SIMGPU_WORLD", environment["SIMGPU_WORLD"])
    nvml = Nvml(nvml_library)
    try:
        nvml.request(world=str(tmp_path / "w"))
        assert nvml.request(call="nvmlDeviceGetUtilizationRates", device=0, args=[])["gpu"] == 60
    finally:
        nvml.close()
