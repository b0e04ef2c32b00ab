"""Charts show exactly their numbers: the lengths of bars match their values, and gaps remain gaps."""

import itertools
import re
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import Axis, Bars, Cdf, Chart, Matrix, ParallelCoordinates, TimeSeries
from slurm_gpu.reports.figures.ranking import bars
from slurm_gpu.reports.page.amounts import with_unit
from slurm_gpu.reports.page.draw import NARROW, WIDE, draw
from slurm_gpu.reports.page.drawing import Box, LineMark, TextMark, VectorDrawing, fitted, text_width
from slurm_gpu.reports.page.palette import DARK, LIGHT
from slurm_gpu.reports.page.png import write_png
from slurm_gpu.reports.page.scales import AxisScale, nice_ticks, scale_of, time_ticks
from slurm_gpu.reports.page.svg import svg_file
from tests.reports.page.example_figures import AXES, HOSTILE, figures, parallel, steps

CHARTS = {figure.id: figure.chart for figure in figures()}


def _boxes(drawing: VectorDrawing) -> list[Box]:
    return [mark for mark in drawing.marks if isinstance(mark, Box) and mark.about]


def _lines(drawing: VectorDrawing) -> list[LineMark]:
    return [mark for mark in drawing.marks if isinstance(mark, LineMark) and mark.about]


def _labels(drawing: VectorDrawing) -> list[str]:
    return [mark.text for mark in drawing.marks if isinstance(mark, TextMark)]


def test_bars_are_as_long_as_their_values():
    chart = Bars(labels=["a", "b"], series={"allocated": np.array([30.0, 60.0])}, unit="W")
    short, long = _boxes(draw(chart))
    assert long.width == pytest.approx(2 * short.width)
    assert short.about == "a: 30\u00a0W"


def test_stacked_bars_end_where_their_sum_is_and_begin_where_the_last_ended():
    chart = Bars(
        labels=["a"], series={"x": np.array([10.0]), "y": np.array([30.0])}, unit="W", total=np.array([80.0])
    )
    first, second, whole = _boxes(draw(chart))
    assert second.x == pytest.approx(first.x + first.width)
    assert second.width == pytest.approx(3 * first.width)
    assert whole.outline
    assert whole.width == pytest.approx(8 * first.width)
    assert "40" in _labels(draw(chart))


def test_a_gap_has_no_bar_and_a_dash_and_zero_is_zero():
    chart = Bars(labels=["gap", "none"], series={"x": np.array([np.nan, 0.0])}, unit="h")
    drawing = draw(chart)
    assert not _boxes(drawing)
    assert {"–", "0"} <= set(_labels(drawing))


def test_a_chart_with_too_many_bars_shows_their_number():
    chart = Bars(labels=[f"u{i}" for i in range(90)], series={"x": np.arange(90.0)[::-1]}, unit="h")
    assert "first 25 of 90" in _labels(draw(chart))


def test_the_sum_of_all_others_is_written_and_has_no_bar():
    """A bar of the sum would often be the longest, and set the scale of all others."""
    names = [f"u{i:02}" for i in range(30)]
    chart = bars(names, {"GPU-hours": np.arange(30.0, 0.0, -1)}, "GPU-hours")
    drawing = draw(chart)
    assert [box.about.partition(":")[0] for box in _boxes(drawing)] == names[:20]
    assert max(box.x + box.width for box in _boxes(drawing)) == pytest.approx(
        _boxes(drawing)[0].x + _boxes(drawing)[0].width
    )
    assert "10 others: 55\u00a0GPU-hours in total" in _labels(drawing)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_capacity_is_never_the_loudest_colour(colours):
    def chroma(tone: str) -> int:
        parts = [int(colours[tone][at : at + 2], 16) for at in (1, 3, 5)]
        return max(parts) - min(parts)

    chart = TimeSeries(
        edges_s=np.arange(3) * 3600.0,
        series={name: np.ones(2) for name in ("allocated", "stranded", "free", "out of service")},
        unit="GPUs",
        unused=("free", "out of service"),
        limit=np.full(2, 4.0),
    )
    tones = {line.about: line.tone for line in _lines(draw(chart))}
    used = min(chroma(tones[name]) for name in ("allocated", "stranded"))
    for name in ("free", "out of service", "capacity"):
        assert chroma(tones[name]) < used / 3


