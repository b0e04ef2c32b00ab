"""Numbers in sentences: 0 means none, and small values keep a suitable unit."""

import math

import numpy as np
import pytest

from slurm_gpu.reports.figures.coordinates import typical
from slurm_gpu.reports.wording import hours, percent


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 16, "0 %"),
        (1, 10_000, "less than 0.1 %"),
        (6, 10_000, "0.1 %"),
        (47, 100, "47 %"),
        (1, 0, "–"),
        (math.nan, 1, "–"),
    ],
)
def test_a_share_that_is_not_nothing_is_never_0_percent(part: float, whole: float, expected: str):
    assert percent(part, whole) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 h"),
        (0.2, "less than 1 s"),
        (15, "15 s"),
        (900, "0.25 h"),
        (45_000, "12.5 h"),
        (4_442_400, "1,234 h"),
    ],
)
def test_a_wait_of_seconds_is_shown_in_seconds(seconds: float, expected: str):
    assert hours(seconds / 3600) == expected


@pytest.mark.parametrize(
    ("wait_s", "expected"), [((0, 0), "wait 0 h "), ((0, 5), "wait 0–5 s "), ((360, 9000), "wait 0.1–2.5 h ")]
)
def test_short_waits_of_an_application_are_in_seconds(wait_s: tuple[int, int], expected: str):
    ones = np.ones(2)
    values = {"nNODE": ones, "nGPU": ones, "WAIT_h": np.array(wait_s) / 3600, "RUN_h": ones}
    assert f" {expected}and run 1 h" in typical("Python", values, ones > 0)


def test_one_node_and_one_gpu_are_singular():
    ones = np.ones(2)
    values = {"nNODE": ones, "nGPU": ones, "WAIT_h": ones, "RUN_h": ones}
    assert typical("Python", values, ones > 0).startswith("Python use 1 node, 1 GPU, ")
    values["nNODE"] = np.array([1.0, 2.0])
    assert typical("Python", values, ones > 0).startswith("Python use 1–2 nodes, 1 GPU, ")
