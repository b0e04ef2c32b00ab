"""Twelve jobs of one day, counted by hand.

The day is 2026-03-10 in Seoul, from midnight (D) to midnight. Nodes a1 and a2 have four a100 each, at 2.00 an
hour, in zones east and west. Node v1 has two v100, at 0.50, in east, and is drained from 12:00 on. Node o1
has one GPU that slurm-gpu.yaml does not name.

 job  user acct  node(s)  GPUs   allocated that day                GPU-hours
 1    ann  vis   a1       1      02:00–04:00                       2
 2    ann  vis   a1       2      the day before 22:00–01:00        2      (of 6)
 3    bob  nlp   a1,a2    4      06:00–09:00                      12      (6 on each)
 4    bob  nlp   a1,a2    4      10:00–11:00, 3 on a1, 1 on a2     4      (3 and 1, say its records)
 5    cat  vis   v1       0.25   00:00–08:00 (a shard)             2
 6    cat  vis   v1       0.5    23:00–03:00 of the next day       0.5    (of 2; it ends the next day)
 7    dan  sys   o1       1      12:00–13:00                       1
 8    dan  sys   c1       none   00:00–24:00                       0
 9    ann  vis   –        1      never began; cancelled            0
10    bob  nlp   a2       1      requeued: 12:00–13:00             1
10    bob  nlp   a2       1      and again: 14:00–16:00            2
11    ann  vis   a1       1      20:00, still running              4      (to midnight)
12    cat  vis   a1,a2    2      16:00–18:00; then shrunk to a1    4
12    cat  vis   a1       1      18:00–19:00                       1
                                                                  ----
                                                                  35.5
"""

from collections.abc import Iterator
from datetime import date
from typing import Any

import numpy as np
import pytest

from slurm_gpu.config.site import ServerType, SiteConfig, Zone
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figure import Figure
from slurm_gpu.reports.load import ReportData, load
from slurm_gpu.reports.period import ReportPeriod
from tests.reports.filling import insert, insert_nodes
from tests.reports.flat import all_figures
from tests.reports.generated import Node
from tests.reports.world import RECORD, run_row

DAY = ReportPeriod(since=date(2026, 3, 10), until=date(2026, 3, 11), timezone="Asia/Seoul")
D = 1_773_068_400
HOUR = 3600
NOW_S = D + 30 * HOUR
SITE = SiteConfig(
    cluster="c",
    timezone="Asia/Seoul",
    team={"vis": "lab", "nlp": "lab"},
    server_types={"a100": ServerType("a[1-2]", 2.0), "v100": ServerType("v1", 0.5)},
    currency="EUR",
    zones={"east": Zone("a1,v1"), "west": Zone("a2")},
)


def job(
    job_id: int, who: str, nodes: str, gpus: float, from_h: float | None, to_h: float | None, **given: Any
) -> dict[str, Any]:
    """Return a run, by default submitted half an hour before its start."""
    user, account = who.split("/")
    start_s = None if from_h is None else D + round(from_h * HOUR)
    one = {
        "user": user,
        "account": account,
        "submit_s": D if start_s is None else start_s - HOUR // 2,
        "start_s": start_s,
        "end_s": None if to_h is None else D + round(to_h * HOUR),
        "mgpu": round(1000 * gpus),
        "nodes": nodes.split(",") if nodes else [],
        "job_id": job_id,
    }
    return {**one, **given}


