"""bench/colocation.py gives correct runs, output and error messages for small tables and few jobs."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import colocation, colocation_figures
from bench.colocation_beliefs import predict_unseen
from bench.colocation_runs import Place, Run, Task, place_with_errors, runs
from bench.colocation_thesis import FIGURE_17, FIGURES, MEASURES, OURS, buckets, compare, savings
from bench.colocation_workloads import THESIS
from slurm_gpu.colocation.research.price import Comparison
from slurm_gpu.colocation.tables.read import read_table

THROUGHPUT_KEYS = [
    "ratio_to_sjf_max",
    "gap_to_lp_known",
    "gap_to_lp_predicted",
    "gap_to_lp_predicted_by_division",
    "oom",
]
CONSIDERATE_KEYS = [
    "ratio_to_sjf_max",
    "gap_to_lp",
    "gap_to_lp_sparing",
    "not_slowed_of_30",
    "worst_slowdown",
    "within_cap",
    "separated_of_30",
    "oom",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write Gavel's folder with three applications: two that share well, and one that cannot share."""
    names = ["a", "b", "c"]
    speeds = {("a", "a"): (9, 9), ("a", "b"): (10, 10), ("b", "b"): (8, 8)}
    rows: dict[str, dict[str, object]] = {}
    for one in names:
        rows[f"('{one}', 1)"] = {"null": 10.0}
        for other in names:
            pair = speeds.get((one, other)) or speeds.get((other, one)) or (0, 0)
            rows[f"('{one}', 1)"][f"('{other}', 1)"] = list(pair)
    (tmp_path / "throughputs_v100.json").write_text(json.dumps({"v100": rows}))
    return tmp_path


