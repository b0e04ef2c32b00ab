"""Records are transferred unchanged and merge in any order; errors of malformed ones name the field."""

import dataclasses
import json
import math
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import RecordError
from slurm_gpu.wire import (
    DeviceFacts,
    Event,
    Host,
    Mean,
    Record,
    Total,
    histogram_mean,
    histogram_quantile,
    merge_histograms,
    merge_means,
    merge_totals,
)
from tests.wire.strategies import JSON, devices, histograms, hosts, means, records, totals


def _sample() -> dict[str, Any]:
    return {
        "cluster": "neuron",
        "job_id": 17,
        "restart": 0,
        "prolog_s": 1_780_000_000,
        "node": "n1",
        "boot_id": "5f0c",
        "segment": "0123456789abcdef",
        "device": "GPU-1",
        "seq": 3,
        "final": False,
        "first_s": 1_780_000_000,
        "last_s": 1_780_000_060,
        "allocated_s": 60.0,
        "sampled_s": 59.0,
    }


# On the wire


def _as_received(wire: dict[str, Any]) -> Any:
    return json.loads(json.dumps(wire, allow_nan=False))


@given(records())
def test_a_record_arrives_as_it_was_sent(record: Record):
    assert Record.from_wire(_as_received(record.to_wire())) == record


@given(hosts())
def test_a_host_record_arrives_as_it_was_sent(host: Host):
    assert Host.from_wire(_as_received(host.to_wire())) == host


@given(devices())
def test_a_device_arrives_as_it_was_sent(device: DeviceFacts):
    assert DeviceFacts.from_wire(_as_received(device.to_wire())) == device


def test_zero_is_sent_and_a_gap_is_not():
    record = Record.from_wire(
        {**_sample(), "no_process_s": 0.0, "energy_j": [60, 0], "util_hist_ms": {}, "power_w": None}
    )
    wire = record.to_wire()
    assert wire["no_process_s"] == 0.0
    assert wire["energy_j"] == [60.0, 0.0]
    assert wire["util_hist_ms"] == {}
    assert "power_w" not in wire
    assert record.power_w is None


def test_additions_of_a_newer_node_are_ignored():
    assert Record.from_wire({**_sample(), "colour": "green"}) == Record.from_wire(_sample())


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Record)]), JSON), st.data())
def test_any_field_value_gives_a_record_or_a_record_error(changes: dict[str, Any], data: st.DataObject):
    wire = {**_sample(), **changes}
    for name in data.draw(st.lists(st.sampled_from(sorted(wire)), max_size=2)):
        wire.pop(name, None)
    try:
        record = Record.from_wire(wire)
    except RecordError as error:
        assert str(error)  # noqa: PT017
    else:
        json.dumps(record.to_wire(), allow_nan=False)