def test_axes_of_durations_have_round_durations():
    chart = Bars(labels=["a"], series={"median": np.array([2.5 / 60])}, unit="h", stacked=False)
    assert {"0", "20s", "1m", "2m", "2m30s"} <= set(_labels(draw(chart)))
    waits = np.array([0.0] * 50 + [10 / 3600, 0.5, 12.0])
    cdf = Cdf(axes=[Axis("WAIT_h", "h")], curves={"WAIT_h": {"all": steps(waits)}})
    assert {"Wait (WAIT_h)", "20s", "1h"} <= set(_labels(draw(cdf)))


def test_a_gap_in_a_series_breaks_its_line():
    edges = np.arange(5) * 3600.0
    chart = TimeSeries(edges_s=edges, series={"x": np.array([1.0, np.nan, 3, 4])}, unit="%", stacked=False)
    (line,) = _lines(draw(chart))
    assert np.isnan(line.points[:, 1]).tolist() == [False, False, True, True, False, False, False, False]
    (path,) = re.findall('d="([^"]*)" class="l-s0"', svg_file(draw(chart), "title"))
    assert path.count("M") == 2


def test_stacked_areas_lie_on_each_other():
    edges = np.arange(3) * 3600.0
    chart = TimeSeries(edges_s=edges, series={"a": np.array([1.0, 2]), "b": np.array([3.0, 1])}, unit="GPUs")
    lower, upper = _lines(draw(chart))
    np.testing.assert_allclose(lower.points[:4, 1], upper.points[4:, 1][::-1])


def test_a_cumulative_curve_is_at_half_where_the_median_is():
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    chart = Cdf(axes=AXES[:1], curves={"nNODE": {"a": steps(values)}})
    (line,) = _lines(draw(chart))
    heights = np.unique(np.round(line.points[:, 1], 3))
    assert len(heights) == 9  # a step for each, and 0
    rise = heights[-1] - heights[0]
    np.testing.assert_allclose(np.diff(heights), rise / 8, rtol=1e-3)
    assert (line.points[1:, 0] >= line.points[:-1, 0]).all()


def test_a_large_matrix_shows_the_largest_values_and_the_number_of_rows():
    """Test the order by value; in an order by name the largest lender could be omitted."""
    values = np.ones((30, 25))
    values[29, 24] = 777.0
    chart = Matrix(
        rows=[f"r{n:02}" for n in range(30)], columns=[f"c{n:02}" for n in range(25)], values=values, unit="W"
    )
    drawing = draw(chart)
    assert "r29 → c24: 777\u00a0W" in {box.about for box in _boxes(drawing)}
    assert "the largest 20 of 30 rows, 20 of 25 columns" in _labels(drawing)
    assert len(_boxes(drawing)) == 400


def test_a_matrix_has_its_numbers_and_empty_cells():
    chart = Matrix(rows=["a"], columns=["b", "c"], values=np.array([[5.0, np.nan]]), unit="W")
    drawing = draw(chart)
    assert [box.about for box in _boxes(drawing)] == ["a → b: 5\u00a0W"]
    assert "5" in _labels(drawing)


def test_static_lines_show_the_number_of_jobs():
    assert "2,000 of 20,000 jobs, an even sample" in _labels(draw(parallel(20_000)))
    assert not any("jobs" in text for text in _labels(draw(parallel(100))))


_EMPTY = (
    Bars(labels=[], series={}, unit="h"),
    TimeSeries(edges_s=np.array([0.0]), series={}, unit="h"),
    Cdf(axes=AXES, curves={}),
    Matrix(rows=[], columns=[], values=np.zeros((0, 0)), unit=""),
    ParallelCoordinates(
        axes=AXES,
        values={axis.name: np.zeros(0) for axis in AXES},
        colour="nNODE",
        application=Category([], np.zeros(0, np.int32)),
        labels=[],
        of=0,
    ),
)


@pytest.mark.parametrize("chart", _EMPTY)
def test_an_empty_chart_shows_a_sentence(chart: Chart):
    assert _labels(draw(chart)) == ["No data in this period."]


_UNKNOWN = (
    Bars(labels=["a"], series={"x": np.array([np.nan])}, unit="h", total=np.array([np.nan])),
    Bars(labels=["a"], series={"x": np.array([np.nan])}, unit="h", stacked=False),
    TimeSeries(edges_s=np.array([0.0, 60]), series={"x": np.array([np.nan])}, unit="h", stacked=False),
    Cdf(axes=AXES, curves={"nNODE": {"a": steps(np.array([np.nan]))}}),
    Matrix(rows=["a"], columns=["b"], values=np.array([[np.nan]]), unit=""),
)


