"""Calls hang on a hung GPU, and take realistic times if a benchmark requests them."""

import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

from lab.nvml.call_times import FILE, call_times
from lab.simgpu import faults
from lab.simgpu.calls import CallTime, set_times
from lab.simgpu.creation import function_names
from lab.simgpu.errors import RequestError

ONE_CALL = """
import signal, sys
import pynvml
signal.signal(signal.SIGTERM, lambda *_: sys.exit("a handler ran"))
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
print(pynvml.nvmlDeviceGetPowerUsage(handle))
"""


@pytest.fixture
def ask_power(node, nvml_library):
    """Start a process that reads a device's power, and return the process."""
    started = []

    def ask(device):
        command = [sys.executable, "-c", ONE_CALL, str(device)]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(nvml_library.parent),
            "SIMGPU_WORLD": str(node.path),
        }
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield ask
    for process in started:
        process.kill()
        process.communicate()


def called(node, name, times):
    deadline = time.monotonic() + 10
    while node.world.calls()[name] < times:
        assert time.monotonic() < deadline, f"{name} was not called"
        time.sleep(0.005)


def test_a_hanging_call_ends_only_by_kill_and_other_devices_answer(node, ask_power):
    faults.hang(node.world, 1, ["nvmlDeviceGetPowerUsage"])
    process = ask_power(1)
    called(node, "nvmlDeviceGetPowerUsage", 1)
    process.terminate()
    assert node.call("nvmlDeviceGetPowerUsage", 0) == 55_000
    assert node.call("nvmlDeviceGetTemperature", 1, 0) == 32
    assert process.poll() is None
    process.kill()
    assert process.wait(5) == -signal.SIGKILL


def test_a_hanging_call_continues_once_fixed(node, ask_power):
    faults.hang(node.world, 1)
    process = ask_power(1)
    called(node, "nvmlDeviceGetHandleByIndex_v2", 1)
    faults.clear(node.world, 1)
    assert process.communicate(timeout=10) == ("55000\n", None)


def test_the_driver_itself_can_hang(node, ask_power):
    before = node.world.calls()["nvmlInitWithFlags"]
    faults.hang(node.world, 2, ["nvmlInitWithFlags"])
    process = ask_power(0)
    called(node, "nvmlInitWithFlags", before + 1)
    assert node.call("nvmlDeviceGetPowerUsage", 2) == 55_000
    assert process.poll() is None


def test_whole_devices_hang_but_not_the_library(node):
    faults.hang(node.world, 1)
    assert node.call("nvmlDeviceGetCount") == 3
    assert node.call("nvmlDeviceGetPowerUsage", 2) == 55_000
    with pytest.raises(RequestError, match="function 'nvmlX'"):
        faults.hang(node.world, 1, ["nvmlX"])


def cpu_ms(node, *call):
    """Return the processor time of pynvml's process for one call."""
    before = node.cpu_s()
    node.call(*call)
    return (node.cpu_s() - before) * 1000


def test_calls_take_the_time_they_are_given(node):
    set_times(
        node.world,
        {
            "nvmlDeviceGetName": CallTime(cpu_us=60_000),
            "nvmlDeviceGetPowerUsage": CallTime(wait_us=60_000),
            "nvmlDeviceGetFieldValues": CallTime(item_cpu_us=20_000),
        },
    )
    assert cpu_ms(node, "nvmlDeviceGetName", 0) >= 50
    assert cpu_ms(node, "nvmlDeviceGetFieldValues", 0, [1, 83, 186]) >= 50
    began = time.perf_counter()
    assert cpu_ms(node, "nvmlDeviceGetPowerUsage", 0) < 50
    assert time.perf_counter() - began >= 0.06
    set_times(node.world, {})
    assert cpu_ms(node, "nvmlDeviceGetName", 0) < 50


def test_real_times_are_known_for_every_function(node):
    usual, worst = call_times(), call_times(upper=True)
    assert list(usual) == list(worst) == function_names()
    assert usual["nvmlDeviceGetMemoryInfo"] == worst["nvmlDeviceGetMemoryInfo"] == CallTime(11.6)
    assert (usual["nvmlDeviceGetPowerUsage"].cpu_us, worst["nvmlDeviceGetPowerUsage"].cpu_us) == (137.1, 365)
    assert all(worst[name] >= time for name, time in usual.items())
    set_times(node.world, worst)
    assert fields_ns(node) == (5_000, 137_100)
    with pytest.raises(RequestError, match="function 'nvmlX'"):
        set_times(node.world, {"nvmlX": CallTime(1)})


def fields_ns(node):
    call = node.world.content.calls[function_names().index("nvmlDeviceGetFieldValues")]
    return call.cpu_ns, call.item_cpu_ns


def test_sources_of_the_times_are_named():
    document = yaml.safe_load(FILE.read_text())
    assert set(document["functions"]) <= set(function_names())
    for name, entry in document["functions"].items():
        assert entry["from"] in {"assumed", *document["sources"]}, name
        assert entry["from"] != "assumed" or "note" in entry, name
