"""The simulated library answers pynvml like a driver, and counts calls."""

import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest
from conftest import START, NvmlError

MIB = 2**20
UTIL, MEMORY, POWER = (
    pynvml.NVML_GPU_UTILIZATION_SAMPLES,
    pynvml.NVML_MEMORY_UTILIZATION_SAMPLES,
    pynvml.NVML_TOTAL_POWER_SAMPLES,
)
PCIE_TX, PCIE_RX, ENERGY = 197, 198, 83


def mean(samples):
    return sum(value for _, value in samples) / len(samples)


def fields(node, device, *ids):
    return node.call("nvmlDeviceGetFieldValues", device, list(ids))


class TestIdentity:
    def test_each_device_has_all_its_names(self, node):
        assert node.call("nvmlDeviceGetCount") == 3
        assert node.call("nvmlDeviceGetUUID", 1) == "GPU-00000000-0000-0000-0000-00000000000b"
        assert node.call("nvmlDeviceGetName", 1) == "V100"
        assert node.call("nvmlDeviceGetIndex", 1) == 1
        assert [node.call("nvmlDeviceGetMinorNumber", index) for index in range(3)] == [2, 0, 1]
        pci = node.call("nvmlDeviceGetPciInfo", 2)
        assert (pci["domain"], pci["bus"], pci["device"]) == (0, 0x3B, 0)
        assert (pci["busId"], pci["busIdLegacy"]) == ("00000000:3B:00.0", "0000:3B:00.0")

    @pytest.mark.parametrize(
        ("function", "name"),
        [
            ("nvmlDeviceGetHandleByUUID", "GPU-00000000-0000-0000-0000-00000000000c"),
            ("nvmlDeviceGetHandleByPciBusId", "00000000:3B:00.0"),
            ("nvmlDeviceGetHandleByPciBusId", "0000:3b:00.0"),
        ],
    )
    def test_a_device_is_found_by_its_other_names(self, node, function, name):
        assert node.call(function, None, name) == 2

    def test_unknown_devices_are_refused(self, node):
        with pytest.raises(NvmlError, match="NotFound"):
            node.call("nvmlDeviceGetHandleByUUID", None, "GPU-other")
        with pytest.raises(NvmlError, match="NotFound"):
            node.call("nvmlDeviceGetHandleByPciBusId", None, "0:77:0.0")
        with pytest.raises(NvmlError, match="InvalidArgument"):
            node.call("nvmlDeviceGetHandleByIndex", None, 3)

    def test_the_library_reports_its_versions_and_errors(self, node):
        assert node.call("nvmlSystemGetDriverVersion") == "550.54.15"
        assert node.call("nvmlSystemGetNVMLVersion").startswith("12.")
        assert node.call("nvmlErrorString", None, 15) == "GPU is lost"

    def test_fixed_facts(self, node):
        assert node.call("nvmlDeviceGetEnforcedPowerLimit", 0) == 400_000
        assert node.call("nvmlDeviceGetMaxClockInfo", 0, pynvml.NVML_CLOCK_SM) == 1410
        assert node.call("nvmlDeviceGetMaxClockInfo", 0, pynvml.NVML_CLOCK_MEM) == 1215
        assert node.call("nvmlDeviceGetCurrPcieLinkGeneration", 0) == 4
        assert node.call("nvmlDeviceGetMaxPcieLinkGeneration", 0) == 4
        assert node.call("nvmlDeviceGetCurrPcieLinkWidth", 0) == 16
        assert node.call("nvmlDeviceGetMaxPcieLinkWidth", 0) == 16
        assert node.call("nvmlDeviceGetMigMode", 0) == [0, 0]
        assert node.call("nvmlDeviceGetEccMode", 0) == [1, 1]
        assert node.call("nvmlDeviceGetTotalEccErrors", 0, 0, 0) == 0

    def test_unimplemented_functions_are_missing_as_in_an_old_driver(self, node):
        with pytest.raises(NvmlError, match="FunctionNotFound"):
            node.call("nvmlDeviceGetDisplayMode", 0)