@given(JSON)
def test_invalid_records_are_record_errors(wire: Any):
    for kind in (Record, Host, DeviceFacts, Event):
        with pytest.raises(RecordError):
            kind.from_wire(wire)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"job_id": None}, "job_id is missing"),
        ({"job_id": -1}, "job_id: -1 must be a whole number"),
        ({"job_id": True}, "job_id: True must be a whole number"),
        ({"node": "n 1"}, "node: 'n 1' must be a name"),
        ({"segment": "xyz"}, "segment: 'xyz' must be 16 hexadecimal digits"),
        ({"final": 1}, "final: 1 must be true or false"),
        ({"allocated_s": math.nan}, "allocated_s: nan must be from 0"),
        ({"last_s": 5}, "last_s: 5 is before first_s"),
        ({"sampled_s": 65}, r"sampled_s: 65\.0 exceeds allocated_s 60\.0"),
        ({"util_hist_ms": {"101": 5}}, "util_hist_ms: '101' must be a whole percent"),
        ({"util_hist_ms": {"5": 70_000}}, "util_hist_ms: sums to more than allocated_s"),
        ({"power_w": [60, 300, 100, 200]}, "power_w: mean 300 is outside min 100 … max 200"),
        ({"power_w": [60, 1]}, "power_w: .* must be a list of 4 numbers"),
        ({"energy_j": [60, -1]}, "energy_j: -1 must be from 0"),
        ({"throttle_s": {"a b": 1}}, "throttle_s: 'a b' must be a name"),
        ({"throttle_s": {"sw_power_cap": 1e12}}, "throttle_s.sw_power_cap: 1000000000000.0 must be from 0"),
        ({"allocated_s": 1e308}, r"allocated_s: 1e\+308 must be from 0 to 3.16\d*e\+09"),
        ({"granted_mgpu": 2**63 - 1}, "granted_mgpu: 9223372036854775807 must be .* ≤ 1000"),
        ({"granted_mgpu": 1001}, "granted_mgpu: 1001 must be .* ≤ 1000"),
        ({"last_s": 2**60}, "last_s: 1152921504606846976 must be a whole number ≥ 0 and ≤ 253370764799"),
        ({"mem_used_frac": [60, 0.5, 0.5, 1.1]}, "mem_used_frac: 1.1 must be from 0 to 1"),
        ({"device_util_pct": [60, 50, 0, 101]}, "device_util_pct: 101 must be from 0 to 100"),
        ({"energy_j": [60, 1e300]}, r"energy_j: 1e\+300 must be from 0"),
        ({"power_w": [60, 1, 1, 1e6]}, r"power_w: 1000000\.0 must be from 0 to 10000"),
        ({"temp_c": [60, 30, 30, 3000]}, "temp_c: 3000 must be from 0 to 200"),
        ({"mem_used_mib": [60, 1, 1, 1e12]}, r"mem_used_mib: 1000000000000\.0 must be from 0 to 6.71"),
        ({"sm_clock_mhz": [60, 1, 1, 1e9]}, r"sm_clock_mhz: 1000000000\.0 must be from 0 to 10000"),
        ({"processes": [60, 1, 1, 1e9]}, r"processes: 1000000000\.0 must be from 0 to 4.19"),
        ({"restart": 2**40}, "restart: 1099511627776 must be .* ≤ 4294967295"),
        ({"job_id": 2**40}, "job_id: 1099511627776 must be .* ≤ 4294967295"),
        ({"uptime_s": -1}, "uptime_s: -1 must be from 0"),
        ({"power_w": [1e30, 1, 1, 1]}, r"power_w: 1e\+30 must be from 0"),
        ({"util_hist_ms": {"9" * 5000: 1}}, "util_hist_ms: '99999.*… must be a whole percent"),
        ({"job_id": -(10**5000)}, "job_id: a number of 16610 bits must be a whole number"),
    ],
)
def test_a_malformed_record_is_refused_by_the_name_of_its_field(change: dict[str, Any], complaint: str):
    with pytest.raises(RecordError, match=complaint):
        Record.from_wire({**_sample(), **change})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"segment": None}, "segment is missing"),
        ({"last_s": 5}, "last_s: 5 is before first_s"),
        ({"cpu_s": -1}, "cpu_s: -1 must be from 0"),
        ({"cpu_s": 1e308}, r"cpu_s: 1e\+308 must be from 0"),
        ({"read_bytes": 1.5}, "read_bytes: 1.5 must be a whole number"),
        ({"app": "x\n\x1b[31m"}, "app: 'x.*must be text of 1 to 255 printable characters"),
        ({"app": "\udcff"}, "app: .* must be text"),
        ({"app_params": {"basis": 5}}, "app_params.basis: 5 must be text"),
        ({"app_params": {str(n): "x" for n in range(33)}}, "app_params: must be .* at most 32"),
        ({"container": "yes"}, "container: 'yes' must be true or false"),
    ],
)
def test_a_malformed_host_record_is_refused_by_the_name_of_its_field(change: dict[str, Any], complaint: str):
    identity = {name: value for name, value in _sample().items() if name not in ("device", "allocated_s")}
    assert Host.from_wire(identity).app is None
    with pytest.raises(RecordError, match=complaint):
        Host.from_wire({**identity, **change})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"uuid": None}, "uuid is missing"),
        ({"at_s": None}, "at_s is missing"),
        ({"at_s": 1.5}, "at_s: 1.5 must be a whole number"),
        ({"name": ""}, "name: '' must be text"),
        ({"memory_mib": "80G"}, "memory_mib: '80G' must be a number"),
        ({"parent": "a b"}, "parent: 'a b' must be a name"),
    ],
)
def test_a_malformed_device_is_refused_by_the_name_of_its_field(change: dict[str, Any], complaint: str):
    with pytest.raises(RecordError, match=complaint):
        DeviceFacts.from_wire({"uuid": "GPU-1", "node": "n1", "at_s": 5, **change})


