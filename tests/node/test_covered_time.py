"""No series of a record covers time in which the device was not read."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import Activity, DeviceCounter, Failure, ReadError, UtilizationSample
from slurm_gpu.node.measure.intervals import OWN_S
from slurm_gpu.wire import Mean, Record, Total
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine
from tests.node.test_host_mode import ALICE, HostMachine, work

# While slurm-gpud or its reader is stalled, the driver still increments counters and fills its ring.
SILENT = ("absent", "stalled")
BY_COUNTERS = {
    *(field.name for field in dataclasses.fields(Record) if field.type == "Total | None"),
    *("power_w", "sm_active_frac", "sm_occupancy_frac", "tensor_frac", "dram_frac"),
}
BY_RING = ("sampled_s", "util_hist_ms", "device_util_pct")
# slurm-gpud interpolates detailed readings over gaps of up to this duration.
BRIDGED_S = 20.0


class EverythingGpu(FakeGpu):
    """A GPU that reports every field; if it is `quiet`, its ring is empty."""

    quiet: bool = False
    sampled_s: float = 0.0

    def utilization_samples(self, after_us: int) -> Sequence[UtilizationSample] | None:
        return [] if self.quiet else super().utilization_samples(after_us)

    def everything(self) -> dict[str, Any]:
        now_s = self.clock.now_s
        seconds, self.sampled_s = now_s - self.sampled_s, now_s
        counters = ("pcie_rx_bytes", "pcie_tx_bytes", "nvlink_rx_bytes", "nvlink_tx_bytes", "ecc_corrected")
        return {
            **dict.fromkeys(counters, DeviceCounter(round(1000 * now_s))),
            "throttle": ["sw_power_cap"],
            "activity": Activity(seconds, 0.5, 0.5, 0.5, 0.5) if seconds > 0 else None,
        }


def everything_gpu(clock: FakeClock, ring: str) -> EverythingGpu:
    facts = {"power_limit_w": 200.0, "sm_clock_max_mhz": 2000.0, "pcie_bytes_per_s": 1e9}
    gpu = EverythingGpu(clock, ring=ring != "none", more_facts=facts)
    gpu.quiet, gpu.more_detail = ring == "quiet", gpu.everything
    return gpu


def seconds_of(record: Record) -> Mapping[str, float]:
    """Return the measured seconds of each series of a record."""
    found: dict[str, float] = {"sampled_s": record.sampled_s}
    for field in dataclasses.fields(Record):
        value = getattr(record, field.name)
        match value:
            case Mean() | Total():
                found[field.name] = value.seconds
            case None:
                pass
            case _ if field.name.endswith("_hist_ms"):
                found[field.name] = sum(value.values()) / 1000
            case _ if field.name in ("no_process_s", "energy_sampled_s"):
                found[field.name] = value
            case _ if field.name == "throttle_s":
                found |= {f"throttle_s.{reason}": seconds for reason, seconds in value.items()}
    return found


@pytest.mark.parametrize("ring", ["quiet", "none"])
def test_a_driver_that_starts_late_covers_no_earlier_time(tmp_path: Path, ring: str) -> None:
    gpu = everything_gpu(FakeClock(), ring)
    machine = Machine(tmp_path, gpu)
    machine.reader.loaded = False
    machine.start()
    start = machine.clock.now_s
    machine.hook("prolog", 7, "0")
    machine.run(17)
    machine.reader.loaded = True
    machine.run_until(start + 30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.allocated_s == pytest.approx(30, abs=0.1)
    read_s = 30 - 17
    seconds = seconds_of(record)
    assert {"no_process_s", "temp_c", "power_w", "sm_clock_mhz", "util_hist_ms"} <= seconds.keys()
    for name, covered_s in seconds.items():
        assert covered_s <= read_s + OWN_S, name


def test_a_job_of_a_machine_without_slurm_is_not_measured_before_it_is_noticed(
    tmp_path: Path, clock: FakeClock
) -> None:
    gpu = everything_gpu(clock, "none")
    host = HostMachine(tmp_path, gpu)
    host.start()
    start = clock.now_s
    gpu.work.append(work(ALICE, start + 0.5, start + 30))
    host.run(40)
    (record,) = host.records()
    noticed_s = 3.0
    assert record.allocated_s > 25
    for name, covered_s in seconds_of(record).items():
        assert covered_s <= record.allocated_s - noticed_s + OWN_S + 1.0, name
    assert record.mem_hist_ms is not None
    assert record.sampled_s == pytest.approx(sum(record.mem_hist_ms.values()) / 1000, abs=0.2)


@pytest.mark.parametrize("ring", ["ticks", "none"])
def test_sampled_time_equals_utilisation_time_from_the_start(tmp_path: Path, ring: str) -> None:
    """After half a second the job has samples of memory but not yet of utilisation."""
    machine = Machine(tmp_path, everything_gpu(FakeClock(), ring))
    machine.start()
    machine.hook("prolog", 7, "0")
    for _ in range(40):
        machine.run(0.25)
        assert machine.node is not None
        for segment in machine.node._life.segments:
            record = segment.tallies["GPU-0"].record(machine.clock.now_s)
            util_s = sum((record.util_hist_ms or {}).values()) / 1000
            assert record.sampled_s == pytest.approx(util_s, abs=1e-3)


class InstanceGpu(EverythingGpu):
    """A MIG instance reports no utilisation."""

    def utilization_samples(self, after_us: int) -> Sequence[UtilizationSample] | None:
        return None

    def utilization(self) -> tuple[float | None, float | None]:  # type: ignore[override]
        return None, None


def test_sampled_time_of_a_device_without_utilisation_is_that_of_memory(
    tmp_path: Path, clock: FakeClock
) -> None:
    machine = Machine(tmp_path, InstanceGpu(clock))
    machine.start()
    machine.hook("prolog", 7, "0")
    machine.run(30)
    machine.hook("epilog", 7, "0")
    machine.run(2)
    (record,) = machine.records()
    assert record.util_hist_ms is None
    assert record.sampled_s == pytest.approx(30, abs=0.1)


# The kind of failure, its duration, and the seconds without a failure afterwards.
Outage = tuple[str, float, float]
_outages = st.lists(
    st.tuples(
        st.sampled_from(["lost", "hung", "driver", "absent", "stalled"]),
        st.sampled_from([0.3, 2.0, 8.0, 17.0, 45.0]),
        st.sampled_from([0.2, 1.0, 4.0, 11.0, 25.0, 60.0]),
    ),
    max_size=5,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(["ticks", "quiet", "none"]), st.sampled_from([0.0, 2.0, 17.0]), _outages)
@example("quiet", 17.0, [])
@example("none", 0.0, [("hung", 17.0, 60.0)])
@example("ticks", 0.0, [("absent", 8.0, 25.0)])
def test_no_series_covers_time_that_was_not_read(ring: str, late_s: float, outages: list[Outage]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        gpu = everything_gpu(FakeClock(), ring)
        machine = Machine(Path(directory), gpu)
        machine.reader.loaded = late_s == 0
        machine.start()
        begin_s = machine.clock.now_s
        gpu.work.append(Work(7, begin_s, begin_s + 1000, 50, GIB))
        machine.hook("prolog", 7, "0")
        unread = [] if late_s == 0 else [(begin_s, begin_s + late_s, "late")]
        machine.run(late_s)
        machine.reader.loaded, gpu.sampled_s = True, machine.clock.now_s
        machine.run(1.0 if late_s == 0 else 12.0)
        for kind, seconds, after_s in outages:
            from_s = machine.clock.now_s
            if kind == "stalled":
                machine.clock.advance(seconds)
            elif kind == "absent":
                machine.reader.absent.add(gpu.uuid)
                machine.run(seconds)
                machine.reader.absent.clear()
            else:
                gpu.failure = Failure(ReadError(kind), "no answer")
                machine.run(seconds)
                gpu.failure = None
                # The earlier GPM sample is lost with the failed device.
                gpu.sampled_s = machine.clock.now_s
            unread.append((from_s, machine.clock.now_s, kind))
            machine.run(after_s)
        end_s = machine.clock.now_s
        machine.hook("epilog", 7, "0")
        machine.run(40)
        (record,) = machine.records()
        machine.kill()
    check(record, begin_s, end_s, unread, ring)


def check(
    record: Record, begin_s: float, end_s: float, unread: Sequence[tuple[float, float, str]], ring: str
) -> None:
    for name, covered_s in seconds_of(record).items():
        missed = [
            (from_s, until_s)
            for from_s, until_s, kind in unread
            if not (kind in SILENT and (name in BY_COUNTERS or (name in BY_RING and ring == "ticks")))
            and not (kind == "late" and name in BY_RING and ring == "ticks")
            and not (kind == "stalled" and until_s - from_s <= BRIDGED_S)
        ]
        missed_s = sum(max(0.0, until_s - from_s - OWN_S) for from_s, until_s in missed)
        assert covered_s <= end_s - begin_s - missed_s + 0.05, (name, unread)
    if record.timeline is None or record.timeline.width_s > 1:
        return
    for name in ("mem_used", "sm_clock", *(() if ring == "ticks" else ("util",))):
        for second, fraction in enumerate(record.timeline.fractions(name), int(begin_s)):
            for from_s, until_s, kind in unread:
                if kind != "stalled" and from_s <= second and second + 1 <= until_s - OWN_S:
                    assert fraction is None, (name, second - begin_s, unread)