def run_it(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr(sys, "argv", ["colocation", *argv, "--quick", "--json", "--processes", "1"])
    colocation.main()


def test_results_for_a_table_have_stable_keys_and_respect_the_bound(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--planners", "greedy,annealing")  # training has its own tests
    run_it(monkeypatch, "--data", str(table), "--jobs", "3", "--placements", "0", *few)
    *text, last = capsys.readouterr().out.splitlines()
    answer = json.loads(last)
    assert list(answer["throughput"]) == THROUGHPUT_KEYS
    assert list(answer["considerate"]) == CONSIDERATE_KEYS
    assert 0 <= answer["throughput"]["gap_to_lp_known"] < 0.5
    assert answer["throughput"]["ratio_to_sjf_max"] <= 1
    assert answer["considerate"]["worst_slowdown"] <= 1.1 + 1e-9
    gap = answer["throughput"]["gap_to_lp_predicted"]
    assert gap >= 0
    assert len(answer["throughput"]["gap_to_lp_predicted_by_division"]) == answer["seeds"] == 2
    assert np.mean(answer["throughput"]["gap_to_lp_predicted_by_division"]) == pytest.approx(gap)
    assert list(answer["considerate_predicted"]) == CONSIDERATE_KEYS
    assert any("mean absolute error" in line for line in text)
    assert {"default_planner", "train_s", "decision_ms_p99", "planners"} < answer.keys()
    assert any(line.startswith("LP bound") for line in text)
    assert not any(line.startswith("figure 10") for line in text)  # only for the thesis's applications


def test_results_of_the_thesis_are_shown_next_to_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_it(
        monkeypatch, "--jobs", "5", "--planners", "tetris", "--placements", "50", "--figures", str(tmp_path)
    )
    *text, last = capsys.readouterr().out.splitlines()
    for number in range(10, 18):
        assert any(line.lower().startswith(f"figure {number}") for line in text), number
    assert sum("[1214]" in line for line in text) == 1
    assert any("cost 1" in line and "[29.86]" in line for line in text)
    assert any("placements" in line for line in text)
    answer = json.loads(last)
    assert answer["throughput"] == dict.fromkeys(THROUGHPUT_KEYS)  # the default planner was not requested
    assert set(answer["planners"]["throughput"]["known"]) == {"sjf", "tetris"}
    assert {path.name for path in tmp_path.glob("*.svg")} == {
        "colocation-profiles.svg",
        "colocation-pairs.svg",
        "colocation-makespan.svg",
    }


def test_an_unknown_planner_is_rejected_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_it(monkeypatch, "--planners", "greedy,best")
    assert "unknown planner 'best'; planners: sjf, " in capsys.readouterr().err


def test_an_incomplete_table_is_rejected_with_a_missing_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("gpu_model,application,alone_per_s,speed,co_runner_1\nV100,a,,0.5,b\nV100,b,,0.5,a\n")
    with pytest.raises(SystemExit):
        run_it(monkeypatch, "--data", str(path))
    assert f"{path}: 2 of 4 speeds are missing, the first that of 'a' with 'a'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def few() -> list[Run]:
    task = Task(Place(None, None, 4, 1), "random", 1, ("sjf", "greedy"))
    return runs(task)


def test_every_planner_runs_the_same_jobs_in_both_modes_with_the_bound_of_the_mode(few: list[Run]) -> None:
    assert [(run.mode, run.planner) for run in few] == [
        ("throughput", "sjf"),
        ("throughput", "greedy"),
        ("considerate", "sjf"),
        ("considerate", "greedy"),
    ]
    assert len({run.alone_s for run in few}) == 1
    assert few[0].bound_s <= few[2].bound_s <= few[0].alone_s
    assert all(run.ratio == 1 for run in few if run.planner == "sjf")


def test_a_makespan_below_its_bound_is_not_passed_over(few: list[Run]) -> None:
    colocation.check_bounds(few)
    with pytest.raises(SystemExit, match="greedy took 10 s for random 1, and the bound is"):
        colocation.check_bounds([replace(few[1], makespan_s=10)])


def test_without_headroom_memory_that_is_off_runs_out_and_with_it_never() -> None:
    assert place_with_errors(0.0, 300, 1).out_of_memory > 0
    for headroom in (0.2, None):
        placed = place_with_errors(headroom, 300, 1)
        assert (placed.n >= 300, placed.out_of_memory) == (True, 0)
        assert placed.together > 1.3


def test_no_pair_is_predicted_from_itself(tmp_path: Path, table: Path) -> None:
    measured = read_table(table / "throughputs_v100.json")
    error = predict_unseen(measured, tmp_path / "predicted.npz")
    with np.load(tmp_path / "predicted.npz") as found:
        true = measured.table().speeds
        assert error == pytest.approx(np.abs(found["mean"] - true)[true > 0].mean())
        assert not (found["mean"] == true)[true > 0].all()
        assert (found["mean"][true == 0] == 0).all()
        assert (found["lower"] <= found["mean"] + 1e-9).all()


def test_another_division_leaves_out_other_pairs_together(tmp_path: Path, table: Path) -> None:
    measured = read_table(table / "throughputs_v100.json")
    for division in (0, 1):
        predict_unseen(measured, tmp_path / f"{division}.npz", division)
    with np.load(tmp_path / "0.npz") as first, np.load(tmp_path / "1.npz") as second:
        assert not np.array_equal(first["mean"], second["mean"])


def test_jobs_are_sorted_by_slowdown_as_in_figure_15() -> None:
    assert buckets([1.0, 1.02, 1.021, 1.0999, 1.1, 1.19, 1.2, 3.0]) == (2, 2, 2, 2)


def test_every_target_is_of_a_planner_a_workload_and_a_measure_that_there_is() -> None:
    for figure in FIGURES:
        assert figure.workload in THESIS
        for statement in figure.statements:
            assert statement.planner in OURS
            assert statement.what == "training s" or statement.what in MEASURES


def test_training_counts_where_the_thesis_counts_it(few: list[Run]) -> None:
    as_tetris = [replace(run, planner="tetris", makespan_s=run.alone_s) for run in few[:1]]
    lines = {
        (one.figure, one.planner): one
        for _, some in compare({"throughput": as_tetris}, "greedy", {"tetris": few[0].alone_s / 10})
        for one in some
    }
    here = lines[16, "Tetris"].theirs_here
    assert here is not None
    assert here[0] == pytest.approx(1.1)
    assert math.isnan(here[1])  # one seed has no interval
    assert lines[15, "DeepRM Max"].theirs_here is None


def test_savings_are_those_of_the_default_planner_in_the_random_workload(few: list[Run]) -> None:
    half = [replace(run, makespan_s=run.alone_s / 2) for run in few if run.planner == "greedy"]
    (line,) = savings(half, "greedy", [Comparison("cost 1", 1.0, 0.5)])
    assert line[:2] == ("cost 1", FIGURE_17["cost 1"])
    assert line[2] is not None
    assert line[2][0] == pytest.approx(75.0)


def test_figure_3_is_drawn_as_the_text_has_it() -> None:
    assert colocation_figures.pair_levels("googlenet", "vgg16") == {
        "time": 4,
        "memory": 3,
        "cores": 2,
        "I/O": 1,
    }
    assert set(colocation_figures.pair_levels("vgg16", "vgg16").values()) == {None}
