"""An impossible value is read again, then counted and reported; its field becomes a gap."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab.simgpu.creation import create
from lab.simgpu.load import Point
from lab.simgpu.specs import hopper
from lab.simgpu.world import World
from slurm_gpu.node.gpu.nvml import NvmlReader
from slurm_gpu.node.gpu.reading import Reading, ReadRequest
from slurm_gpu.node.shipping.implausible import AGAIN_S, ImplausibleValues
from slurm_gpu.wire import Record
from tests.database.samples import host
from tests.node.fakes import FakeClock, FakeGpu
from tests.node.machine import Machine
from tests.node.nonsense import replace_library
from tests.node.simulated import load_library, shut_down_nvml

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")

START_NS = 1_800_000_000 * 10**9
Change = Callable[..., None]


class Altered:
    """The library; `change` maps functions to changes of their answers, applied at most `times` times."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.change: dict[str, Change] = {}
        self.times = 10**9

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real: Callable[..., Any] = getattr(self._library, name)
        if not name.startswith("nvml"):
            return real

        def call(*arguments: Any) -> Any:
            code = real(*arguments)
            if name in self.change and self.times > 0:
                self.times -= 1
                self.change[name](*(getattr(argument, "_obj", argument) for argument in arguments))
            return code

        return call


class Gpu:
    """A Hopper GPU at 40 %, read with all details every second."""

    def __init__(self, world: World, library: Altered) -> None:
        self._world, self._at_s, self.library = world, 100.0, library
        self._reader = NvmlReader(lambda *_: None, lambda: self._at_s)
        self.facts = self._reader.devices()[0]
        self.read()

    def read(self) -> Reading:
        self._at_s += 1
        self._world.stop_clock(START_NS + round(self._at_s * 1e9))
        after_us = round((START_NS / 1e9 + self._at_s - 1) * 1e6)
        request = ReadRequest("GPU-a", True, True, after_us, after_us)
        return self._reader.read([request]).readings["GPU-a"]


