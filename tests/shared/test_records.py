"""Records travel unchanged, merge in any order, and refuse what is malformed with the field's name."""

import dataclasses
import json
import math
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.errors import RecordError
from slurm_gpu.records import (
    Event,
    Mean,
    Record,
    Total,
    histogram_mean,
    histogram_quantile,
    merge_histograms,
    merge_means,
    merge_totals,
)

# Strategies

_AMOUNT = st.floats(0, 1e15, allow_nan=False)
_WHOLE = st.integers(0, 2**63 - 1)
_NAME = st.from_regex(r"[A-Za-z0-9_.:+/-]{1,40}", fullmatch=True)


@st.composite
def means(draw: st.DrawFn, min_seconds: float = 0.0) -> Mean:
    low, mean, high = sorted(draw(st.tuples(_AMOUNT, _AMOUNT, _AMOUNT)))
    return Mean(draw(st.floats(min_seconds, 1e8)), mean, low, high)


@st.composite
def totals(draw: st.DrawFn) -> Total:
    return Total(draw(st.floats(0, 1e8)), draw(_AMOUNT))


def histograms(total_ms: int = 10**9) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(st.integers(0, 100), st.integers(0, total_ms // 101))


@st.composite
def records(draw: st.DrawFn) -> Record:
    held_s = draw(st.floats(0, 1e7))
    first_s = draw(st.integers(0, 2**40))
    values: dict[str, Any] = {
        "cluster": draw(_NAME),
        "job_id": draw(_WHOLE),
        "restart": draw(_WHOLE),
        "prolog_s": draw(_WHOLE),
        "node": draw(_NAME),
        "boot_id": draw(_NAME),
        "segment": draw(st.from_regex("[0-9a-f]{16}", fullmatch=True)),
        "device": draw(_NAME),
        "seq": draw(_WHOLE),
        "final": draw(st.booleans()),
        "first_s": first_s,
        "last_s": first_s + draw(st.integers(0, 2**30)),
        "held_s": held_s,
        "sampled_s": draw(st.floats(0, held_s)),
    }
    for field in dataclasses.fields(Record):
        if field.name in values:
            continue
        filled: st.SearchStrategy[Any] = {
            "Mean | None": means(),
            "Total | None": totals(),
            "Histogram | None": histograms(int(held_s * 1000)),
            "float | None": _AMOUNT,
            "int | None": _WHOLE,
            "Mapping[str, float] | None": st.dictionaries(_NAME, _AMOUNT, max_size=5),
        }[str(field.type)]
        values[field.name] = draw(st.none() | filled)
    return Record(**values)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


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
        "held_s": 60.0,
        "sampled_s": 59.0,
    }


# On the wire


@given(records())
def test_a_record_arrives_as_it_was_sent(record: Record):
    assert Record.from_wire(json.loads(json.dumps(record.to_wire(), allow_nan=False))) == record


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


def test_what_a_newer_node_adds_is_ignored():
    assert Record.from_wire({**_sample(), "colour": "green"}) == Record.from_wire(_sample())


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Record)]), _JSON), st.data())
def test_whatever_stands_in_a_field_it_is_a_record_or_a_record_error(
    changes: dict[str, Any], data: st.DataObject
):
    wire = {**_sample(), **changes}
    for name in data.draw(st.lists(st.sampled_from(sorted(wire)), max_size=2)):
        wire.pop(name, None)
    try:
        record = Record.from_wire(wire)
    except RecordError as error:
        assert str(error)  # noqa: PT017
    else:
        json.dumps(record.to_wire(), allow_nan=False)


@given(_JSON)
def test_whatever_arrives_it_is_a_record_or_a_record_error(wire: Any):
    for kind in (Record, Event):
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
        ({"held_s": math.nan}, "held_s: nan must lie from 0"),
        ({"last_s": 5}, "last_s: 5 lies before first_s"),
        ({"sampled_s": 65}, r"sampled_s: 65\.0 exceeds held_s 60\.0"),
        ({"util_hist_ms": {"101": 5}}, "util_hist_ms: '101' must be a whole percent"),
        ({"util_hist_ms": {"5": 70_000}}, "util_hist_ms: sums to more than held_s"),
        ({"power_w": [60, 300, 100, 200]}, "power_w: mean 300 lies outside min 100 … max 200"),
        ({"power_w": [60, 1]}, "power_w: .* must be a list of 4 numbers"),
        ({"energy_j": [60, -1]}, "energy_j: -1 must lie from 0"),
        ({"throttle_s": {"a b": 1}}, "throttle_s: 'a b' must be a name"),
    ],
)
def test_a_malformed_record_is_refused_by_the_name_of_its_field(change: dict[str, Any], complaint: str):
    with pytest.raises(RecordError, match=complaint):
        Record.from_wire({**_sample(), **change})


def test_events_travel_too():
    event = Event(node="n1", boot_id="b", n=0, at_s=5, kind="gpu_lost", device="GPU-1", data={"xid": 79})
    assert Event.from_wire(json.loads(json.dumps(event.to_wire()))) == event
    with pytest.raises(RecordError, match="kind is missing"):
        Event.from_wire({"node": "n1", "boot_id": "b", "n": 0, "at_s": 5})
    with pytest.raises(RecordError, match="data: 3 must be an object"):
        Event.from_wire({**event.to_wire(), "data": 3})


# Merging


def _close(a: Mean | Total | None, b: Mean | Total | None) -> bool:
    if a is None or b is None:
        return a is b
    pairs = zip(a.to_wire(), b.to_wire(), strict=True)
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
def test_a_merged_mean_lies_within_its_parts(parts: list[Mean]):
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
