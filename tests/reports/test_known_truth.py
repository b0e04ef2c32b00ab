"""A report over 14 generated months must contain exactly the numbers of the generator."""

import re
from bisect import bisect_right
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import Cdf, Figure, ParallelCoordinates
from slurm_gpu.reports.figures import chapters
from slurm_gpu.reports.load import ReportData
from slurm_gpu.reports.page.headings import heading
from tests.reports.conftest import NOW_S
from tests.reports.counting import by_key, by_place
from tests.reports.generated import N_JOBS, N_USERS, RATES, Accounting, epoch_s

NOT_RECOGNISED = "(not recognised)"


@pytest.fixture(scope="module")
def runs(centre: Accounting) -> list[dict[str, Any]]:
    """Return the generator's rows as dictionaries, for plain arithmetic."""
    columns = centre.runs
    names = ("start_s", "end_s", "submit_s", "granted_mgpu")
    plain = [[None if value != value else int(value) for value in columns[name].tolist()] for name in names]
    return [
        {
            "start_s": start,
            "end_s": end,
            "submit_s": submit,
            "mgpu": mgpu,
            "user": user,
            "account": account,
            "team": centre.team_of[account],
            "app": NOT_RECOGNISED if app is None else app,
            "field": NOT_RECOGNISED if of is None else of,
            "nodes": nodes,
            "n_nodes": len(nodes),
        }
        for start, end, submit, mgpu, user, account, app, of, nodes in zip(
            *plain,
            columns["user"],
            columns["account"],
            columns["app"],
            columns["app_field"],
            centre.nodes_of,
            strict=True,
        )
    ]


@pytest.fixture(scope="module")
def of_gpus(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if run["mgpu"] and run["start_s"] is not None]


def column(figure: Figure, key: str, name: str) -> dict[str, float]:
    data = figure.table.data
    return dict(zip(data[key], np.asarray(data[name]).tolist(), strict=True))


def test_the_generator_is_shaped_like_the_centre(of_gpus: list[dict[str, Any]]) -> None:
    """Check that the generated jobs include the kinds that the following tests need."""
    assert len(of_gpus) == N_JOBS == 39_470
    assert len({run["user"] for run in of_gpus}) == N_USERS == 483
    for app, most_gpus, most_wait_h, most_run_h in (("pytorch", 16, 12, 120), ("tensorflow", 40, 8, 526)):
        jobs = [run for run in of_gpus if run["app"] == app]
        assert {min(run["n_nodes"] for run in jobs), max(run["n_nodes"] for run in jobs)} == {1, 8}
        assert {min(run["mgpu"] for run in jobs), max(run["mgpu"] for run in jobs)} == {
            2000,
            1000 * most_gpus,
        }
        assert 0.9 * most_run_h < max(run["end_s"] - run["start_s"] for run in jobs) / 3600 <= most_run_h
        waits = [(run["start_s"] - run["submit_s"]) / 3600 for run in jobs]
        assert waits.count(0) > 0.75 * len(jobs)
        assert 0.9 * most_wait_h < max(waits) <= most_wait_h


CHAPTERS = {
    "use": """
usage-by-server-type allocation-over-time month-over-month gpu-hours-by-user gpu-hours-by-account
gpu-hours-by-team gpu-hours-by-server-type gpu-hours-by-zone usage-by-application usage-by-field
parallel-coordinates distributions
""",
    "waste": "allocated-but-idle utilisation-by-zone-and-scale low-priority-small-jobs",
    "waiting": "waiting-by-resource-type waiting-by-scale forecasts-against-outcomes",
    "charge": "charge-per-account lent-gpu-hours",
}


def test_every_question_has_a_figure_with_its_reading_and_its_table(
    accounts: ReportData, figures: dict[str, Figure]
) -> None:
    found = {chapter.id: [figure.id for figure in chapter.figures] for chapter in chapters(accounts)}
    assert found == {chapter: ids.split() for chapter, ids in CHAPTERS.items()}
    assert list(figures) == [figure_id for ids in found.values() for figure_id in ids]
    for figure in figures.values():
        assert re.fullmatch(r"[A-Z0-9][^\n]*\.", figure.reading), figure.id
        without = [c.name for c in figure.table.columns if c.name[:1].islower() and heading(c.name) == c.name]
        assert without == [], "each column has a heading in words"
    assert len({figure.table.name for figure in figures.values()}) == len(figures)
    lines = figures["parallel-coordinates"].chart
    assert isinstance(lines, ParallelCoordinates)
    assert [axis.name for axis in lines.axes] == ["nNODE", "nGPU", "WAIT_h", "RUN_h", "uGPUcore", "uGPUmem"]
    assert lines.colour == "nNODE"