class TestAnIdleDevice:
    def test_reads_as_idle_not_as_nothing(self, node):
        assert node.call("nvmlDeviceGetUtilizationRates", 0) == {"gpu": 0, "memory": 0}
        assert {value for _, value in node.samples(0, UTIL)} == {0}
        assert node.call("nvmlDeviceGetPowerUsage", 0) == 55_000
        assert node.call("nvmlDeviceGetTemperature", 0, 0) == 32
        assert node.call("nvmlDeviceGetClockInfo", 0, pynvml.NVML_CLOCK_SM) == 210
        assert node.call("nvmlDeviceGetCurrentClocksEventReasons", 0) == pynvml.nvmlClocksEventReasonGpuIdle
        assert node.call("nvmlDeviceGetComputeRunningProcesses", 0) == []
        assert node.call("nvmlDeviceGetTotalEnergyConsumption", 0) == 100 * 55_000

    def test_no_process_has_samples(self, node):
        with pytest.raises(NvmlError, match="NotFound"):
            node.call("nvmlDeviceGetProcessUtilization", 0, 0)

    def test_the_driver_reserves_some_memory(self, node):
        first = node.call("nvmlDeviceGetMemoryInfo", 0)
        second = node.call("nvmlDeviceGetMemoryInfo", 0, pynvml.nvmlMemory_v2)
        assert first == {"total": 40960 * MIB, "used": 512 * MIB, "free": 40448 * MIB}
        assert (second["total"], second["reserved"], second["used"]) == (40960 * MIB, 512 * MIB, 0)


class TestABusyDevice:
    def test_readings_follow_the_schedule(self, node):
        node.work(0, (0, 50, 4000), (60, 50, 4000))
        node.now_s += 10
        assert node.call("nvmlDeviceGetUtilizationRates", 0) == {"gpu": 50, "memory": 30}
        assert node.call("nvmlDeviceGetUtilizationRates", 1) == {"gpu": 0, "memory": 0}
        assert node.call("nvmlDeviceGetMemoryInfo", 0)["used"] == 4512 * MIB
        assert node.call("nvmlDeviceGetMemoryInfo", 0, pynvml.nvmlMemory_v2)["used"] == 4000 * MIB
        assert node.call("nvmlDeviceGetPowerUsage", 0) == 55_000 + 345_000 // 2
        assert node.call("nvmlDeviceGetTemperature", 0, 0) == 52
        assert node.call("nvmlDeviceGetTemperatureV", 0, 0) == 52
        assert node.call("nvmlDeviceGetClockInfo", 0, pynvml.NVML_CLOCK_GRAPHICS) == 1410
        assert node.call("nvmlDeviceGetCurrentClocksThrottleReasons", 0) == 0
        assert node.call("nvmlDeviceGetPcieThroughput", 0, 0) == 2_000_000_000 // 2 // 1024

    def test_processes_are_listed_with_their_memory(self, node):
        node.work(0, (0, 50, 4000), (60, 50, 4000), pid=11)
        node.work(0, (0, 10, 0), (10, 10, 2000), (20, 10, 2000), pid=12)
        node.now_s += 5
        found = node.call("nvmlDeviceGetComputeRunningProcesses", 0)
        assert [(process["pid"], process["usedGpuMemory"]) for process in found] == [
            (11, 4000 * MIB),
            (12, 1000 * MIB),
        ]

    def test_memory_never_exceeds_the_device(self, node):
        node.work(1, (0, 0, 10_000), (60, 0, 10_000))
        node.work(1, (0, 0, 10_000), (60, 0, 10_000))
        assert node.call("nvmlDeviceGetMemoryInfo", 1)["free"] == 0


class TestSamples:
    def test_the_ring_contains_twenty_seconds_at_six_per_second(self, node):
        samples = node.samples(0, UTIL)
        stamps = [stamp for stamp, _ in samples]
        assert len(samples) == 120
        assert stamps[-1] == round(node.now_s * 1e6)
        assert {b - a for a, b in pairwise(stamps)} == {166_666, 166_667}

    def test_only_newer_ones_than_last_seen_come_back(self, node):
        stamps = [stamp for stamp, _ in node.samples(0, UTIL)]
        assert [stamp for stamp, _ in node.samples(0, UTIL, stamps[-4])] == stamps[-3:]
        with pytest.raises(NvmlError, match="NotFound"):
            node.samples(0, UTIL, stamps[-1])

    def test_a_ring_starts_at_boot(self, node):
        node.now_s = START + 2.05
        assert len(node.samples(0, UTIL)) == 12

    def test_the_mean_over_a_window_is_the_schedules(self, node):
        # ramps, a pause and odd values: 5 s × 40.4, 5 s from 0 to 99, 3 s × 0, 2 s × 33.3
        node.work(
            0,
            (0, 40.4, 0),
            (5, 40.4, 0),
            (5, 0, 0),
            (10, 99, 0),
            (10, 0, 0),
            (13, 0, 0),
            (13, 33.3, 0),
            (15, 33.3, 0),
        )
        begin_us = round(node.now_s * 1e6)
        node.now_s += 15
        expected = (5 * 40.4 + 5 * 49.5 + 2 * 33.3) / 15
        assert mean(node.samples(0, UTIL, begin_us)) == pytest.approx(expected, abs=0.25)
        assert mean(node.samples(0, MEMORY, begin_us)) == pytest.approx(expected * 0.6, abs=0.25)
        assert mean(node.samples(0, POWER, begin_us)) == pytest.approx(55_000 + 3450 * expected, abs=100)

    def test_collected_in_pieces_they_cover_everything_once(self, node):
        node.work(0, (0.05, 73.7, 0), (60, 12.1, 0))
        last_us, collected = round(node.now_s * 1e6), []
        for _ in range(60):
            node.now_s += 1.0
            collected += node.samples(0, UTIL, last_us)
            last_us = collected[-1][0]
        assert len(collected) == 360
        assert mean(collected) == pytest.approx((73.7 + 12.1) / 2, abs=0.1)

    def test_clocks_have_rings_too(self, node):
        node.work(0, (5, 1, 0), (10, 1, 0))
        node.now_s += 10
        values = [value for _, value in node.samples(0, pynvml.NVML_PROCESSOR_CLK_SAMPLES)]
        assert (values.count(1410), values.count(210)) == (30, 90)


