"""Compare both readers of shipments: equal rows, and msgspec accepts nothing that slurm_gpu.wire rejects."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.accounting.writer import _record_row
from slurm_gpu.database.storage.fast_decoder import DecodedRecord, decode_valid
from slurm_gpu.database.storage.packed import (
    pack_statistics,
    pack_timeline,
    unpack_statistics,
    unpack_timeline,
)
from slurm_gpu.errors import RecordError
from slurm_gpu.wire import Live, Mean, Record, Total
from slurm_gpu.wire.timeline import SERIES
from tests.database.samples import T0, record, timeline


def full() -> Record:
    """Return a record in which every field has a value."""
    names: dict[str, list[str]] = {}
    for item in dataclasses.fields(Record):
        names.setdefault(str(item.type), []).append(item.name)
    return record(
        uptime_s=12345.5,
        no_process_s=0.0,
        suspended_s=0.5,
        granted_mgpu=1000,
        mem_hist_ms={0: 1, 100: 9000},
        throttle_s={"sw_power_cap": 1.5},
        timeline=timeline(0, 50, None, 100),
        **dict.fromkeys(names["Mean | None"], Mean(10.0, 0.5, 0.25, 1.0)),
        **dict.fromkeys(names["Total | None"], Total(10.0, 1.5)),
    )


LIVE: dict[str, Any] = {
    "at_s": T0 + 0.5,
    "devices": {
        "GPU-1": {"util_pct": 0, "mem_used_mib": 1.5, "temp_c": 40, "throttle": ["hot"], "jobs": [1, 2]},
        "GPU-2": {"processes": 0.0, "jobs": None},
    },
    "host": {"cpu_pct": 12.5, "mem_used_mib": None},
}


def read(**given: Any) -> dict[str, Any] | None:
    text = json.dumps({"wire": 1, "node": "n1", **given})
    return decode_valid(text.encode(), json.loads)


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the database returns it."""
    forms: dict[str, tuple[Any, Any]] = {
        "statistics": (pack_statistics, unpack_statistics),
        "timeline": (pack_timeline, unpack_timeline),
    }
    back = dict(row)
    for name, (pack, unpack) in forms.items():
        if row[name] is not None:
            back[name] = unpack(row[name] if isinstance(row[name], bytes) else pack(row[name]))
    return back


def is_decoded_alike(wire: Any) -> bool:
    """Return whether msgspec accepts a record; if so, check that slurm_gpu.wire reads the same row."""
    shipment = read(records=[wire])
    if shipment is None:
        return False
    (decoded,) = shipment["records"]
    assert isinstance(decoded, DecodedRecord)
    checked = Record.from_wire(wire)
    assert columns(_record_row(decoded)) == columns(_record_row(checked))
    for name in ("cluster", "job_id", "restart", "node", "segment", "device", "seq", "first_s", "last_s"):
        assert getattr(decoded, name) == getattr(checked, name)
    return True


@pytest.mark.parametrize("sent", [record(), full(), record(util_hist_ms=None, energy_j=None)])
def test_shipments_of_slurm_gpud_are_decoded_as_valid(sent: Record) -> None:
    assert is_decoded_alike(sent.to_wire())


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "x", "n1\n", "a b", "0" * 16, "0" * 16 + "\n", "AAAA", "AB==", "/P/8", "ÿ", "\ud800"]
    ),
    st.sampled_from([0, 1, 0.0, 1.0, 100, 100.00009, 101, 1000, 1001, 2**31, 2**32, 2**63 - 1, 2**63, 1e308]),
    st.sampled_from(
        [[], {}, [1], [1, 2], [1, 2, 3, 4], [10.0, 5, 6, 7], [1, 0.5, 0.2, 0.7], [1, 2, 3, 4, 5]]
    ),
    st.sampled_from(
        [{"0": 1}, {"00": 1}, {"100": 2}, {"101": 1}, {"5": -1}, {"5": 1.0}, {"x": 1}, {"40": 99999}]
    ),
    st.sampled_from([{"a b": 1}, {f"r{n}": 1 for n in range(65)}]),
    st.sampled_from(
        [
            {"width_s": width, "start_s": start, "series": series}
            for width in (1, 3, 4, 2**31)
            for start in (0, 5, 8)
            for series in (
                {},
                {"util": "AA=="},
                {"util": "AA==", "power": "AAAA"},
                {"util": "/A=="},
                {"odd": 1},
            )
        ]
    ),
)


@given(st.dictionaries(st.sampled_from([*full().to_wire(), "unknown"]), VALUES, max_size=3))
def test_a_decoded_record_is_valid_for_slurm_gpu_wire(changes: dict[str, Any]) -> None:
    wire = {**full().to_wire(), **changes}
    try:
        is_decoded_alike(wire)
    except UnicodeEncodeError:
        pytest.fail("a lone surrogate was accepted")


@pytest.mark.parametrize("name", ["node", "segment", "device", "seq", "final", "first_s", "allocated_s"])
def test_a_record_without_a_required_field_is_rejected(name: str) -> None:
    wire = full().to_wire()
    del wire[name]
    assert not is_decoded_alike(wire)
    with pytest.raises(RecordError):
        Record.from_wire(wire)


def test_a_timeline_with_a_series_of_each_kind_is_decode_valid() -> None:
    course = {"width_s": 4, "start_s": 8, "series": dict.fromkeys(SERIES, "+v8=")}
    assert is_decoded_alike({**full().to_wire(), "timeline": course})


def test_a_record_with_an_unknown_key_is_left_to_slurm_gpu_wire() -> None:
    assert not is_decoded_alike({**full().to_wire(), "new_in_a_later_release": 1})
    assert read(records=[], new=1) is None


def test_live_values_are_equal() -> None:
    shipment = read(live=LIVE)
    assert shipment is not None
    assert shipment["live"] == Live.from_wire(LIVE)


@given(
    st.sampled_from(["at_s", "devices", "host"]),
    st.one_of(VALUES, st.dictionaries(st.sampled_from(["GPU-1", "a b", "cpu_pct"]), VALUES, max_size=2)),
)
def test_decoded_live_values_are_valid_for_slurm_gpu_wire(name: str, value: Any) -> None:
    wire = {**LIVE, name: value}
    shipment = read(live=wire)
    if shipment is not None:
        assert shipment["live"] == Live.from_wire(wire)


@given(st.sampled_from(["util_pct", "throttle", "jobs", "processes", "odd"]), VALUES)
def test_a_decoded_live_device_is_valid_for_slurm_gpu_wire(name: str, value: Any) -> None:
    wire = {**LIVE, "devices": {"GPU-1": {name: value}}}
    shipment = read(live=wire)
    if shipment is not None:
        assert shipment["live"] == Live.from_wire(wire)


def test_other_kinds_are_parsed_by_the_given_parser() -> None:
    shipment = read(hosts=[{"cpu_s": 1}], events=[], windows=None, open=[1, 2], version="0.2.0")
    assert shipment is not None
    assert (shipment["hosts"], shipment["events"], shipment["windows"]) == ([{"cpu_s": 1}], [], None)
    assert (shipment["open"], shipment["version"], shipment["records"], shipment["live"]) == (
        [1, 2],
        "0.2.0",
        None,
        None,
    )
