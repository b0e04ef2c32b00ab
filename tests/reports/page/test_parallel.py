"""The script receives exact data if there are few distinct values, and otherwise data within 0.1 %."""

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import Axis, ParallelCoordinates
from slurm_gpu.reports.page.parallel import PackedCoordinates, pack, script_json
from tests.reports.page.example_figures import HOSTILE, parallel


def _unpacked(packed: PackedCoordinates) -> tuple[dict[str, np.ndarray], list[str]]:
    """Decode the data as the script does."""
    facts = json.loads(packed.facts)
    data, n, at = zlib.decompress(base64.b64decode(packed.data)), facts["runs"], 0
    columns = {}

    def codes(wide: bool) -> np.ndarray:
        nonlocal at
        low = np.frombuffer(data, np.uint8, n, at).astype(int)
        high = np.frombuffer(data, np.uint8, n, at + n).astype(int) if wide else 0
        at += n * (2 if wide else 1)
        return low + 256 * high

    for axis in facts["axes"]:
        found = codes(axis["wide"])
        if axis["wide"]:
            values = np.expm1(np.arange(65_535) * (np.log1p(axis["most"]) / 65_534))
        else:
            values = np.array(axis["values"], float)
        columns[axis["key"]] = np.append(values, [np.nan] * 300)[np.minimum(found, len(values))]
    names = [facts["applications"][code] for code in codes(False)]
    assert at == len(data)
    return columns, names


def test_values_come_back():
    chart = parallel(5000)
    columns, names = _unpacked(pack(chart, {}))
    for axis in chart.axes:
        np.testing.assert_allclose(columns[axis.name], chart.values[axis.name], rtol=3e-4, atol=2e-4)
    for exact in ("nNODE", "nGPU"):
        np.testing.assert_array_equal(columns[exact], chart.values[exact])
    assert names == [name or "(not recognised)" for name in chart.application.texts()]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(st.just(float("nan")), st.floats(0, 1e6), st.integers(0, 3).map(float)),
        min_size=1,
        max_size=400,
    )
)
def test_any_values_come_back_and_gaps_stay_gaps(values: list[float]):
    column = np.array(values)
    chart = _of_one_axis(column)
    columns, _ = _unpacked(pack(chart, {}))
    most = np.nanmax(column, initial=0.0)
    np.testing.assert_allclose(columns["x"], column, rtol=3e-4, atol=3e-4 * max(1.0, np.log1p(most)))


def _of_one_axis(column: np.ndarray, names: tuple[str, ...] = ("a",)) -> ParallelCoordinates:
    codes = (np.arange(len(column)) % len(names)).astype(np.int32)
    return ParallelCoordinates(
        axes=[Axis("x", "")],
        values={"x": column},
        colour="x",
        application=Category(names, codes),
        labels=[],
        of=len(column),
    )


def test_a_sample_shows_the_size_of_its_population():
    chart = replace(parallel(500), of=200_000)
    assert json.loads(pack(chart, {}).facts)["noun"] == "jobs drawn of 200,000"


def test_three_hundred_applications_have_a_place_and_the_rarest_share_one():
    names = tuple(f"app{i}" for i in range(300))
    chart = _of_one_axis(np.arange(900.0), names)
    _, found = _unpacked(pack(chart, {}))
    assert found.count("others") == 3 * (300 - 255)
    assert found.count("app0") == 3


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_ends_the_script_element(name: str):
    text = script_json([name])
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == [name]
