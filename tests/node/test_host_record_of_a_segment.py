"""Test the sampling intervals of host records, and the assignment of the node's traffic to them."""

from pathlib import Path

import pytest

from slurm_gpu.node.process.procfs import TICKS_PER_S
from slurm_gpu.wire import Host
from tests.node.hostnode import START_S, WALL_S, HostNode, allocation, requeued


@pytest.fixture
def node(tmp_path: Path) -> HostNode:
    return HostNode(tmp_path)


def test_a_job_s_record(node: HostNode) -> None:
    node.proc.process(5, own=0)
    node.job(4, 5)
    node.recorder.begin(allocation(4))
    node.until(START_S + 50)
    node.proc.process(5, own=40 * TICKS_PER_S, io=(100, 200), pages=512)
    node.traffic(3000)
    hosts = node.until(START_S + 60)
    assert hosts[-1].cpu_s == 40.0
    host = node.finished(4)
    assert (host.cpu_s, host.read_bytes, host.write_bytes, host.rss_max_mib) == (40.0, 100, 200, 2.0)
    assert (host.net_rx_bytes, host.net_tx_bytes, host.ib_rx_bytes) == (3000, 0, None)
    assert (host.first_s, host.last_s, host.final) == (int(WALL_S), int(WALL_S) + 60, True)
    assert Host.from_wire(host.to_wire()) == host
    assert host.seq == hosts[-1].seq + 1
    assert node.recorder.next_step_s() is None


def test_samples_are_frequent_at_first_and_later_every_ten_seconds(node: HostNode) -> None:
    node.recorder.begin(allocation(4))
    assert len(node.until(START_S + 1)) == 5
    node.until(START_S + 1000)
    assert len(node.until(START_S + 2000)) == 100
    for pid in range(10, 250):
        node.proc.process(pid)
    node.job(4, *range(10, 250))
    node.until(START_S + 2010)
    assert len(node.until(START_S + 2310)) == 10


def test_a_job_too_short_for_a_sample_has_a_record_of_gaps(node: HostNode) -> None:
    node.recorder.begin(allocation(4))
    host = node.finished(4)
    assert (host.cpu_s, host.rss_max_mib, host.net_rx_bytes, host.app, host.container) == (None,) * 5


def test_traffic_is_unknown_once_another_job_has_run(node: HostNode) -> None:
    node.proc.process(5)
    node.job(4, 5)
    node.recorder.begin(allocation(4))
    node.until(START_S + 20)
    node.recorder.note_job(7)  # a job without GPUs that began and ended between two samples
    node.traffic(999)
    node.until(START_S + 40)
    assert node.finished(4).net_rx_bytes is None


def test_traffic_is_unknown_if_another_job_was_there_before(node: HostNode) -> None:
    node.proc.process(5)
    node.job(4, 5)
    node.job(3, 6)
    node.recorder.begin(allocation(4))
    node.until(START_S + 20)
    assert node.finished(4).net_rx_bytes is None


def test_traffic_is_unknown_for_two_recorded_jobs(node: HostNode) -> None:
    for job_id in (4, 5):
        node.proc.process(job_id)
        node.job(job_id, job_id)
        node.recorder.begin(allocation(job_id))
    node.until(START_S + 20)
    assert node.finished(4).net_rx_bytes is None
    assert node.finished(5).net_rx_bytes is None


def test_traffic_is_unknown_without_cgroups(node: HostNode) -> None:
    node.proc.process(5, environ=b"SLURM_JOB_ID=4\0", own=100)
    node.recorder.begin(allocation(4))
    node.until(START_S + 20)
    host = node.finished(4)
    assert host.cpu_s == 100 / TICKS_PER_S
    assert host.net_rx_bytes is None


def test_a_segment_after_a_restart_counts_from_its_own_start(node: HostNode) -> None:
    node.proc.process(5, own=100 * TICKS_PER_S, started=10)
    node.job(4, 5)
    node.recorder.begin(allocation(4, continued=True))
    node.until(START_S + 20)
    node.proc.process(5, own=103 * TICKS_PER_S, started=10)
    node.until(START_S + 40)
    assert node.finished(4).cpu_s == 3.0


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("survives", [False, True])
def test_a_run_is_not_charged_for_usage_of_the_previous_run_in_its_cgroup(
    node: HostNode, *, at_once: bool, survives: bool
) -> None:
    first, second = allocation(4), requeued(allocation(4), START_S + 40)
    node.job(4, 5)
    node.set_cpu_time(4, 0)
    node.proc.process(5, own=0, io=(0, 0), started=int(START_S * TICKS_PER_S) + 5)
    node.recorder.sync([first], node.now_s)
    node.until(START_S + 20)
    node.proc.process(5, own=70 * TICKS_PER_S, io=(70, 7), started=int(START_S * TICKS_PER_S) + 5)
    node.set_cpu_time(4, 70)
    node.until(START_S + 40)
    if not at_once:
        node.recorder.sync([], node.now_s)
        (host,) = node.recorder.step(node.now_s, dict)
    if not survives:
        node.end_job(4, 5)
    node.recorder.sync([second], node.now_s)
    if at_once:
        node.recorder.step(node.now_s, dict)
    node.until(START_S + 41)
    used = 73 if survives else 3
    node.job(4, 6, *([5] if survives else []))
    node.set_cpu_time(4, used)
    node.proc.process(6, own=3 * TICKS_PER_S, io=(3, 1), started=int((START_S + 40.5) * TICKS_PER_S))
    node.until(START_S + 90)
    node.recorder.sync([], node.now_s)
    (host,) = node.recorder.step(node.now_s, dict)
    assert (host.restart, host.cpu_s, host.read_bytes, host.write_bytes) == (1, 3.0, 3, 1)
