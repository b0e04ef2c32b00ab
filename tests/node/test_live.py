"""Live values of a node are its last readings, or gaps if the readings are old."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from slurm_gpu.node.gpu.reading import (
    Activity,
    DeviceMemory,
    DeviceProperties,
    Failure,
    GpuProcess,
    ReadError,
    Reading,
    ReadRequest,
    Results,
    UtilizationSample,
    Xid,
)
from slurm_gpu.node.live import CachingReader, NodeSource
from slurm_gpu.node.process.node_counters import NodeReading
from slurm_gpu.node.shipping.implausible import ImplausibleValues
from slurm_gpu.wire import DeviceFacts, Live
from tests.node.fakes import GIB, FakeClock


class Gpus:
    """A reader that returns configured results."""

    silent: ClassVar[Mapping[int, Failure]] = {}

    def __init__(self) -> None:
        self.facts = [
            DeviceProperties(uuid="GPU-0", index=0, memory_bytes=40 * GIB),
            DeviceProperties(uuid="GPU-1", index=1),
        ]
        self.results = Results(readings={}, failures={})

    def devices(self) -> Sequence[DeviceProperties]:
        return self.facts

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        return self.results


class FakeJobs:
    def __init__(self) -> None:
        self.by_device: dict[str, list[int]] = {}
        self.implausible = ImplausibleValues(FakeClock(), lambda *_: None)

    def open_jobs(self) -> Sequence[int]:
        return sorted({job for jobs in self.by_device.values() for job in jobs})

    def jobs_by_device(self) -> Mapping[str, Sequence[int]]:
        return self.by_device

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        return [{"job_id": job} for job in job_ids]

    def update_jobs(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        raise AssertionError

    def end_jobs(self, jobs: Mapping[int, Mapping[str, Any]]) -> None:
        raise AssertionError


class Host:
    def sample(self, now_s: float) -> NodeReading:
        return NodeReading(at_s=now_s, cpu_pct=0.0, mem_used_mib=100.123456)


class Node:
    def __init__(self) -> None:
        self.clock, self.gpus, self.jobs = FakeClock(), Gpus(), FakeJobs()
        self.seen = CachingReader(self.gpus)
        self.seen.devices()
        self.source = NodeSource("n1", self.clock, self.jobs, self.seen, Host())

    def read(self, reading: Reading | Failure, *, detailed: bool = True) -> None:
        request = ReadRequest(uuid="GPU-0", detailed=detailed)
        if isinstance(reading, Failure):
            self.gpus.results = Results(readings={}, failures={"GPU-0": reading})
        else:
            self.gpus.results = Results(readings={"GPU-0": reading}, failures={})
        self.seen.read([request])

    def live(self) -> Live:
        return Live.from_wire(json.loads(json.dumps(self.source.live())))


@pytest.fixture
def node() -> Node:
    return Node()


def test_live_contains_the_last_values_and_jobs_of_a_device(node: Node) -> None:
    node.jobs.by_device = {"GPU-0": [7, 8]}
    at_s = node.clock.now_s
    full = Reading(
        at_s=at_s,
        memory=DeviceMemory(10 * GIB, 40 * GIB),
        processes=[GpuProcess(1, 1)],
        ring=[UtilizationSample(1, 30.0), UtilizationSample(2, 0.0)],
        power_w=99.5,
        throttle=[],
        activity=Activity(1.0, sm_active=0.81234567, tensor=1.0000001),
    )
    node.read(full)
    node.read(Reading(at_s=at_s + 0.5, memory=DeviceMemory(20 * GIB, 40 * GIB)), detailed=False)
    live = node.live()
    device = live.devices["GPU-0"]
    assert (device.mem_used_mib, device.mem_used_frac) == (20 * 1024, 0.5)
    assert (device.util_pct, device.power_w, device.processes, device.throttle) == (0.0, 99.5, 1, ())
    assert (device.sm_active_frac, device.tensor_frac) == (0.8123, 1.0)
    assert device.temp_c is None
    assert device.jobs == (7, 8)
    assert live.host == {"cpu_pct": 0.0, "mem_used_mib": 100.123}
    assert live.at_s == pytest.approx(node.clock.wall(), abs=0.001)


def test_the_idle_time_of_a_device_depends_on_all_readings(node: Node) -> None:
    at_s = node.clock.now_s
    node.read(Reading(at_s=at_s, util_pct=0.0))
    assert node.live().devices["GPU-0"].idle_s is None, "an idle time without any activity before"
    burst = [
        UtilizationSample(1_000_000, 0.0),
        UtilizationSample(3_500_000, 80.0),
        UtilizationSample(6_000_000, 1.0),
    ]
    node.read(Reading(at_s=at_s, ring=burst))
    node.clock.advance(4)
    device = node.live().devices["GPU-0"]
    assert (device.util_pct, device.idle_s) == (1.0, 6.5)
    node.read(Reading(at_s=node.clock.now_s, ring=[UtilizationSample(10_000_000, 0.0)]))
    assert node.live().devices["GPU-0"].idle_s == 6.5
    node.read(Reading(at_s=node.clock.now_s, util_pct=30.0))
    assert node.live().devices["GPU-0"].idle_s == 0.0


def test_a_device_without_readings_is_listed_without_values(node: Node) -> None:
    device = node.live().devices["GPU-1"]
    assert (device.util_pct, device.mem_used_mib, device.jobs) == (None, None, ())
    assert (device.sm_active_frac, device.tensor_frac) == (None, None)


def test_old_values_and_those_of_a_lost_device_are_left_out(node: Node) -> None:
    reading = Reading(at_s=node.clock.now_s, memory=DeviceMemory(1, 2), util_pct=50.0)
    node.read(reading)
    assert node.live().devices["GPU-0"].util_pct == 50.0
    node.clock.advance(20)
    assert node.live().devices["GPU-0"].util_pct is None
    node.read(reading._replace(at_s=node.clock.now_s))
    assert node.live().devices["GPU-0"].util_pct == 50.0
    node.read(Failure(ReadError.LOST, "it fell off the bus"))
    assert node.live().devices["GPU-0"].util_pct is None
    assert (node.seen.reads, node.seen.failed_reads) == (3, 1)


def test_an_xid_found_by_another_read_still_reaches_the_daemon(node: Node) -> None:
    xid = Xid("GPU-0", 79, 1.0)
    node.gpus.results = Results(readings={}, failures={}, xids=[xid])
    assert node.seen.read_extra([ReadRequest(uuid="GPU-0", processes=True)]) == {}
    node.gpus.results = Results(readings={}, failures={})
    assert node.seen.read([ReadRequest(uuid="GPU-0")]).xids == [xid]
    assert list(node.seen.read([ReadRequest(uuid="GPU-0")]).xids) == []
    assert node.seen.read_extra([]) == {}


def test_the_first_xid_of_each_device_is_kept_in_a_storm(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Test that later Xid errors do not displace the first one, which is often the cause."""
    cause = Xid("GPU-0", 79, 1.0)
    storm = [Xid("GPU-1", 31, 2.0 + number) for number in range(600)]
    for xids in ([cause, *storm], storm):
        node.gpus.results = Results(readings={}, failures={}, xids=xids)
        node.seen.read_extra([ReadRequest(uuid="GPU-0", processes=True)])
    node.gpus.results = Results(readings={}, failures={})
    assert node.seen.read([ReadRequest(uuid="GPU-0")]).xids == [cause, storm[0]]
    assert caplog.messages == [
        "of 1201 XIDs between two reads, only the first of each code and device is kept"
    ]


def test_devices_are_reported_with_one_time_and_in_mib(node: Node) -> None:
    first, second = node.source.devices()
    assert first == DeviceFacts(
        uuid="GPU-0", node="n1", at_s=int(node.clock.wall()), index=0, memory_mib=40 * 1024.0
    )
    assert second.memory_mib is None


def test_requests_about_jobs_are_forwarded(node: Node) -> None:
    node.jobs.by_device = {"GPU-0": [8], "GPU-1": [8, 7]}
    assert node.source.open_jobs() == [7, 8]
    assert node.source.windows([7]) == [{"job_id": 7}]