def test_the_shares_of_applications_are_read_back(
    figures: dict[str, Figure], of_gpus: list[dict[str, Any]]
) -> None:
    figure = figures["usage-by-application"]
    share = column(figure, "application", "share_pct")
    rounded = {app: round(value, 2) for app, value in share.items()}
    assert (rounded["pytorch"], rounded["python"], rounded["tensorflow"], rounded["caffe"]) == (
        38.28,
        25.28,
        19.29,
        0.50,
    )
    seconds: dict[str, int] = defaultdict(int)
    for run in of_gpus:
        seconds[run["app"]] += run["end_s"] - run["start_s"]
    assert column(figure, "application", "run_h") == pytest.approx(
        {app: value / 3600 for app, value in seconds.items()}, rel=1e-12
    )
    jobs = column(figure, "application", "jobs")
    users = column(figure, "application", "users")
    for app in seconds:
        mine = [run for run in of_gpus if run["app"] == app]
        assert (jobs[app], users[app]) == (len(mine), len({run["user"] for run in mine}))
    assert figure.reading == (
        "The largest share of the run time of jobs with GPUs was 38.3 % for pytorch, followed by 25.3 % "
        "for python, 19.3 % for tensorflow and 9 % for gromacs."
    )
    fields = column(figures["usage-by-field"], "field", "share_pct")
    assert round(fields["deep learning"], 2) == 58.07


def test_gpu_hours_are_read_back_by_each_of_the_five(
    accounts: ReportData, centre: Accounting, runs: list[dict[str, Any]]
) -> None:
    jobs, shares = accounts.jobs, accounts.jobs.shares
    since_s, until_s = centre.since_s, centre.until_s

    def sums(column: Category) -> dict[str, int]:
        values = dict(zip(column.names, column.sums(shares.mgpu_s).tolist(), strict=True))
        return {name: value for name, value in values.items() if value}

    for key, of_runs in (("user", jobs.user), ("account", jobs.account), ("team", jobs.team)):
        expected = by_key(runs, key, since_s, until_s, NOW_S)
        assert sums(shares.of(of_runs)) == {name: value for name, value in expected.items() if value}
    courses = {node.name: [(since_s, node.server_type, node.zone)] for node in centre.nodes}
    truth = by_place(runs, courses, ({}, {}), since_s, until_s, NOW_S)
    total = sum(truth.values())
    for which, of_shares in ((0, shares.server_type), (1, shares.zone)):
        allocated = sums(of_shares)
        assert sum(allocated.values()) == total
        for name, value in allocated.items():
            exact = sum(part for place, part in truth.items() if place[which] == name)
            assert abs(value - exact) < len(runs), "a GPU/1000 × second for each run at most"


def test_several_nodes_and_distributions_are_read_back(
    figures: dict[str, Figure], of_gpus: list[dict[str, Any]]
) -> None:
    figure = figures["distributions"]
    assert figure.reading == "47 % of the jobs of pytorch used ≥2 nodes; tensorflow 38 %; python 10 %."
    assert isinstance(figure.chart, Cdf)
    mine = [run for run in of_gpus if run["app"] == "tensorflow"]
    for axis, values in (
        ("nNODE", [run["n_nodes"] for run in mine]),
        ("nGPU", [run["mgpu"] / 1000 for run in mine]),
        ("WAIT_h", [(run["start_s"] - run["submit_s"]) / 3600 for run in mine]),
        ("RUN_h", [(run["end_s"] - run["start_s"]) / 3600 for run in mine]),
    ):
        steps = figure.chart.curves[axis]["tensorflow"]
        assert steps.n == len(mine)
        values.sort()
        for x, upto in zip(steps.x.tolist(), steps.upto.tolist(), strict=True):
            assert upto == bisect_right(values, x) / len(values)
        assert steps.upto[-1] == 1
    core = figure.chart.curves["uGPUcore"]["tensorflow"]
    assert core.n < len(mine), "some were not measured"
    assert np.interp(50, core.x, core.upto) < 0.2, "mostly above 50 %"


def test_lines_and_accounting_table_have_every_job(
    figures: dict[str, Figure], centre: Accounting, of_gpus: list[dict[str, Any]]
) -> None:
    figure = figures["parallel-coordinates"]
    assert isinstance(figure.chart, ParallelCoordinates)
    assert figure.chart.of == len(figure.chart.labels) == N_JOBS
    assert len(figure.table) == len(centre)
    data = figure.table.data
    assert np.nansum(data["gpu_h"]) == pytest.approx(
        sum(run["mgpu"] * (run["end_s"] - run["start_s"]) for run in of_gpus) / 3_600_000, rel=1e-12
    )
    assert data["JobID"][:3] == ["1", "2", "3"]
    assert figure.reading.startswith("39,470 jobs with GPUs of 483 users ended. 90 % of the jobs of ")


