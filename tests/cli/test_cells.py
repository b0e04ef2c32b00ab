"""Values in tables are formatted for readers."""

from zoneinfo import ZoneInfo

import pytest

from slurm_gpu.text import cells


def test_zero_is_printed_as_0_and_none_as_a_dash_in_every_cell():
    assert [cells.number(0, 2), cells.count(0), cells.memory(0), cells.energy(0), cells.span(0)] == [
        "0",
        "0",
        "0",
        "0 Wh",
        "0s",
    ]
    gaps = [cells.number(None), cells.count(None), cells.memory(None), cells.energy(None), cells.span(None)]
    assert gaps == ["–"] * 5
    assert (cells.moment(None, ZoneInfo("UTC")), cells.text(None), cells.text("")) == ("–", "–", "–")
    assert cells.moment(0, ZoneInfo("UTC")) == "1970-01-01 00:00:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.01, "<0.1s"),
        (0.4, "0.4s"),
        (0.99, "1s"),
        (45, "45s"),
        (59.6, "1m00s"),
        (750, "12m30s"),
        (11100, "3h05m"),
        (187200, "2d04h"),
    ],
)
def test_spans(seconds: float, text: str):
    assert cells.span(seconds) == text


def test_a_share_below_1_is_never_rounded_to_1():
    shown = [
        cells.number(cells.not_quite(share), 2) for share in (0.999, 0.995, 0.994, 0.291, 0.0, 1.0, None)
    ]
    assert shown == ["0.99", "0.99", "0.99", "0.29", "0", "1.00", "–"]


def test_energy():
    assert [cells.energy(j) for j in (3600, 3.6e6, 9e6)] == ["1.0 Wh", "1.00 kWh", "2.50 kWh"]


def test_positions():
    assert [cells.positions(p) for p in ([0], [0, 1, 2], [5, 0, 1, 3], [])] == ["0", "0-2", "0-1,3,5", ""]


def test_control_characters_are_replaced():
    assert cells.text("a\x1b[31m\nb\x9bc") == "a�[31m�b�c"
    assert cells.text("größe 한국") == "größe 한국"