JOBS = [
    job(1, "ann/vis", "a1", 1, 2, 4, ugpucore=80.0, coverage=1.0, no_process_mgpu_s=900_000),
    job(2, "ann/vis", "a1", 2, -2, 1, ugpucore=20.0, coverage=1.0, no_process_mgpu_s=10_800_000),
    job(3, "bob/nlp", "a1,a2", 4, 6, 9),
    job(4, "bob/nlp", "a1,a2", 4, 10, 11, ugpucore=50.0, coverage=0.5),
    job(5, "cat/vis", "v1", 0.25, 0, 8, admin_comment="slurm-gpu/1 t=x l=nlp"),
    job(6, "cat/vis", "v1", 0.5, 23, 27),
    job(7, "dan/sys", "o1", 1, 12, 13),
    job(8, "dan/sys", "c1", 0, 0, 24),
    job(9, "ann/vis", "", 0, None, 5, state="CANCELLED", requested_mgpu=1000),
    job(10, "bob/nlp", "a2", 1, 12, 13, state="REQUEUED"),
    job(10, "bob/nlp", "a2", 1, 14, 16),
    job(11, "ann/vis", "a1", 1, 20, None),
    job(12, "cat/vis", "a1,a2", 2, 16, 18, state="RESIZING"),
    # Slurm gives the second part the whole run's start, and the resize as its submission.
    job(12, "cat/vis", "a1", 1, 16, 19, submit_s=D + 18 * HOUR, elapsed_s=3 * HOUR),
]


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    made = Database(f"sqlite:///{tmp_path_factory.mktemp('twelve') / 'x.db'}")
    made.upgrade()
    rows = [run_row(number, one) for number, one in enumerate(JOBS, 1)]
    names = list({name: None for row in rows for name in row})
    insert(made, "run", names, [[row.get(name) for name in names] for row in rows])
    devices = [("a1", "GPU-1"), ("a1", "GPU-2"), ("a1", "GPU-3"), ("a2", "GPU-5")]
    records = [RECORD.row(f"{i:016x}", uuid, 4, 4, node, 1000) for i, (node, uuid) in enumerate(devices)]
    insert(made, "run_device", RECORD.names, records)
    long_ago = D - 30 * 86400
    nodes = [
        Node("a1", "a100", "east", 4, cpus=32),
        Node("a2", "a100", "west", 4, cpus=32),
        Node("v1", "v100", "east", 2, cpus=8),
        Node("o1", None, None, 1, cpus=8),
        Node("c1", None, None, 0, cpus=8),
    ]
    insert_nodes(made, nodes, long_ago)
    insert_nodes(made, [nodes[2]], D + 12 * HOUR, state="drain")
    yield made
    made.dispose()


@pytest.fixture(scope="module")
def read(twelve: Database) -> ReportData:
    return load(twelve, SITE, DAY, NOW_S)


@pytest.fixture(scope="module")
def shown(read: ReportData) -> dict[str, Figure]:
    return {figure.id: figure for figure in all_figures(read)}


def hours(read: ReportData, column: Category) -> dict[str | None, float]:
    sums = column.sums(read.jobs.shares.mgpu_s) / 3_600_000
    return {name: float(value) for name, value in zip(column.names, sums, strict=True) if value}


def test_the_day_begins_at_the_sites_midnight() -> None:
    assert (DAY.since_s, DAY.until_s) == (D, D + 86400)


def test_gpu_hours_by_each_of_the_five(read: ReportData) -> None:
    shares, jobs = read.jobs.shares, read.jobs
    assert jobs.total_gpu_h == 35.5
    assert hours(read, shares.of(jobs.user)) == {"ann": 8, "bob": 19, "cat": 7.5, "dan": 1}
    assert hours(read, shares.of(jobs.account)) == {"vis": 15.5, "nlp": 19, "sys": 1}
    assert hours(read, shares.of(jobs.team)) == {"lab": 34.5, "sys": 1}
    assert hours(read, shares.server_type) == {"a100": 32, "v100": 2.5, "other": 1}
    # a1: 2 + 2 + 6 + 3 + 4 + 2 + 1 = 20, and v1; a2: 6 + 1 + 1 + 2 + 2 = 12.
    assert hours(read, shares.zone) == {"east": 22.5, "west": 12, "other": 1}


def test_a_requeued_job_is_two_runs_and_a_resized_one_is_one(read: ReportData) -> None:
    jobs = read.jobs
    labels = jobs.labels()
    assert [labels.count(label) for label in ("10", "12", "11", "9", "8")] == [2, 1, 1, 1, 1]
    row = labels.index("12")
    assert (jobs.start_s[row], jobs.end_s[row]) == (D + 16 * HOUR, D + 19 * HOUR)
    assert (jobs.allocated_gpu_h[row], jobs.run_h[row], jobs.n_nodes[row]) == (5, 3, 2)
    assert jobs.n_gpus[row] == pytest.approx(5 / 3, abs=1e-3)
    assert jobs.scale.texts()[row] == "several nodes"


def test_a_run_that_ended_in_the_day_is_a_job_of_it(read: ReportData) -> None:
    jobs = read.jobs
    labels = np.array(jobs.labels())
    assert sorted(labels[jobs.ended], key=int) == ["1", "2", "3", "4", "5", "7", "9", "10", "10", "12"]
    assert "8" not in labels[jobs.ended], "it ends with the midnight that begins the next day"


def test_waits_and_gaps(read: ReportData) -> None:
    jobs = read.jobs
    labels = jobs.labels()
    never = labels.index("9")
    assert np.isnan([jobs.wait_h[never], jobs.run_h[never], jobs.start_s[never], jobs.ugpucore[never]]).all()
    assert (jobs.n_gpus[never], jobs.allocated_gpu_h[never], jobs.charge[never]) == (1, 0, 0)
    assert jobs.wait_h[labels.index("1")] == 0.5
    assert jobs.run_h[labels.index("11")] == 10