def test_charges_are_read_back(
    figures: dict[str, Figure], centre: Accounting, of_gpus: list[dict[str, Any]]
) -> None:
    type_of = {node.name: node.server_type for node in centre.nodes}
    expected: dict[str, float] = defaultdict(float)
    for run in of_gpus:
        hours = run["mgpu"] * (run["end_s"] - run["start_s"]) / 3_600_000
        expected[run["account"]] += sum(
            hours / run["n_nodes"] * RATES[type_of[node]] for node in run["nodes"]
        )
    data = figures["charge-per-account"].table.data
    charged: dict[str, float] = defaultdict(float)
    for account, charge in zip(data["account"], np.asarray(data["charge"]).tolist(), strict=True):
        charged[account] += charge
    assert charged == pytest.approx(dict(expected), rel=1e-9)


def test_waits_are_read_back(figures: dict[str, Figure], runs: list[dict[str, Any]]) -> None:
    data = figures["waiting-by-scale"].table.data
    waits: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run["start_s"] is not None:
            mgpu = run["mgpu"]
            scale = (
                "no GPU"
                if not mgpu
                else "several nodes"
                if run["n_nodes"] > 1
                else "shared GPU"
                if mgpu < 1000
                else "1 GPU"
                if mgpu == 1000
                else "one node"
            )
            waits[scale].append((run["start_s"] - run["submit_s"]) / 3600)
    assert data["scale"] == ["no GPU", "shared GPU", "1 GPU", "one node", "several nodes"]
    for row, scale in enumerate(data["scale"]):
        mine = sorted(waits[scale])
        assert data["jobs"][row] == len(mine)
        assert data["mean_h"][row] == pytest.approx(sum(mine) / len(mine), rel=1e-12)
        for name, share in (("median_h", 0.5), ("p90_h", 0.9), ("p95_h", 0.95), ("max_h", 1.0)):
            least = next(x for n, x in enumerate(mine, 1) if n >= share * len(mine) - 1e-9)
            assert data[name][row] == least


def test_allocation_over_time_and_months_sum_to_the_allocated_hours(
    figures: dict[str, Figure], accounts: ReportData, of_gpus: list[dict[str, Any]], centre: Accounting
) -> None:
    chart = figures["allocation-over-time"].chart
    data = figures["allocation-over-time"].table.data
    hours = np.diff(chart.edges_s) / 3600
    allocated = sum(run["mgpu"] * (run["end_s"] - run["start_s"]) for run in of_gpus) / 3_600_000
    assert float(data["allocated_gpus"] @ hours) == pytest.approx(allocated, rel=1e-12)
    assert float(data["capacity_gpus"] @ hours) == pytest.approx(
        sum(node.gpus for node in centre.nodes) * (centre.until_s - centre.since_s) / 3600, rel=1e-12
    )
    parts = [data[name] for name in ("allocated_gpus", "stranded_gpus", "free_gpus", "out_of_service_gpus")]
    assert np.sum(parts, axis=0) == pytest.approx(np.asarray(data["capacity_gpus"]), rel=1e-9)
    months = accounts.months
    assert [f"{month.first:%Y-%m}" for month in months][0::12] == ["2025-02", "2026-02"]
    for month in (months[0], months[-1]):
        from_s, to_s = month_s(month.first)
        truth = sum(
            run["mgpu"] * max(0, min(run["end_s"], to_s) - max(run["start_s"], from_s)) for run in of_gpus
        )
        assert month.allocated_mgpu_s == truth
        assert month.runs == sum(from_s <= run["end_s"] < to_s for run in of_gpus)


def month_s(first: Any) -> tuple[int, int]:
    after = (first.year + first.month // 12, first.month % 12 + 1, 1)
    return epoch_s(first.year, first.month, 1), epoch_s(*after)


def test_utilisation_and_waste_are_read_back(
    figures: dict[str, Figure], centre: Accounting, of_gpus: list[dict[str, Any]]
) -> None:
    core, coverage, idle = (
        centre.runs[name].tolist() for name in ("ugpucore", "coverage", "no_process_mgpu_s")
    )
    judged: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for run, used, share, bare in zip(of_gpus, core, coverage, idle, strict=False):
        if share >= 0.8:
            allocated = run["mgpu"] * (run["end_s"] - run["start_s"])
            sums = judged[run["user"]]
            sums[0] += allocated / 3_600_000
            sums[1] += bare / 3_600_000
            sums[2] += max(allocated * (1 - used / 100), bare) / 3_600_000
    data = figures["allocated-but-idle"].table.data
    names = ("measured_gpu_h", "no_process_gpu_h", "wasted_gpu_h")
    for place, name in enumerate(names):
        shown = dict(zip(data["user"], np.asarray(data[name]).tolist(), strict=True))
        assert shown == pytest.approx({user: sums[place] for user, sums in judged.items()}, rel=1e-9)
    zones = figures["utilisation-by-zone-and-scale"].table.data
    mean = np.nansum(np.asarray(zones["ugpucore"]) * np.asarray(zones["measured_gpu_h"]))
    truth = sum(
        run["mgpu"] * (run["end_s"] - run["start_s"]) * used / 3_600_000
        for run, used, share in zip(of_gpus, core, coverage, strict=False)
        if share >= 0.8
    )
    assert mean == pytest.approx(truth, rel=1e-9)