def test_events_travel_too():
    event = Event(node="n1", boot_id="b", n=0, at_s=5, kind="gpu_lost", device="GPU-1", data={"xid": 79})
    assert Event.from_wire(json.loads(json.dumps(event.to_wire()))) == event
    with pytest.raises(RecordError, match="kind is missing"):
        Event.from_wire({"node": "n1", "boot_id": "b", "n": 0, "at_s": 5})
    with pytest.raises(RecordError, match="data: 3 must be an object"):
        Event.from_wire({**event.to_wire(), "data": 3})
    with pytest.raises(RecordError, match="data: 5012 bytes exceed the maximum of 4096"):
        Event.from_wire({**event.to_wire(), "data": {"text": "x" * 5000}})
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(RecordError, match="data: is nested more than 16 levels deep"):
        Event.from_wire({**event.to_wire(), "data": {"deep": deep}})
    with pytest.raises(RecordError, match=r"data: cannot be stored: .* surrogates not allowed"):
        Event.from_wire({**event.to_wire(), "data": {"text": "half a pair: \ud800"}})


# Merging


def _close(a: Mean | Total | None, b: Mean | Total | None) -> bool:
    if a is None or b is None:
        return a is b
    pairs = zip(a, b, strict=True)
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-6) for x, y in pairs)


@given(st.lists(st.none() | means(min_seconds=0.001), max_size=3))
def test_means_merge_in_any_order_and_grouping(parts: list[Mean | None]):
    whole = merge_means(parts)
    assert all(_close(merge_means(order), whole) for order in permutations(parts))
    for cut in range(len(parts) + 1):
        assert _close(merge_means([merge_means(parts[:cut]), merge_means(parts[cut:])]), whole)


@given(st.lists(st.none() | totals(), max_size=3))
def test_totals_merge_in_any_order_and_grouping(parts: list[Total | None]):
    whole = merge_totals(parts)
    assert all(_close(merge_totals(order), whole) for order in permutations(parts))
    for cut in range(len(parts) + 1):
        assert _close(merge_totals([merge_totals(parts[:cut]), merge_totals(parts[cut:])]), whole)


@given(st.lists(st.none() | histograms(), max_size=3))
def test_histograms_merge_in_any_order_and_grouping(parts: list[dict[int, int] | None]):
    whole = merge_histograms(parts)
    assert all(merge_histograms(order) == whole for order in permutations(parts))
    for cut in range(len(parts) + 1):
        assert merge_histograms([merge_histograms(parts[:cut]), merge_histograms(parts[cut:])]) == whole


@given(st.lists(means(min_seconds=0.001), min_size=1, max_size=5))
def test_a_merged_mean_is_within_its_parts(parts: list[Mean]):
    merged = merge_means(parts)
    assert merged is not None
    assert min(p.min for p in parts) == merged.min <= merged.mean <= merged.max == max(p.max for p in parts)


@given(histograms(), histograms())
def test_the_mean_of_merged_histograms_weighs_by_time(a: dict[int, int], b: dict[int, int]):
    merged, time_a, time_b = histogram_mean(merge_histograms([a, b]) or {}), sum(a.values()), sum(b.values())
    if time_a + time_b == 0:
        assert merged is None
        return
    expected = sum(pct * ms for h in (a, b) for pct, ms in h.items()) / (time_a + time_b)
    assert merged == pytest.approx(expected)


def test_zero_is_a_measurement_and_none_a_gap_in_every_merge():
    assert merge_histograms([{0: 1000}, None]) == {0: 1000}
    assert histogram_mean({0: 1000}) == 0.0
    assert histogram_quantile({0: 1000}, 0.95) == 0
    assert merge_histograms([None, None]) is None
    assert histogram_mean({}) is None
    assert histogram_quantile({}, 0.5) is None
    assert merge_totals([Total(10, 0), None]) == Total(10, 0)
    assert merge_totals([None]) is None
    assert merge_means([Mean(10, 0, 0, 0), None]) == Mean(10, 0, 0, 0)
    assert merge_means([]) is None
    # An idle hour and a busy hour are half busy: the idle one is not left out.
    assert merge_means([Mean(3600, 0, 0, 0), Mean(3600, 100, 100, 100)]) == Mean(7200, 50, 0, 100)


@given(histograms(), st.floats(0, 1))
def test_a_quantile_has_its_share_of_time_at_or_below(histogram: dict[int, int], q: float):
    quantile, total = histogram_quantile(histogram, q), sum(histogram.values())
    if quantile is None:
        assert total == 0
        return
    assert sum(ms for pct, ms in histogram.items() if pct <= quantile) >= q * total
    assert sum(ms for pct, ms in histogram.items() if pct < quantile) <= q * total
