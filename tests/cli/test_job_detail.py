"""`slurm-gpu job ID` prints hardware, timeline, processes, application and events, with a dash for gaps."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.cli.runs.event_text import event_text
from slurm_gpu.client.database_client import DeviceTimeline, RunTimeline
from slurm_gpu.plausible import MAX_MOMENT_S
from slurm_gpu.reports.run_use.device_use import device_uses
from slurm_gpu.reports.run_use.host_use import host_uses
from slurm_gpu.text.sparkline import sparkline
from slurm_gpu.wire import DeviceFacts, Event, Host, Mean, Record, Timeline, Total
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.timeline import level
from tests.cli.conftest import START_S, CommandLine, make_record, make_run

_A, _B = "GPU-aaaaaaaa-1111", "GPU-bbbbbbbb-2222"
_FULL = {
    "sm_active_frac": Mean(3600, 0.312, 0, 1),
    "tensor_frac": Mean(3600, 0.0, 0, 0),
    "temp_c": Mean(3600, 61, 40, 83),
    "sm_clock_mhz": Mean(3600, 1310, 210, 1410),
    "pcie_rx_bytes": Total(3600, 5.3e11),
    "pcie_tx_bytes": Total(3600, 0.0),
    "ecc_corrected": Total(3600, 0),
    "ecc_uncorrected": Total(3600, 2),
    "throttle_s": {"sw_power_cap": 312.4, "sw_thermal_slowdown": 0.0, "gpu_idle": 100.0},
}


def make_host(**changes: Any) -> Host:
    values: dict[str, Any] = {
        "cluster": "neuron",
        "job_id": 17,
        "restart": 0,
        "prolog_s": START_S,
        "node": "n1",
        "boot_id": "b",
        "segment": "0" * 16,
        "seq": 1,
        "final": True,
        "first_s": START_S,
        "last_s": START_S + 3600,
        "cpu_s": 13680.0,
        "rss_max_mib": 12288.0,
        "read_bytes": 53_000_000_000,
        "write_bytes": 0,
        "app": "GROMACS",
        "app_field": "molecular dynamics",
        "app_params": {"input": "water"},
        "container": True,
    }
    return Host(**{**values, **changes})


def _line(slurm_gpu: CommandLine, beginning: str) -> str:
    """Return the line below the header that begins with this text, with single spaces between words."""
    lines = [" ".join(line.split()) for line in slurm_gpu.out.splitlines()]
    return lines[next(index for index, line in enumerate(lines) if line.startswith(beginning)) + 1]


def test_hardware_values_have_a_row_for_each_gpu(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A, **_FULL), make_record(_B)))]
    slurm_gpu("job", "17")
    assert _line(slurm_gpu, "node GPU SM tensor MHz max W max °C ECC PCIe in/out throttled") == (
        f"n1 {_A} 31.2 0 1310 300 83 0, 2 lost 530 GB / 0 5m12s power limit"
    )
    assert f"n1 {_B} – – – 300 – – – –" in " ".join(slurm_gpu.out.split())


def test_a_running_job_shows_the_time_of_its_values(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),), end_s=None, state="RUNNING")]
    slurm_gpu("job", "17")
    assert "as of 2026-11-21 20:15:42, when its nodes last reported" in slurm_gpu.out
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),))]
    slurm_gpu("job", "17")
    assert "as of" not in slurm_gpu.out


def test_the_times_of_the_nodes_of_a_running_job_are_shown_and_a_silent_node_is_named(slurm_gpu: CommandLine):
    def shown(node_s: int, *, final: bool = False) -> str:
        other = make_record(_A, node="n2", last_s=START_S + node_s, final=final)
        records = (make_record(_B, last_s=START_S + 3600, final=False), other)
        slurm_gpu.database.runs = [make_run(devices=records, end_s=None, state="RUNNING")]
        slurm_gpu("job", "17")
        return next(line for line in slurm_gpu.out.splitlines() if "as of" in line).strip()

    alone = "as of 2026-11-21 20:15:42, when its nodes last reported"
    between = "as of 2026-11-21 20:10:42 to 2026-11-21 20:15:42, when its nodes last reported"
    assert shown(3600) == alone
    assert shown(3300) == between, "nodes ship every five minutes, each at its own time"
    assert shown(2400).endswith("; n2 has not reported since 2026-11-21 19:55:42")
    assert shown(2400, final=True) == alone, "a node that has left the job will not report again"


def test_columns_without_values_are_left_out(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A, power_w=None),))]
    slurm_gpu("job", "17")
    assert not any(word in slurm_gpu.out for word in ("SM", "max W", "PCIe", "throttled", "CPU time"))


def test_traffic_over_shared_links_is_a_gap(slurm_gpu: CommandLine):
    shared = {**_FULL, "pcie_rx_bytes": Total(1800, 5.3e11), "pcie_tx_bytes": Total(1800, 0.0)}
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A, **shared),))]
    slurm_gpu("job", "17")
    assert "PCIe" not in slurm_gpu.out
    slurm_gpu("job", "17", "--json")
    (gpu,) = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert (gpu["pcie_rx_bytes"], gpu["pcie_s"], gpu["nvlink_rx_bytes"]) == (5.3e11, 1800, None)


def test_each_statistic_of_a_record_is_part_of_the_use_of_its_gpu():
    examples = {
        "Mean | None": Mean(3600, 0.5, 0.1, 0.9),
        "Total | None": Total(3600, 7.0),
        "Histogram | None": {50: 3_600_000},
        "Timeline | None": Timeline(width_s=64, start_s=0, series={"util": b"1"}),
        "Mapping[str, float] | None": {"sw_power_cap": 1.0},
        "float | None": 1.0,
        "int | None": 500,
    }
    optional = {f.name: examples[str(f.type)] for f in fields(Record) if "None" in str(f.type)}
    record = make_record(_A, **optional)
    use = device_uses([record])
    left_out = {name for name in optional if device_uses([replace(record, **{name: None})]) == use}
    # uptime_s orders segments, the timeline is printed separately, and the other two have equivalents.
    assert left_out == {"uptime_s", "timeline", "device_util_pct", "mem_hist_ms"}


def test_the_timeline_shows_use_and_gaps(slurm_gpu: CommandLine):
    start_s = START_S // 64 * 64
    util = bytes(map(level, [0.0, 1.0, None, 0.5]))
    timeline = Timeline(width_s=64, start_s=start_s, series={"util": util})
    later = Timeline(width_s=64, start_s=start_s + 128, series={"util": bytes([250])})
    devices = (
        DeviceTimeline(node="n1", device=_A, timeline=timeline),
        DeviceTimeline(node="n1", device=_B, timeline=later),
    )
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A), make_record(_B)))]
    submit_s = slurm_gpu.database.runs[0].submit_s
    slurm_gpu.database.run_timelines = [RunTimeline(id="17", job_id=17, submit_s=submit_s, devices=devices)]
    slurm_gpu("job", "17")
    assert _line(slurm_gpu, "node GPU utilisation memory") == f"n1 {_A} ▁█·▅ ····"
    assert f"n1    {_B}  ··█·" in slurm_gpu.out
    assert "1m04s per block; · marks time that was not measured" in slurm_gpu.out
    slurm_gpu("job", "17", "--json")
    (run,) = json.loads(slurm_gpu.out)["runs"]
    assert run["timelines"][0] == to_json(devices[0])


def test_a_timeline_with_a_wrong_clock_only_widens_the_graph(slurm_gpu: CommandLine):
    at_boot = Timeline(width_s=1, start_s=0, series={"util": bytes([250])})
    now = Timeline(width_s=1, start_s=START_S, series={"util": bytes([250])})
    devices = tuple(
        DeviceTimeline(node="n1", device=uuid, timeline=timeline)
        for uuid, timeline in ((_A, at_boot), (_B, now))
    )
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A), make_record(_B)))]
    submit_s = slurm_gpu.database.runs[0].submit_s
    slurm_gpu.database.run_timelines = [RunTimeline(id="17", job_id=17, submit_s=submit_s, devices=devices)]
    assert slurm_gpu("job", "17") == 0
    assert _line(slurm_gpu, "node GPU utilisation memory").startswith(f"n1 {_A} █·")


def test_the_latest_time_that_a_node_may_send_is_printed(slurm_gpu: CommandLine):
    far = Event(node="n1", boot_id="b", n=1, at_s=MAX_MOMENT_S, kind="gpu_lost", device=_A)
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),), events=(far,))]
    assert slurm_gpu("job", "17") == 0
    assert "9999-01-01 08:59:59" in slurm_gpu.out


def test_a_deleted_timeline_is_not_drawn(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),))]
    submit_s = slurm_gpu.database.runs[0].submit_s
    gone = DeviceTimeline(node="n1", device=_A, timeline=None)
    slurm_gpu.database.run_timelines = [RunTimeline(id="17", job_id=17, submit_s=submit_s, devices=(gone,))]
    slurm_gpu("job", "17")
    assert "utilisation" not in slurm_gpu.out


def test_processes_and_the_application_are_printed(slurm_gpu: CommandLine):
    slurm_gpu.database.runs = [
        make_run(
            devices=(make_record(_A),),
            hosts=(make_host(),),
            tres_allocated={"cpu": 8},
            app="GROMACS",
            app_field="molecular dynamics",
            device_facts={_A: DeviceFacts(uuid=_A, node="n1", at_s=1, name="NVIDIA A100-SXM4-80GB")},
        )
    ]
    slurm_gpu("job", "17")
    assert "2 a100 GPUs (NVIDIA A100-SXM4-80GB)" in slurm_gpu.out
    assert "application GROMACS (molecular dynamics), input=water, in a container\n" in slurm_gpu.out
    row = _line(slurm_gpu, "node CPU time CPUs busy memory max read written")
    assert row == "n1 3h48m 3.8 of 8 12G 53.0 GB 0"


def test_segments_of_one_node_are_one_row_and_overlapping_ones_count_once():
    first = make_host(last_s=START_S + 1800, cpu_s=100.0, rss_max_mib=5.0)
    second = make_host(segment="1" * 16, first_s=START_S + 1800, cpu_s=50.0, rss_max_mib=7.0, read_bytes=None)
    double = make_host(segment="2" * 16, first_s=START_S + 1900, last_s=START_S + 2000, cpu_s=1e6)
    elsewhere = make_host(node="n2", cpu_s=None)
    (n1, n2) = host_uses([double, second, elsewhere, first])
    assert (n1.cpu_s, n1.rss_max_mib, n1.read_bytes, n1.watched_s) == (150.0, 7.0, 53_000_000_000, 3600)
    assert (n2.cpu_s, n2.cpus_busy, n2.write_bytes) == (None, None, 0)


def test_segments_after_a_clock_change_are_separated_by_records_of_gpus():
    spans = (
        (0, 1800, 500.0),
        (600, 1800, 2300.0),
    )  # the second segment began when the first ended, but by another clock
    hosts, records = [], []
    for n, (first_s, allocated_s, uptime_s) in enumerate(spans):
        when = {
            "segment": f"{n}" * 16,
            "first_s": START_S + first_s,
            "last_s": START_S + first_s + allocated_s,
        }
        hosts.append(make_host(**when, cpu_s=100.0))
        records.append(make_record(_A, **when, uptime_s=uptime_s, allocated_s=1800.0, sampled_s=1800.0))
    (n1,) = host_uses(hosts, records)
    assert (n1.cpu_s, n1.watched_s) == (200.0, 3600)
    overlapping = make_record(_A, segment="1" * 16, uptime_s=600.0, allocated_s=1000.0, sampled_s=1000.0)
    (n1,) = host_uses(hosts, [records[0], overlapping])
    assert n1.cpu_s == 100.0


@pytest.mark.parametrize("set_by_s", [-86400, -1800, -60, 0, 60, 1800, 86400])
def test_segments_without_records_of_gpus_are_separated_by_uptime(set_by_s: int):
    hosts = [
        make_host(segment="1" * 16, uptime_s=500.0, cpu_s=100.0, last_s=START_S + 1800),
        make_host(
            segment="2" * 16,
            uptime_s=2301.0,
            cpu_s=10.0,
            first_s=START_S + 1801 + set_by_s,
            last_s=START_S + 2401 + set_by_s,
        ),
        make_host(  # concurrent with the first segment
            segment="3" * 16,
            uptime_s=700.0,
            cpu_s=1.0,
            first_s=START_S + 200 + set_by_s,
            last_s=START_S + 1700 + set_by_s,
        ),
    ]
    (n1,) = host_uses(hosts)
    assert (n1.cpu_s, n1.watched_s) == (110.0, 2400)


def test_only_the_first_twenty_events_are_printed(slurm_gpu: CommandLine):
    events = [
        Event(node="n1", boot_id="b", n=n, at_s=START_S + n, kind="xid", device=_A, data={"code": 79})
        for n in range(25)
    ]
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A),), events=tuple(events))]
    slurm_gpu("job", "17")
    assert f"2026-11-21 19:15:42  n1 {_A}  Xid 79: the GPU fell off the bus\n" in slurm_gpu.out
    assert slurm_gpu.out.count("Xid 79") == 20
    assert "and 5 more; --json prints all events" in slurm_gpu.out


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("xid", {"code": 999}, "Xid 999"),
        ("xid", {"code": [1]}, "Xid [1]"),
        ("gpu_lost", {}, "the GPU was lost"),
        ("intruder", {"pid": 7, "uid": 1000}, "process 7 of uid 1000 used this GPU without an allocation"),
        (
            "intruder",
            {"pid": 7, "uid": 1, "job": 9},
            "process 7 of job 9, uid 1 used this GPU without an allocation",
        ),
        (
            "intruder",
            {"of": "uid 1000", "left_out": 12},
            "more processes of uid 1000 used GPUs without an allocation: 12",
        ),
        (
            "job_mismatch",
            {"pid": 7, "allocated": [17, 19], "cgroup": 18},
            "process 7 of job 18 used a GPU that is allocated to job 17, 19",
        ),
        ("clock_step", {"seconds": -3600}, "the node's clock was changed by -3600.0 s"),
        ("clock_step", {}, "the node's clock was changed by some seconds"),
        ("spool_full", {"dropped": 3}, "the node's spool was full; records dropped: 3"),
        (
            "spool_lost",
            {},
            "the node's spool was lost, including the records that slurm-gpudbd had not received",
        ),
        ("something_new", {"x": 3}, "something new x=3"),
    ],
)
def test_each_kind_of_event_has_a_text(kind: str, data: dict[str, Any], text: str):
    event = Event(node="n1", boot_id="b", n=1, at_s=5, kind=kind, data=data)
    assert event_text(event) == text


def test_a_gpu_that_no_driver_ever_listed_was_not_lost():
    event = Event(node="n1", boot_id="b", n=1, at_s=5, kind="gpu_lost", device="position:0")
    assert event_text(event) == "no driver listed this GPU when it was allocated"


def test_a_sparkline_distinguishes_zero_from_a_gap():
    assert sparkline([0.0, 0.5, 1.0, None], 4) == "▁▅█·"
    assert sparkline([0.0, 1.0, None, None], 2) == "▅·"
    assert sparkline([], 10) == ""


@given(st.lists(st.none() | st.floats(0, 1), max_size=300), st.integers(1, 60))
def test_a_sparkline_fits_its_width(values: list[float | None], width: int):
    line = sparkline(values, width)
    assert len(line) <= width
    assert ("·" in line) <= (None in values)


def test_gpus_are_named_by_index_in_its_order_and_by_uuid_on_request(slurm_gpu: CommandLine):
    def facts(uuid: str, **given: int | None) -> DeviceFacts:
        return DeviceFacts(uuid=uuid, node="n1", at_s=1, **given)

    mig, unknown = "MIG-cccccccc-3333", "GPU-dddddddd-4444"
    lost = Event(node="n1", boot_id="b", n=1, at_s=START_S, kind="gpu_lost", device=_A)
    slurm_gpu.database.runs = [
        make_run(
            devices=[make_record(uuid) for uuid in (_A, _B, mig, unknown)],
            events=(lost,),
            device_facts={
                _A: facts(_A, index=7),
                _B: facts(_B, index=0),
                mig: facts(mig, index=1, gpu_instance=3),
                unknown: facts(unknown),
            },
        )
    ]
    slurm_gpu("job", "17")
    rows = [" ".join(line.split()) for line in slurm_gpu.out.splitlines() if " 20.0 " in line]
    names = [row.partition(" 20.0 ")[0] for row in rows]
    assert names == ["n1 0", "n1 1 GI 3", "n1 7", f"n1 {unknown}"]
    assert "n1 GPU 7  the GPU was lost\n" in slurm_gpu.out
    slurm_gpu("job", "17", "--uuid")
    assert f"n1 {_A}  the GPU was lost\n" in slurm_gpu.out
    assert all(uuid in slurm_gpu.out for uuid in (_A, _B, mig, unknown))
    slurm_gpu("job", "17", "--json")
    gpus = json.loads(slurm_gpu.out)["runs"][0]["gpus"]
    assert [gpu["index"] for gpu in gpus] == [7, 0, None, 1]


def test_gpus_with_equal_indices_are_named_by_uuid(slurm_gpu: CommandLine):
    facts = {uuid: DeviceFacts(uuid=uuid, node="n1", at_s=1, index=0) for uuid in (_A, _B)}
    slurm_gpu.database.runs = [make_run(devices=(make_record(_A), make_record(_B)), device_facts=facts)]
    slurm_gpu("job", "17")
    assert _A in slurm_gpu.out
    assert _B in slurm_gpu.out
