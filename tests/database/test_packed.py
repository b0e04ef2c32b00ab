"""Packed values are restored unchanged, even in later releases, and take a third of the space."""

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.database.storage.packed import (
    pack_statistics,
    pack_timeline,
    unpack_statistics,
    unpack_timeline,
    unpacker,
)
from slurm_gpu.errors import DatabaseError
from slurm_gpu.wire.timeline import FULL, SERIES

PERCENTS = [str(percent) for percent in range(101)]
STATISTICS: dict[str, Any] = {
    "uptime_s": 5000.0,
    "device_util_pct": [90.0, 50.0, 0.0, 100.0],
    "energy_j": [90.0, 4500.0],
    "throttle_s": {"sw_power_cap": 1.5},
    "util_hist_ms": {"0": 40000, "3": 1, "100": 50000},
    "mem_hist_ms": {"25": 90000},
}
COURSE = {"width_s": 64, "start_s": 1_780_000_000, "series": {"util": "AH3/", "power": "AQID"}}


def random_record(dice: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return statistics and timeline of a job with random activity."""

    def some(seconds: float, most: float, amounts: int) -> list[float]:
        return [seconds, *(float(f"{dice.uniform(0, most):.7g}") for _ in range(amounts))]

    gauges = ("device_util_pct", "mem_used_mib", "mem_used_frac", "mem_util_pct", "power_w", "temp_c")
    statistics: dict[str, Any] = {"uptime_s": round(dice.uniform(0, 1e6), 6)}
    statistics |= {name: some(7799.123, 100, 3) for name in (*gauges, "sm_clock_mhz", "processes")}
    statistics |= {name: some(7799.123, 1e12, 1) for name in ("energy_j", "pcie_rx_bytes", "pcie_tx_bytes")}
    statistics["util_hist_ms"] = {percent: dice.randrange(1, 99_999) for percent in PERCENTS}
    statistics["mem_hist_ms"] = {str(dice.randrange(101)): dice.randrange(1, 10**7) for _ in range(5)}
    levels = {name: bytes(dice.randrange(FULL + 1) for _ in range(200)) for name in ("util", "power")}
    levels |= {name: bytes([dice.randrange(FULL + 1)]) * 200 for name in ("mem_used", "sm_clock")}
    series = {name: base64.b64encode(some).decode() for name, some in levels.items()}
    return statistics, {"width_s": 64, "start_s": 1_780_000_000, "series": series}


numbers = st.one_of(st.integers(0, 2**63 - 1), st.floats(0, 1e24))
histograms = st.dictionaries(st.sampled_from(PERCENTS), st.integers(0, 2**63 - 1))


@given(
    st.dictionaries(st.text("abc_", min_size=1), st.lists(numbers, max_size=4) | numbers),
    st.fixed_dictionaries({}, optional={"util_hist_ms": histograms, "mem_hist_ms": histograms}),
)
def test_statistics_come_back_as_they_were(values: dict[str, Any], reported: dict[str, Any]) -> None:
    assert unpack_statistics(pack_statistics({**values, **reported})) == {**values, **reported}


@given(
    st.dictionaries(st.sampled_from(("a", "b", "c")), st.lists(numbers, max_size=4) | numbers),
    st.fixed_dictionaries({}, optional={"util_hist_ms": histograms, "mem_hist_ms": histograms}),
)
def test_some_statistics_come_back_alone(values: dict[str, Any], reported: dict[str, Any]) -> None:
    whole, names = {**values, **reported}, {"a", "c", "util_hist_ms", "nowhere"}
    some = {name: value for name, value in whole.items() if name in names}
    assert unpacker(names)(pack_statistics(whole)) == some


@given(st.data())
def test_a_timeline_comes_back_as_it_was(data: st.DataObject) -> None:
    n_bins = data.draw(st.integers(0, 256))
    levels = st.binary(min_size=n_bins, max_size=n_bins).map(lambda some: base64.b64encode(some).decode())
    series = data.draw(st.dictionaries(st.sampled_from(SERIES), levels))
    timeline = {"width_s": data.draw(st.integers(1, 2**31)), "start_s": 1_780_000_000, "series": series}
    assert unpack_timeline(pack_timeline(timeline)) == timeline


def test_a_histogram_that_is_none_comes_back_as_it_was() -> None:
    odd = {"util_hist_ms": {"007": 5, "8": 1}, "mem_hist_ms": {"5": 0, "6": 1}}
    assert unpack_statistics(pack_statistics(odd)) == odd


# Values as stored in databases. Stored values must remain readable: never change a value, only add new ones.
STORED = {
    "1": (
        "31438e6f5348bc6289714b90b8297aa423790eacc0c4d4008b13d1d2b3a19e2936470343df00e228434c0f0c31"
        "080a47cc403732d5b1044bd40200"
    ),
    "2": "328b062523730b030880272048ca88e562a8fdcfc8c40c00",
}


def test_values_of_earlier_releases_can_be_unpacked() -> None:
    assert unpack_statistics(bytes.fromhex(STORED["1"])) == STATISTICS
    assert unpack_timeline(bytes.fromhex(STORED["2"])) == COURSE


@pytest.mark.parametrize("unpack", [unpack_statistics, unpack_timeline])
def test_a_format_of_a_later_release_is_reported(unpack: Any) -> None:
    with pytest.raises(DatabaseError, match="begins with b'9'"):
        unpack(b"9whatever")


def test_a_record_full_of_noise_takes_less_than_half_of_its_text() -> None:
    dice = random.Random(1)
    texts = packed = 0
    for _ in range(20):
        statistics, course = random_record(dice)
        texts += len(
            json.dumps(statistics, separators=(",", ":")) + json.dumps(course, separators=(",", ":"))
        )
        packed += len(pack_statistics(statistics)) + len(pack_timeline(course))
    assert packed < 0.45 * texts