def test_charges_by_hand(shown: dict[str, Figure]) -> None:
    table = shown["charge-per-account"].table
    rows = list(zip(*(list(values) for values in table.data.values()), strict=True))
    # vis: 13 hours on a100; 2.5 of shards on v100. sys: an hour that has no price.
    assert rows == [
        ("nlp", "a100", 19.0, 38.0, 0.0),
        ("vis", "a100", 13.0, 26.0, 0.0),
        ("vis", "v100", 2.5, 1.25, 0.0),
        ("sys", "other", 1.0, 0.0, 1.0),
    ]
    assert shown["charge-per-account"].reading == (
        "Charges of 3 accounts total 65.25 EUR, the largest being 38 EUR "
        "(58.2 %) for nlp; 1 GPU-hour had no rate."
    )


def test_shares_of_capacity_by_hand(shown: dict[str, Figure]) -> None:
    data = shown["usage-by-server-type"].table.data
    assert dict(zip(data["server_type"], data["capacity_gpu_h"], strict=True)) == {
        "a100": 192,
        "v100": 48,
        "other": 24,
    }
    assert dict(zip(data["server_type"], data["out_of_service_gpu_h"], strict=True)) == {
        "a100": 0,
        "v100": 24,
        "other": 0,
    }
    share = dict(zip(data["server_type"], data["share_pct"], strict=True))
    assert share == pytest.approx({"a100": 100 * 32 / 192, "v100": 100 * 2.5 / 48, "other": 100 / 24})
    assert shown["usage-by-server-type"].reading == (
        "13.4 % of the capacity was allocated: a100 16.7 %, v100 5.2 % and other 4.2 %."
    )


def test_loans_by_hand(shown: dict[str, Figure]) -> None:
    data = shown["lent-gpu-hours"].table.data
    assert (data["lender"], data["borrower"], list(data["gpu_h"])) == (["nlp"], ["lab"], [2.0])
    data = shown["low-priority-small-jobs"].table.data
    assert list(data["low_priority_gpus"][:9]) == [0.25] * 8 + [0]


def test_idle_hours_by_hand(shown: dict[str, Figure]) -> None:
    """Count 1 of job 2's 3 idle GPU-hours, because a third is in the day; job 4's coverage is too low."""
    data = shown["allocated-but-idle"].table.data
    assert data["user"] == ["ann"]
    assert [float(data[name][0]) for name in list(data)[1:]] == pytest.approx(
        [4, 1.25, 2 * 0.2 + 2 * 0.8, 2.5, 4]
    )


def test_allocation_by_hand(shown: dict[str, Figure]) -> None:
    """Count by the hour: at 03:00 job 1 and the shard, at 18:00 the second part of job 12."""
    data = shown["allocation-over-time"].table.data
    assert list(data["allocated_gpus"][[0, 3, 6, 17, 18, 21, 23]]) == [2.25, 1.25, 4.25, 2, 1, 1, 1.5]
    assert set(data["capacity_gpus"]) == {11}
    # Job 6 uses half a GPU of v1 at 23:00, which is not free.
    assert list(data["out_of_service_gpus"][[11, 12, 23]]) == [0, 2, 1.5]


def test_a_day_that_has_not_ended_counts_until_now(twelve: Database) -> None:
    read = load(twelve, SITE, DAY, D + 22 * HOUR)
    assert read.jobs.allocated_gpu_h[read.jobs.labels().index("11")] == 2
    assert int(read.capacity.mgpu_s.sum()) == 11_000 * 22 * HOUR
    data = {figure.id: figure for figure in all_figures(read)}["allocation-over-time"].table.data
    assert data["capacity_gpus"][21] == 11
    assert np.isnan(data["capacity_gpus"][22])
    assert np.isnan(data["allocation_rate_pct"][22])


def test_a_run_with_unknown_gpus_is_a_gap_without_hours(twelve: Database) -> None:
    row = run_row(100, job(13, "eve/vis", "a1", 1, 5, 6, mgpu=None))
    insert(twelve, "run", list(row), [list(row.values())])
    jobs = load(twelve, SITE, DAY, NOW_S).jobs
    at = jobs.labels().index("13")
    assert np.isnan([jobs.allocated_gpu_h[at], jobs.n_gpus[at], jobs.charge[at]]).all()
    assert jobs.scale.texts()[at] is None
    assert jobs.total_gpu_h == 35.5