@pytest.mark.parametrize("chart", [*_UNKNOWN, *CHARTS.values()])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_every_chart_is_well_formed_and_has_a_place_for_all_its_marks(chart: Chart, width: float):
    drawing = draw(chart, width)
    fromstring(svg_file(drawing, "title").encode())
    for mark in drawing.marks:
        if isinstance(mark, Box):
            assert mark.width >= 0
            assert -1 <= mark.x <= mark.x + mark.width <= width + 1
            assert -1 <= mark.y <= mark.y + mark.height <= drawing.height
        elif isinstance(mark, LineMark) and len(mark.points):
            known = mark.points[~np.isnan(mark.points).any(axis=1)]
            assert ((known >= -1) & (known <= [width + 1, drawing.height])).all()


def test_pictures_are_pictures(tmp_path):
    few = {figure.id: figure.chart for figure in figures(HOSTILE[::4], runs=40)}
    for name, chart in few.items():
        write_png(draw(chart, NARROW), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_and_marks_have_enough_contrast(colours):
    def contrast(one: str, other: str) -> float:
        bright, dark = sorted((_luminance(colours[one]), _luminance(colours[other])), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    for text, ground in itertools.product(("ink", "muted", "accent"), ("surface", "page")):
        assert contrast(text, ground) >= 4.5  # WCAG 2.2 AA, text
    for mark in (f"s{i}" for i in range(10)):
        assert contrast(mark, "surface") >= 2.2
    assert LIGHT.keys() == DARK.keys()
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours.values())


@settings(max_examples=50)
@given(st.floats(0, 1e9), st.floats(1e-3, 1e9), st.integers(2, 10))
def test_ticks_are_round_few_and_around_the_values(least: float, reach: float, about: int):
    reach = max(reach, 1e-6 * least)
    ticks = nice_ticks(least, least + reach, about)
    assert 2 <= len(ticks) <= about + 4
    assert ticks[0] <= least + 1e-3 * reach
    assert ticks[-1] >= least + 0.999 * reach


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_a_scale_has_a_place_for_every_value(values: list[float]):
    column = np.array(values)
    scale = scale_of(column)
    places = scale.fraction(column)
    assert ((places >= -1e-9) & (places <= 1 + 1e-9)).all()
    ticks = scale.ticks(400, 40)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 13


def test_a_logarithmic_scale_resolves_seconds_and_hours_and_has_a_zero():
    scale = AxisScale(0.0, 500.0, 1000.0)
    assert scale.at(0.0) == 0
    assert scale.at(500.0) == 1
    assert scale.at(0.01) > 0.1


def test_days_begin_at_the_sites_midnight():
    midnight_s = 1_790_780_400  # 2026-10-01 00:00 in Seoul
    ticks = time_ticks(midnight_s, midnight_s + 7 * 86400, "Asia/Seoul", 10)
    assert [name for _, name in ticks] == [f"{day} Oct" for day in range(1, 9)]
    assert ticks[0][0] == midnight_s


def test_a_day_that_has_23_hours_moves_no_name():
    ticks = time_ticks(1_774_652_400, 1_774_652_400 + 7 * 86400 - 3600, "Europe/Berlin", 10)
    assert [name for _, name in ticks] == [
        "28 Mar",
        "29 Mar",
        "30 Mar",
        "31 Mar",
        "1 Apr",
        "2 Apr",
        "3 Apr",
        "4 Apr",
    ]


def test_long_names_are_truncated_to_the_width():
    assert fitted("short", 100) == "short"
    cut = fitted("a very long name of an application", 80)
    assert cut.endswith("…")
    assert text_width(cut) <= 80


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1 / 3600, "h", "1s"),
        (1e-6, "h", "<0.1s"),
        (148 / 3600, "h", "2m28s"),
        (3 + 5 / 60, "h", "3h05m"),
        (0, "h", "0s"),
        (0.0003, "Wh", "0.0003 Wh"),
        (None, "h", "–"),
        (float("nan"), "h", "–"),
    ],
)
def test_hours_are_shown_as_durations(value: float | None, unit: str, text: str):
    assert with_unit(value, unit).replace("\u00a0", " ") == text