class TestASteppingClock:
    @pytest.mark.parametrize("step_s", [3600, -3600])
    def test_samples_after_a_clock_step_have_shifted_stamps(self, node, step_s):
        node.work(0, (0, 100, 0), (60, 100, 0), pid=11)
        node.now_s += 10
        before_us = node.samples(0, UTIL)[-1][0]
        node.world.step_clock(step_s * 10**9)
        node.now_s += 5
        stamps = [stamp for stamp, _ in node.samples(0, UTIL)]
        shift_us = stamps[90] - stamps[89] - step_s * 10**6
        assert shift_us in {166_666, 166_667}
        assert stamps[89] == before_us
        now_us = round((node.now_s + step_s) * 1e6)
        assert stamps[-1] == node.call("nvmlDeviceGetFieldValues", 0, [ENERGY])[0]["timestamp"] == now_us
        records = node.call("nvmlDeviceGetProcessUtilization", 0, 0)
        assert [record["timeStamp"] for record in records] == stamps[-len(records) :]

    def test_after_a_step_back_nothing_is_newer_than_what_was_seen(self, node):
        node.now_s += 10
        seen_us = node.samples(0, UTIL)[-1][0]
        node.world.step_clock(-60 * 10**9)
        node.now_s += 5
        with pytest.raises(NvmlError, match="NotFound"):
            node.samples(0, UTIL, seen_us)
        assert len(node.samples(0, UTIL, seen_us - 60_000_000)) == 90 + 30
        node.now_s += 60
        assert len(node.samples(0, UTIL, seen_us)) == 30

    def test_samples_between_two_clock_steps_keep_their_stamps(self, node):
        node.world.step_clock(3600 * 10**9)
        node.now_s += 5
        before = node.samples(0, UTIL)[-30:]
        node.world.step_clock(-3600 * 10**9)
        node.now_s += 5
        assert node.samples(0, UTIL)[-60:-30] == before


class TestSharedDevices:
    def test_shares_add_up_to_the_device(self, node):
        node.work(0, (0, 33.3, 0), (20, 33.3, 0), pid=11)
        node.work(0, (0, 33.3, 0), (20, 33.3, 0), pid=12)
        begin_us = round(node.now_s * 1e6)
        node.now_s += 10
        device = dict(node.samples(0, UTIL, begin_us))
        by_tick, by_pid = {}, {11: [], 12: []}
        for record in node.call("nvmlDeviceGetProcessUtilization", 0, begin_us):
            by_tick[record["timeStamp"]] = by_tick.get(record["timeStamp"], 0) + record["smUtil"]
            by_pid[record["pid"]].append(record["smUtil"])
        assert by_tick == device
        assert {pid: round(sum(values) / 60, 1) for pid, values in by_pid.items()} == {11: 33.3, 12: 33.3}

    def test_more_than_a_device_is_cut_in_proportion(self, node):
        node.work(0, (0, 90, 0), (20, 90, 0), pid=11)
        node.work(0, (0, 60, 0), (20, 60, 0), pid=12)
        node.now_s += 10
        assert node.call("nvmlDeviceGetUtilizationRates", 0)["gpu"] == 100
        last_us = round((node.now_s - 0.1) * 1e6)
        records = node.call("nvmlDeviceGetProcessUtilization", 0, last_us)
        assert [(record["pid"], record["smUtil"], record["memUtil"]) for record in records] == [
            (11, 60, 36),
            (12, 40, 24),
        ]


