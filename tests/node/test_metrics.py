"""Prometheus's own parser accepts the metrics that are served over real sockets."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar
from urllib.error import HTTPError
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from slurm_gpu.errors import OutsideError
from slurm_gpu.node import metrics_server as metricsserver
from slurm_gpu.node.gpu.reading import (
    Activity,
    DeviceCounter,
    DeviceMemory,
    DeviceProperties,
    Failure,
    GpuProcess,
    Reading,
    ReadRequest,
    Results,
    UtilizationSample,
)
from slurm_gpu.node.live import CachingReader
from slurm_gpu.node.metrics import DaemonHealth, expose
from slurm_gpu.node.metrics_server import CONTENT_TYPE, MetricsServer

GPU = DeviceProperties(uuid="GPU-0", index=0, minor=3, name='NVIDIA "X"\\\n', driver="550.1")
IDLE = DeviceProperties(uuid="GPU-1", index=1)
FULL = Reading(
    at_s=100.0,
    memory=DeviceMemory(10 << 30, 40 << 30),
    processes=[GpuProcess(1, 5), GpuProcess(2, None)],
    ring=[UtilizationSample(1, 10.0), UtilizationSample(2, 55.0)],
    mem_util_pct=0.0,
    power_w=312.5,
    temp_c=61.0,
    sm_clock_mhz=1410.0,
    energy_mj=DeviceCounter(123_456),
    pcie_rx_bytes=DeviceCounter(0, 32),
    ecc_uncorrected=DeviceCounter(2),
    throttle=["sw_power_cap"],
    activity=Activity(seconds=1.0, sm_active=0.25),
)
HEALTH = DaemonHealth(
    reads=12,
    failed_reads=0,
    open_jobs=2,
    spool_bytes=4096,
    spool_items=3,
    spool_failing=False,
    shipment_failures=0,
    reader_exits=2,
    implausible={"power_w": 3},
    pids={"main": os.getpid(), "reader": 1 << 30},
)


class OneGpu:
    silent: ClassVar[Mapping[int, Failure]] = {}

    def devices(self) -> Sequence[DeviceProperties]:
        return [GPU, IDLE]

    def read(self, requests: Sequence[ReadRequest]) -> Results:
        return Results(readings={request.uuid: FULL for request in requests}, failures={})


@pytest.fixture
def seen() -> CachingReader:
    seen = CachingReader(OneGpu())
    seen.devices()
    seen.read([ReadRequest(uuid="GPU-0", detailed=True)])
    return seen


def samples(text: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def test_every_value_has_its_unit_and_zero_is_a_value(seen: CachingReader) -> None:
    found = samples(expose("n1", seen, {}, HEALTH, 101.0))
    values = {
        name: [sample.value for sample in some if sample.labels.get("uuid") == "GPU-0"]
        for name, some in found.items()
    }
    assert values["slurm_gpu_utilization_ratio"] == [pytest.approx(0.55)]
    assert values["slurm_gpu_memory_used_bytes"] == [10 << 30]
    assert values["slurm_gpu_memory_total_bytes"] == [40 << 30]
    assert values["slurm_gpu_memory_controller_utilization_ratio"] == [0]
    assert values["slurm_gpu_power_watts"] == [312.5]
    assert values["slurm_gpu_sm_clock_hertz"] == [1.41e9]
    assert values["slurm_gpu_energy_joules_total"] == [pytest.approx(123.456)]
    assert values["slurm_gpu_pcie_receive_bytes_total"] == [0]
    assert values["slurm_gpu_ecc_uncorrected_errors_total"] == [2]
    assert values["slurm_gpu_sm_active_ratio"] == [0.25]
    assert values["slurm_gpu_processes"] == [2]
    (throttled,) = found["slurm_gpu_throttled"]
    assert throttled.labels["reason"] == "sw_power_cap"


def test_an_unmeasured_value_has_no_series(seen: CachingReader) -> None:
    found = samples(expose("n1", seen, {}, HEALTH, 101.0))
    assert "slurm_gpu_tensor_active_ratio" not in found
    assert "slurm_gpu_nvlink_receive_bytes_total" not in found
    assert {s.labels["uuid"] for s in found["slurm_gpu_power_watts"]} == {"GPU-0"}
    assert {s.labels["uuid"] for s in found["slurm_gpu_device_info"]} == {"GPU-0", "GPU-1"}


def test_old_values_are_not_exposed(seen: CachingReader) -> None:
    assert "slurm_gpu_power_watts" not in samples(expose("n1", seen, {}, HEALTH, 130.0))


def test_jobs_have_a_series_only_while_a_device_is_allocated_to_them(seen: CachingReader) -> None:
    found = samples(expose("n1", seen, {"GPU-0": [7, 8]}, HEALTH, 101.0))
    pairs = [(sample.labels["uuid"], sample.labels["job"]) for sample in found["slurm_gpu_allocated"]]
    assert pairs == [("GPU-0", "7"), ("GPU-0", "8")]
    assert "slurm_gpu_allocated" not in samples(expose("n1", seen, {}, HEALTH, 101.0))
    labels = {label for some in found.values() for sample in some for label in sample.labels}
    assert labels == {
        "node",
        "index",
        "uuid",
        "name",
        "driver",
        "job",
        "reason",
        "version",
        "process",
        "field",
    }


def test_the_daemon_exposes_its_own_health(seen: CachingReader) -> None:
    found = samples(expose("n1", seen, {}, HEALTH, 101.0))
    assert [sample.value for sample in found["slurm_gpud_spool_bytes"]] == [4096]
    (memory,) = found["slurm_gpud_resident_memory_bytes"]
    assert (memory.labels["process"], memory.value > 1 << 20) == ("main", True)
    assert [sample.labels["process"] for sample in found["slurm_gpud_cpu_seconds_total"]] == ["main"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_finds_no_errors(seen: CachingReader) -> None:
    text = expose("n1", seen, {"GPU-0": [7]}, HEALTH, 101.0)
    subprocess.run(["promtool", "check", "metrics"], input=text.encode(), check=True)


class Loop:
    """A loop like the daemon's, which answers when woken."""

    def __init__(self, text: str = "up 1\n") -> None:
        self.woken = threading.Event()
        self.built = 0
        self.text = text
        self.server = MetricsServer("127.0.0.1", 0, self.woken.set)
        self.going = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def build(self) -> str:
        self.built += 1
        return self.text

    def run(self) -> None:
        while self.going:
            self.woken.wait(5)
            self.woken.clear()
            self.server.answer(self.build)

    def stop(self) -> None:
        self.going = False
        self.woken.set()
        self.thread.join()
        self.server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/metrics"


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.stop()


