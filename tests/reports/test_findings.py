"""The findings name what was used, wasted and waited for, by which users, and what changed per day.

They compare only periods whose data are complete.
"""

from dataclasses import replace
from datetime import date

import pytest

from slurm_gpu.config.site import ServerType, SiteConfig
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.findings import Finding, findings
from slurm_gpu.reports.load import load
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.totals import PeriodTotals
from tests.reports.filling import insert_nodes, insert_runs
from tests.reports.generated import Node
from tests.reports.world import run_row

FEBRUARY = ReportPeriod(since=date(2026, 2, 1), until=date(2026, 3, 1))
HOUR, DAY = 3600, 86400


def totals(**given: object) -> PeriodTotals:
    """Return the totals of a February, with the given ones replaced."""
    usual = PeriodTotals(
        period=FEBRUARY,
        days=28.0,
        allocated_h=2800.0,
        capacity_h=5600.0,
        capacity_is_assumed=False,
        measured_h=2800.0,
        wasted_h=1400.0,
        no_process_h=280.0,
        wasted_cost=0.0,
        jobs=280,
        users=12,
        wait_h=28.0,
        median_wait_h=148 / 3600,
        p90_wait_h=2.0,
        max_wait_h=20.0,
        by_user={"ann": 1400.0, "bob": 1400.0},
        by_account={"vision": 2100.0, "nlp": 700.0},
    )
    return replace(usual, **given)  # type: ignore[arg-type]


def by_name(now: PeriodTotals, before: PeriodTotals | None, currency: str = "") -> dict[str, Finding]:
    return {finding.name: finding for finding in findings(now, before, currency)}


def test_each_finding_has_its_change_per_day() -> None:
    earlier = totals(
        allocated_h=1400.0,
        measured_h=1400.0,
        wasted_h=1120.0,
        wait_h=56.0,
        jobs=252,
        by_account={"vision": 280.0, "nlp": 1120.0},
    )
    found = by_name(totals(wasted_cost=1050.0), earlier, "EUR")
    assert {name: (each.value, each.unit) for name, each in found.items()} == {
        "Used": ("50 %", "of the capacity"),
        "Wasted": ("50 %", "of measured time"),
        "Waited": ("2m28s", "median wait"),
        "Who": ("12", "users"),
        "What changed": ("+65", "GPU-hours per day"),
    }
    assert [each.text for each in found.values()] == [
        "2,800 of 5,600 GPU-hours were allocated.",
        "1,400 of 2,800 measured GPU-hours were wasted, 280 of them without a process. They cost 1,050 EUR.",
        "10 % of the jobs with GPUs waited at least 2h00m, and the longest wait was 20h00m.",
        "280 jobs with GPUs ended. The largest user was bob (50 %) and the largest account was vision "
        "(75 %).",
        "Account vision used 65 more and account nlp used 15 fewer GPU-hours per day.",
    ]
    assert [each.change for each in found.values()] == [
        "100 GPU-hours per day, 50 (100 %) more than in the 28 days before",
        "50 GPU-hours per day, 10 (25 %) more than in the 28 days before",
        "1h00m of waiting per day, 1h00m (50 %) less than in the 28 days before",
        "10 jobs per day, 1 (11.1 %) more than in the 28 days before",
        "vision: 75 GPU-hours per day, 65 (650 %) more than in the 28 days before",
    ]


def test_a_period_that_has_not_ended_is_compared_by_its_days_so_far() -> None:
    """Half of February with half of its GPU-hours changed nothing."""
    half = totals(days=14.0, allocated_h=1400.0, capacity_h=2800.0)
    assert by_name(half, totals())["Used"].change == "100 GPU-hours per day, as in the 28 days before"