class TestCounters:
    def test_energy_is_the_integral_of_power(self, node):
        node.work(0, (0, 0, 0), (10, 100, 0), (20, 100, 0))
        before = node.call("nvmlDeviceGetTotalEnergyConsumption", 0)
        node.now_s += 30
        used_mj = node.call("nvmlDeviceGetTotalEnergyConsumption", 0) - before
        assert used_mj == pytest.approx(30 * 55_000 + 15 * 345_000, abs=2)
        assert fields(node, 0, ENERGY)[0]["value"] == before + used_mj

    def test_counters_never_go_back_and_survive_the_reuse_of_slots(self, node):
        energy = rx = 0
        for _ in range(600):  # far more processes than are kept at a time
            node.work(0, (0, 80, 0), (0.5, 80, 0))
            node.now_s += 1
            values = [field["value"] for field in fields(node, 0, ENERGY, PCIE_RX)]
            assert values >= [energy, rx]
            energy, rx = values
        assert node.world.content.slots_used < 30
        assert energy == pytest.approx(700 * 55_000 + 300 * 0.8 * 345_000, abs=5)
        assert rx == pytest.approx(300 * 0.8 * 6e9, abs=100)

    def test_byte_counters_follow_the_load(self, node):
        node.work(0, (0, 50, 0), (10, 50, 0))
        node.now_s += 20
        tx, rx = fields(node, 0, PCIE_TX, PCIE_RX)
        assert (tx["value"], rx["value"]) == (10_000_000_000, 30_000_000_000)
        assert tx["valueType"] == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        assert tx["timestamp"] == round(node.now_s * 1e6)

    def test_each_field_has_its_own_verdict(self, node):
        known, retired = fields(node, 0, 186, 29)
        assert (known["nvmlReturn"], known["value"]) == (pynvml.NVML_SUCCESS, 55_000)
        assert retired["nvmlReturn"] == pynvml.NVML_ERROR_NOT_SUPPORTED

    def test_calls_are_counted(self, node):
        before = node.world.calls()
        for _ in range(3):
            node.call("nvmlDeviceGetPowerUsage", 1)
        after = node.world.calls()
        assert after["nvmlDeviceGetPowerUsage"] - before["nvmlDeviceGetPowerUsage"] == 3
        assert after["nvmlDeviceGetHandleByIndex_v2"] - before["nvmlDeviceGetHandleByIndex_v2"] == 3
        assert after["nvmlDeviceGetName"] == before["nvmlDeviceGetName"]


class TestProcesses:
    def test_a_killed_process_is_noticed_and_its_schedule_ends_then(self, node):
        process = subprocess.Popen(["sleep", "1000"])
        now_ns = node.world.now_ns()
        node.world.register(0, [(now_ns, 90.0, 3000.0), (now_ns + 10**12, 90.0, 3000.0)], process.pid)
        node.now_s += 5
        assert len(node.call("nvmlDeviceGetComputeRunningProcesses", 0)) == 1
        process.kill()
        deadline = time.monotonic() + 5
        while Path(f"/proc/{process.pid}/stat").read_text().split()[2] != "Z":  # a zombie does not use a GPU
            assert time.monotonic() < deadline
        assert node.call("nvmlDeviceGetComputeRunningProcesses", 0) == []
        process.wait()
        node.now_s += 5
        assert node.call("nvmlDeviceGetUtilizationRates", 0)["gpu"] == 0
        assert node.call("nvmlDeviceGetMemoryInfo", 0, pynvml.nvmlMemory_v2)["used"] == 0
        values = [value for _, value in node.samples(0, UTIL, round((node.now_s - 10) * 1e6))]
        assert values == [90] * 30 + [0] * 30

    def test_another_process_under_its_number_is_not_it(self, node):
        with subprocess.Popen(["sleep", "1000"]) as process:
            now_ns = node.world.now_ns()
            points = [(now_ns, 90.0, 3000.0), (now_ns + 10**12, 90.0, 3000.0)]
            node.world.register(0, points, process.pid, started=12345)
            node.now_s += 1
            assert node.call("nvmlDeviceGetComputeRunningProcesses", 0) == []
            process.kill()

    def test_a_noted_end_counts(self, node):
        slot = node.work(0, (0, 50, 100), (100, 50, 100))
        node.now_s += 4
        node.world.end(slot, node.world.now_ns())
        node.now_s += 6
        assert sum(value for _, value in node.samples(0, UTIL)) == 24 * 50