def test_a_scrape_returns_the_text_of_the_loop(loop: Loop) -> None:
    for number in range(1, 4):
        with urlopen(loop.url, timeout=10) as response:
            assert response.headers["Content-Type"] == CONTENT_TYPE
            assert response.read() == b"up 1\n"
        assert loop.built == number


@pytest.mark.parametrize(("path", "method", "status"), [("/", "GET", 404), ("/metrics", "POST", 405)])
def test_other_paths_and_methods_are_errors(loop: Loop, path: str, method: str, status: int) -> None:
    url = loop.url.removesuffix("/metrics") + path
    with pytest.raises(HTTPError) as caught:
        urlopen(UrlRequest(url, method=method), timeout=10)
    caught.value.close()
    assert caught.value.code == status
    assert loop.built == 0


def test_silent_clients_do_not_delay_scrapes(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricsserver, "_CLIENT_WITHIN_S", 60.0)
    with contextlib.ExitStack() as silent:
        for _ in range(metricsserver._CLIENTS - 1):
            silent.enter_context(socket.create_connection(("127.0.0.1", loop.server.port)))
        for _ in range(2):
            with urlopen(loop.url, timeout=10) as response:
                assert response.read() == b"up 1\n"


def test_with_too_many_silent_clients_a_scrape_waits_until_they_are_dropped(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metricsserver, "_CLIENT_WITHIN_S", 0.1)
    with contextlib.ExitStack() as silent:
        for _ in range(2 * metricsserver._CLIENTS):
            silent.enter_context(socket.create_connection(("127.0.0.1", loop.server.port)))
        with urlopen(loop.url, timeout=10) as response:
            assert response.read() == b"up 1\n"


def test_a_slow_client_is_dropped_like_a_silent_one(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metricsserver, "_CLIENT_WITHIN_S", 0.2)
    with socket.create_connection(("127.0.0.1", loop.server.port)) as slow:
        slow.settimeout(5)
        gone = threading.Event()

        def drip() -> None:
            try:
                while not gone.wait(0.02):
                    slow.sendall(b"x")
            except OSError:
                gone.set()

        threading.Thread(target=drip, daemon=True).start()
        with urlopen(loop.url, timeout=10) as response:
            assert response.read() == b"up 1\n"
        assert gone.wait(5)


def test_a_text_too_late_for_one_scrape_is_not_returned_to_the_next(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metricsserver, "_TEXT_WITHIN_S", 0.05)
    released = threading.Event()

    def late() -> str:
        released.wait(5)
        return "up 0\n"

    monkeypatch.setattr(loop, "build", late)
    with pytest.raises(HTTPError) as caught:
        urlopen(loop.url, timeout=10)
    caught.value.close()
    assert caught.value.code == 503
    monkeypatch.setattr(loop, "build", lambda: "up 1\n")
    monkeypatch.setattr(metricsserver, "_TEXT_WITHIN_S", 5)
    released.set()
    with urlopen(loop.url, timeout=10) as response:
        assert response.read() == b"up 1\n"


def test_a_failure_to_build_the_text_affects_only_the_scrape(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "build", lambda: 1 / 0)
    with pytest.raises(HTTPError) as caught:
        urlopen(loop.url, timeout=10)
    caught.value.close()
    assert caught.value.code == 500
    assert loop.thread.is_alive()


def test_a_port_in_use_is_an_error_that_names_it(loop: Loop) -> None:
    with pytest.raises(OutsideError, match=f"127.0.0.1:{loop.server.port}: Address already in use"):
        MetricsServer("127.0.0.1", loop.server.port, lambda: None)