def test_without_the_days_before_nothing_is_compared() -> None:
    found = by_name(totals(), None)
    for name in ("Used", "Wasted", "Waited", "Who"):
        assert found[name].change.endswith("; there are no complete data of the 28 days before"), name
    changed = found["What changed"]
    assert (changed.value, changed.text, changed.change) == (
        "–",
        "There are no complete data of the 28 days before.",
        "",
    )


@pytest.mark.parametrize(
    ("now_h", "before_h", "reason"),
    [
        (2800, 280, "only 10 % of the GPU-hours of the 28 days before"),
        (280, 2800, "only 10 % of the GPU-hours of this"),
    ],
)
def test_waste_is_not_compared_if_little_was_measured(now_h: float, before_h: float, reason: str) -> None:
    found = by_name(totals(measured_h=float(now_h)), totals(measured_h=float(before_h)))["Wasted"]
    assert found.change.startswith(f"Not compared, because {reason}")


def test_a_period_without_jobs_has_findings() -> None:
    nothing = totals(
        **dict.fromkeys(("allocated_h", "measured_h", "wasted_h", "no_process_h", "wait_h"), 0.0),
        **dict.fromkeys(("median_wait_h", "p90_wait_h", "max_wait_h"), float("nan")),
        jobs=0,
        users=0,
        by_user={},
        by_account={},
    )
    found = by_name(nothing, nothing)
    assert [each.value for each in found.values()] == ["0 %", "–", "–", "0", "0"]
    assert found["Wasted"].text == "No allocated GPU was measured."
    assert found["Waited"].text == "No job with GPUs ended in this period."
    assert found["Used"].change == "0 GPU-hours per day, as in the 28 days before"


def test_small_changes_of_accounts_are_none() -> None:
    """Ten GPU-hours of 2,800 are less than 1 %."""
    earlier = totals(by_account={"vision": 2110.0, "nlp": 690.0})
    found = by_name(totals(), earlier)["What changed"]
    assert found.text == "No account's use changed by 1 % of all GPU-hours or more."


def test_new_gpus_are_a_change() -> None:
    found = by_name(totals(capacity_h=28 * 24 * 16.0), totals(capacity_h=28 * 24 * 8.0))["What changed"]
    assert found.text.endswith(" The cluster had 16 GPUs on average, 8 before.")
    assumed = totals(capacity_h=28 * 24 * 8.0, capacity_is_assumed=True)
    assert "is assumed" in by_name(assumed, None)["Used"].text
    assert "on average" not in by_name(totals(), assumed)["What changed"].text


def _run(job_id: int, start_s: int, hours: int, account: str) -> dict[str, object]:
    one = {"user": account, "account": account, "submit_s": start_s, "mgpu": 2000, "nodes": ["n1"]}
    measured = {"ugpucore": 75.0, "coverage": 1.0, "no_process_mgpu_s": 0}
    return run_row(job_id, {**one, **measured, "start_s": start_s, "end_s": start_s + hours * HOUR})


@pytest.mark.parametrize(("first_day", "is_known"), [(-28, True), (-20, False)])
def test_the_days_before_are_read_if_the_data_cover_them(
    database: Database, first_day: int, is_known: bool
) -> None:
    since_s = FEBRUARY.since_s
    insert_nodes(database, [Node("n1", "a100", "east", 8)], since_s - 60 * DAY)
    insert_runs(
        database,
        [
            _run(1, since_s + first_day * DAY, 7, "vision"),
            _run(2, since_s - 5 * HOUR, 10, "nlp"),
            _run(3, since_s + DAY, 14, "vision"),
        ],
    )
    site = SiteConfig(cluster="c", server_types={"a100": ServerType("n1", 2.0)})
    data = load(database, site, FEBRUARY, FEBRUARY.until_s)
    if not is_known:
        assert data.before is None
        return
    assert data.before is not None
    assert data.before.by_account == {"vision": 14.0, "nlp": 10.0}
    assert (data.before.days, data.before.jobs, data.before.wasted_h) == (28, 1, pytest.approx(6.0))
