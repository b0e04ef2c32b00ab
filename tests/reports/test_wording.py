"""Numbers in sentences: 0 means none, and small values keep a suitable unit."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_gpu.reports.figures import waste
from slurm_gpu.reports.figures.coordinates import typical
from slurm_gpu.reports.wording import duration, gpu_hours, money, percent, sentence


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
    ("text", "expected"),
    [("less than 0.1 % of", "Less than 0.1 % of"), ("47 % of", "47 % of"), ("", "")],
)
def test_a_sentence_begins_with_a_capital_letter(text: str, expected: str):
    assert sentence(text) == expected


def test_waste_is_a_sentence_with_the_currency_of_its_costs():
    jobs: Any = SimpleNamespace(total_gpu_h=4.0, currency="EUR")
    total = {"measured_gpu_h": 2.0, "wasted_gpu_h": 0.0005, "no_process_gpu_h": 0.0}
    costs = {"wasted_cost": 0.002, "no_process_cost": 0.0}
    assert waste._reading(jobs, total | costs) == (
        "Less than 0.1 % (cost: less than 0.01 EUR) of 2 GPU-hours measured (50 % of all) were wasted; "
        "0 % had no process."
    )
    assert waste._reading(jobs, total | dict.fromkeys(costs, 0.0)).endswith("; 0 % had no process.")


@pytest.mark.parametrize(
    ("value", "hours_text", "money_text"),
    [
        (0, "0 GPU-hours", "0"),
        (0.001, "less than 0.01 GPU-hours", "less than 0.01"),
        (0.05, "0.05 GPU-hours", "0.05"),
        (1, "1 GPU-hour", "1"),
        (12.34, "12.3 GPU-hours", "12.34"),
        (1234.5, "1,234 GPU-hours", "1,234.5"),
    ],
)
def test_small_amounts_are_not_0(value: float, hours_text: str, money_text: str):
    assert (gpu_hours(value), money(value, "")) == (hours_text, money_text)
    assert money(value, "EUR") == f"{money_text} EUR"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (0.2, "0.2s"),
        (15, "15s"),
        (148, "2m28s"),
        (900, "15m00s"),
        (45_000, "12h30m"),
        (4_442_400, "51d10h"),
        (math.nan, "–"),
    ],
)
def test_durations_are_in_their_two_largest_units(seconds: float, expected: str):
    assert duration(seconds / 3600) == expected


@pytest.mark.parametrize(
    ("wait_s", "expected"),
    [((0, 0), "waited 0s "), ((0, 5), "waited 0s–5s "), ((360, 9000), "waited 6m00s–2h30m ")],
)
def test_waits_of_an_application_are_durations(wait_s: tuple[int, int], expected: str):
    ones = np.ones(2)
    values = {"nNODE": ones, "nGPU": ones, "WAIT_h": np.array(wait_s) / 3600, "RUN_h": ones}
    assert f" {expected}and ran 1h00m" in typical("Python", values, ones > 0)


def test_one_node_and_one_gpu_are_singular():
    ones = np.ones(2)
    values = {"nNODE": ones, "nGPU": ones, "WAIT_h": ones, "RUN_h": ones}
    assert typical("Python", values, ones > 0).startswith("all 2 jobs of Python used 1 node and 1 GPU, ")
    values["nNODE"] = np.array([1.0, 2.0])
    assert typical("Python", values, ones > 0).startswith("all 2 jobs of Python used 1–2 nodes and 1 GPU, ")


@pytest.mark.parametrize(
    ("n_jobs", "which"),
    [(1, "the only job"), (2, "all 2 jobs"), (19, "all 19 jobs"), (20, "90 % of the jobs")],
)
def test_a_range_names_the_jobs_that_it_covers(n_jobs: int, which: str):
    ones, numbers = np.ones(n_jobs), np.arange(1.0, n_jobs + 1)
    values = {"nNODE": numbers, "nGPU": ones, "WAIT_h": ones, "RUN_h": ones}
    shown = "1 node" if n_jobs == 1 else f"1–{min(n_jobs, 19)} nodes"
    expected = f"{which} of Python used {shown} and 1 GPU, waited 1h00m and ran 1h00m"
    assert typical("Python", values, ones > 0) == expected