@pytest.fixture
def gpu(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    load_library(nvml_library)
    path = tmp_path / "gpus.world"
    create(path, [hopper("GPU-a", minor=0)], boot=START_NS / 1e9)
    monkeypatch.setenv("SIMGPU_WORLD", str(path))
    world = World(path)
    world.stop_clock(START_NS + 100 * 10**9)
    points = [Point(START_NS, 40, 5000), Point(START_NS + 10_000 * 10**9, 40, 5000)]
    world.register(0, points, pid=os.getpid())
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    library = Altered(pynvml.nvmlLib)
    with replace_library(monkeypatch, library):
        yield Gpu(world, library)
    shut_down_nvml()


def number(value: int) -> Change:
    def change(*arguments: Any) -> None:
        arguments[-1].value = value

    return change


def rates(gpu: int, memory: int) -> Change:
    def change(_: Any, answer: Any) -> None:
        answer.gpu, answer.memory = gpu, memory

    return change


def memory(used: int, total: int) -> Change:
    def change(_: Any, answer: Any) -> None:
        answer.used, answer.total = used, total

    return change


def temperature(value: int) -> Change:
    def change(_: Any, answer: Any) -> None:
        answer.temperature = value

    return change


def metric(number: int, value: float) -> Change:
    def change(answer: Any) -> None:
        for item in answer.metrics[: answer.numMetrics]:
            if item.metricId == number:
                item.value = value

    return change


def process(pid: int, used: int) -> Change:
    def change(_: Any, count: Any, answer: Any) -> None:
        count.value, answer[0].pid, answer[0].usedGpuMemory = 1, pid, used

    return change


def process_sample(percent: int) -> Change:
    def change(_: Any, answer: Any, count: Any, __: Any) -> None:
        answer[0].smUtil = percent

    return change


def sample(percent: int | None = None, stamp: int | None = None, count: int | None = None) -> Change:
    def change(_: Any, __: Any, ___: Any, ____: Any, n: Any, answer: Any) -> None:
        if percent is not None:
            answer[1].sampleValue.uiVal = percent
        if stamp is not None:
            answer[1].timeStamp = stamp
        if count is not None:
            n.value = count

    return change


def counter(field: int, value: int) -> Change:
    def change(_: Any, __: Any, answer: Any) -> None:
        for item in answer if hasattr(answer, "__len__") else ():
            if item.fieldId == field:
                item.value.ullVal = value

    return change


UINT, ULONG = 2**32 - 1, 2**64 - 1
MEMORY, UTILIZATION, GPM = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates", "nvmlGpmMetricsGet"
SAMPLES, FIELDS = "nvmlDeviceGetSamples", "nvmlDeviceGetFieldValues"
PROCESSES, SHARES = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"
# The field that becomes a gap, the function, and the change of its answer.
ANSWERS: list[tuple[str, str, Change]] = [
    ("power_w", "nvmlDeviceGetPowerUsage", number(UINT)),
    ("power_w", "nvmlDeviceGetPowerUsage", number(10_000_001)),
    ("temp_c", "nvmlDeviceGetTemperatureV", temperature(-5)),
    ("temp_c", "nvmlDeviceGetTemperatureV", temperature(201)),
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", number(10_001)),
    ("throttle", "nvmlDeviceGetCurrentClocksEventReasons", number(ULONG)),
    ("util_pct", UTILIZATION, rates(101, 20)),
    ("mem_util_pct", UTILIZATION, rates(40, UINT)),
    ("memory", MEMORY, memory(ULONG, 80 << 30)),
    ("memory", MEMORY, memory(0, 0)),
    ("memory", MEMORY, memory(2**60, 2**60)),
    ("sm_active", GPM, metric(2, 101.0)),
    ("sm_occupancy", GPM, metric(3, float("nan"))),
    ("tensor", GPM, metric(5, -3.0)),
    ("dram", GPM, metric(10, float("inf"))),
    ("pcie_tx_bytes_per_s", GPM, metric(20, 1e12)),
    ("pcie_rx_bytes_per_s", GPM, metric(21, -1e6)),
    ("processes", PROCESSES, process(2**31, 5)),
    ("process_memory", PROCESSES, process(7, 2**60)),
    ("process_ring", SHARES, process_sample(101)),
    ("ring", SAMPLES, sample(stamp=ULONG)),
    ("ring", SAMPLES, sample(count=UINT)),
    ("energy_mj", FIELDS, counter(83, 2**62)),
    ("pcie_rx_bytes", FIELDS, counter(198, 2**62)),
    ("pcie_tx_bytes", FIELDS, counter(197, 2**62)),
    ("nvlink_rx_bytes", FIELDS, counter(139, 2**50)),
    ("nvlink_tx_bytes", FIELDS, counter(138, 2**50)),
    ("ecc_corrected", FIELDS, counter(3, 2**62)),
    ("ecc_uncorrected", FIELDS, counter(4, 2**62)),
]


def gaps(reading: Reading) -> set[str]:
    found = {name for name, value in reading._asdict().items() if value is None} - {"implausible"}
    if reading.activity is not None:
        found |= {name for name, value in reading.activity._asdict().items() if value is None}
    if reading.ring == []:
        found.add("ring")
    if reading.processes is not None and any(process.used is None for process in reading.processes):
        found.add("process_memory")
    return found


@pytest.mark.parametrize(("field", "function", "change"), ANSWERS)
def test_an_implausible_answer_costs_only_its_field(
    gpu: Gpu, field: str, function: str, change: Change
) -> None:
    assert gaps(gpu.read()) == set()
    gpu.library.change[function] = change
    reading = gpu.read()
    assert gaps(reading) == {field}
    assert list(reading.implausible or ()) == [field]
    gpu.library.change.clear()
    after = gpu.read()
    if field in ("energy_mj", "pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes"):
        assert gaps(after) <= {field}
    else:
        assert (gaps(after), after.implausible) == (set(), None)


@pytest.mark.parametrize(("field", "function", "change"), ANSWERS)
def test_a_single_implausible_answer_is_read_again_and_costs_nothing(
    gpu: Gpu, field: str, function: str, change: Change
) -> None:
    gpu.library.change[function], gpu.library.times = change, 1
    reading = gpu.read()
    assert (gaps(reading), reading.implausible) == (set(), None)


@pytest.mark.parametrize(
    ("field", "number", "value", "expected"),
    [("pcie_rx_bytes_per_s", 21, -1e-9, 0.0), ("dram", 10, -1e-9, 0.0), ("sm_active", 2, 100.001, 1.0)],
)
def test_rounding_errors_of_gpm_are_not_implausible(
    gpu: Gpu, field: str, number: int, value: float, expected: float
) -> None:
    gpu.library.change[GPM] = metric(number, value)
    reading = gpu.read()
    assert reading.implausible is None
    assert getattr(reading.activity, field) == expected


def test_a_changed_memory_total_is_read_again_and_accepted_if_it_persists(gpu: Gpu) -> None:
    total = gpu.facts.memory_bytes
    gpu.library.change[MEMORY], gpu.library.times = memory(5 << 30, 640 << 30), 1
    reading = gpu.read()
    assert reading.memory is not None
    assert (reading.memory.total, reading.implausible) == (total, None)
    gpu.library.times = 1000
    reading = gpu.read()
    assert reading.memory == (5 << 30, 640 << 30)


def test_a_sample_over_100_percent_is_a_gap_of_its_own_time(gpu: Gpu) -> None:
    gpu.library.change[SAMPLES] = sample(percent=101)
    reading = gpu.read()
    assert reading.ring is not None
    assert [taken.percent is None for taken in reading.ring][:3] == [False, True, False]
    assert reading.implausible == {"util_pct": "101"}


def test_a_gpu_whose_ring_has_samples_over_100_percent_has_a_gap_and_the_true_mean(tmp_path: Path) -> None:
    class Spoilt(FakeGpu):
        def utilization_samples(self, after_us: int) -> Any:
            samples = super().utilization_samples(after_us) or []
            # One of ten samples is wrong; the driver takes six samples per second.
            return [s._replace(percent=None) if s.at_us * 6 // 10**6 % 10 == 0 else s for s in samples]

    gpu = Spoilt(FakeClock())
    machine = Machine(tmp_path, gpu)
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.hook("epilog", 7, "0")
    machine.run(5)
    (record,) = machine.records()
    assert 0.85 <= record.sampled_s / record.allocated_s <= 0.95


def test_time_around_a_short_loss_of_a_device_is_not_counted_twice(tmp_path: Path) -> None:
    gpu = FakeGpu(FakeClock())
    machine = Machine(tmp_path, gpu)
    machine.start()
    machine.hook("prolog", 7, "0")
    for _ in range(5):
        machine.run(20)
        gpu.lost = True
        machine.run(2)
        gpu.lost = False
        machine.run(0.01)
    machine.hook("epilog", 7, "0")
    machine.run(5)
    (record,) = machine.records()
    assert record.sampled_s <= record.allocated_s
    assert sum((record.util_hist_ms or {}).values()) <= 1000 * record.allocated_s + 1


class Reported:
    def __init__(self) -> None:
        self.clock, self.events = FakeClock(), list[tuple[str | None, str]]()
        self.values = ImplausibleValues(self.clock, self.report)

    def report(self, device: str | None, data: Mapping[str, Any]) -> None:
        self.events.append((device, data["field"]))


def test_each_field_of_a_device_is_reported_once_an_hour_and_counted_each_time() -> None:
    reported = Reported()
    for _ in range(5):
        reported.values.note("GPU-a", {"power_w": "4294967.295", "temp_c": "-5"})
        reported.values.note("GPU-b", {"power_w": "4294967.295"})
        reported.values.note("GPU-b", None)
        reported.clock.advance(1)
    assert reported.events == [("GPU-a", "power_w"), ("GPU-a", "temp_c"), ("GPU-b", "power_w")]
    assert reported.values.counts == {"power_w": 10, "temp_c": 5}
    reported.clock.advance(AGAIN_S)
    reported.values.note("GPU-a", {"power_w": "1e9"})
    assert reported.events[3:] == [("GPU-a", "power_w")]


@pytest.mark.parametrize(
    "field", ["cpu_s", "rss_max_mib", "read_bytes", "write_bytes", "net_rx_bytes", "ib_tx_bytes"]
)
@pytest.mark.parametrize("value", [-1, 2**63])
def test_an_implausible_value_of_the_host_costs_its_field(field: str, value: int) -> None:
    reported, good = Reported(), host(net_rx_bytes=5, ib_tx_bytes=6)
    if (field, value) == ("cpu_s", 2**63):
        value *= 1000
    assert reported.values.host(dataclasses.replace(good, **{field: value})) == dataclasses.replace(
        good, **{field: None}
    )
    assert reported.values.counts == {field: 1}
    assert reported.values.host(good) is good


def test_an_implausible_live_value_of_the_node_is_left_out() -> None:
    reported = Reported()
    values = {"cpu_pct": 250.0, "mem_used_mib": 5.0, "net_rx_bytes_per_s": None}
    assert reported.values.of_node(values) == {"mem_used_mib": 5.0}
    assert reported.events == [(None, "cpu_pct")]


def test_the_daemon_counts_and_reports_implausible_values(tmp_path: Path) -> None:
    implausible = {"power_w": None, "implausible": {"power_w": "4294967.295"}}
    machine = Machine(tmp_path, FakeGpu(FakeClock(), more_detail=lambda: implausible))
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(60)
    assert machine.node is not None
    assert machine.node.implausible.counts["power_w"] > 5
    assert machine.events() == ["implausible"]
    assert machine.event_data() == [{"field": "power_w", "value": "4294967.295"}]
    machine.hook("epilog", 7, "0")
    machine.run(5)
    (record,) = machine.records()
    assert isinstance(record, Record)
    assert record.mem_used_frac is not None
