"""Both databases load the same data, with unchanged names and with gaps for missing values."""

from dataclasses import fields
from datetime import date, timedelta

import numpy as np
import pytest

from slurm_gpu.config.site import ServerType, SiteConfig
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row as run_row_of
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.errors import UsageError
from slurm_gpu.policy.language.model import Bundle
from slurm_gpu.reports.category import Category
from slurm_gpu.reports.figures.waiting import NO_BUNDLE, resource_types, waiting_by_resource_type
from slurm_gpu.reports.job_table import NO_GPU
from slurm_gpu.reports.load import load
from slurm_gpu.reports.period import ReportPeriod
from tests.database import samples
from tests.database.conftest import empty
from tests.reports.conftest import NOW_S
from tests.reports.filling import fill, insert_nodes, insert_runs
from tests.reports.flat import all_figures
from tests.reports.generated import SINCE, TIMEZONE, UNTIL, Node, as_day, generate
from tests.reports.world import run_row

ALL = ReportPeriod(since=as_day(SINCE), until=as_day(UNTIL), timezone=TIMEZONE)
MARCH = ReportPeriod(since=date(2026, 3, 1), until=date(2026, 4, 1))
HOSTILE = ["<script>alert(1)</script>", "'; DROP TABLE run; --", "a\nb", "", "=1+1", "𝔘𝔫𝔦 ‮evil", "x" * 255]


def run(number: int, **given: object) -> dict[str, object]:
    start_s = MARCH.since_s + 1000
    one = {
        "user": "u",
        "account": "a",
        "submit_s": start_s,
        "start_s": start_s,
        "end_s": start_s + 3600,
        "mgpu": 1000,
        "nodes": ["n1"],
    }
    return run_row(number, {**one, **given})


def test_both_databases_give_the_same_table(
    database: Database, site: SiteConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    few = generate(300)
    fill(database, few)
    jobs = load(database, site, ALL, NOW_S).jobs
    assert len(jobs) == len(few)
    assert jobs.job_id.tolist() == few.runs["job_id"].tolist()
    assert jobs.user.texts() == few.runs["user"]
    assert jobs.app.texts() == few.runs["app"]
    for column in ("start_s", "end_s", "ugpucore", "ugpumem"):
        assert np.array_equal(getattr(jobs, column), few.runs[column], equal_nan=True), column
    cancelled = np.isnan(few.runs["start_s"])
    assert jobs.n_gpus.tolist() == np.where(cancelled, 1, few.runs["granted_mgpu"] / 1000).tolist()


def test_names_are_kept_to_the_letter(database: Database) -> None:
    insert_runs(database, [run(number, name=name, app=name) for number, name in enumerate(HOSTILE, 1)])
    jobs = load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s).jobs
    assert jobs.name.texts() == HOSTILE
    assert jobs.app.texts() == HOSTILE


def test_a_period_without_any_run_has_every_figure(database: Database) -> None:
    read = load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s)
    assert len(read.jobs) == 0
    figures = all_figures(read)
    assert len({figure.id for figure in figures}) == len(figures) == 20
    assert all(figure.reading.endswith(".") and "nan" not in figure.reading for figure in figures)


def test_only_runs_that_overlap_the_period_are_read(database: Database) -> None:
    begin, end = MARCH.since_s, MARCH.until_s
    times = [
        (begin - 200, begin - 100),  # ended before
        (begin - 200, begin),  # ended in the period's first second: counts as a job without time
        (begin - 200, end + 200),  # all of it
        (end - 100, None),  # still runs
        (end, end + 100),  # after it
        (None, begin + 5),  # cancelled in it
        (None, end + 5),  # and after it
    ]
    rows = [
        run(number, submit_s=begin - 300, start_s=start_s, end_s=end_s)
        for number, (start_s, end_s) in enumerate(times, 1)
    ]
    insert_runs(database, rows)
    jobs = load(database, SiteConfig(cluster="c"), MARCH, end + 3600).jobs
    assert jobs.labels() == ["2", "3", "4", "6"]
    assert jobs.ended.tolist() == [True, False, False, True]
    assert jobs.allocated_mgpu_s.tolist() == [0, 1000 * (end - begin), 100_000, 0]


def test_ids_are_those_of_slurm(database: Database) -> None:
    insert_runs(
        database,
        [
            run(1),
            run(2, array_job_id=2, array_task=0),
            run(3, array_job_id=2, array_task=7),
            run(4, het_job_id=4, het_offset=0),
            run(5, het_job_id=4, het_offset=1),
        ],
    )
    assert load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s).jobs.labels() == [
        "1",
        "2_0",
        "2_7",
        "4+0",
        "4+1",
    ]


def test_machines_without_slurm_are_in_the_table_and_other_clusters_are_not(database: Database) -> None:
    clusters = ("c", "host:n1", "other")
    insert_runs(database, [run(number, cluster=name) for number, name in enumerate(clusters, 1)])
    jobs = load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s).jobs
    assert jobs.cluster.texts() == ["c", "host:n1"]


def test_columns_are_of_one_length(database: Database) -> None:
    insert_runs(database, [run(1), run(2)])
    jobs = load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s).jobs
    columns = [getattr(jobs, field.name) for field in fields(jobs)]
    assert {len(c) for c in columns if isinstance(c, np.ndarray | Category)} == {2}


def test_idle_time_of_records_arrives_in_the_table(database: Database) -> None:
    """Load a shipped record of one GPU for ten seconds, six of them without any process."""
    rows = [run_row_of(samples.row(), {})]
    database.write(lambda connection: store_changed_runs(connection, rows=rows))
    stored = samples.record(granted_mgpu=1000, no_process_s=6.0)
    database.write(lambda connection: store_records(connection, [stored]))
    reconcile(database)
    day = date.fromtimestamp(samples.T0)
    period = ReportPeriod(since=day, until=day + timedelta(days=2))
    jobs = load(database, SiteConfig(cluster=samples.CLUSTER), period, samples.T0 + 86400).jobs
    assert (jobs.allocated_gpu_h[0], jobs.no_process_gpu_h[0]) == (10 / 3600, 6 / 3600)
    assert (jobs.ugpucore[0], jobs.coverage[0]) == (40, 1)


def test_a_job_waits_for_the_first_bundle_that_it_belongs_to(database: Database) -> None:
    """Test that bundles match as in the script: by GPUs, by partition, and by GPU type if any is named."""
    bundles = [
        Bundle("prep", 0, partitions=("cpu",)),
        Bundle("big", 8000, gpu_types=("a100",)),
        Bundle("train", 1000, partitions=("gpu",)),
    ]
    kinds = [
        {"mgpu": 0, "partition": "cpu"},
        {"mgpu": 0, "partition": "gpu"},
        {"mgpu": 1000, "gpu_type": "A100"},
        {"mgpu": 1000, "gpu_type": "v100", "partition": "cpu,gpu"},
        {"mgpu": 1000, "gpu_type": "v100", "partition": "other"},
        {"mgpu": 250, "gpu_type": "v100"},
        {"mgpu": None},
    ]
    insert_runs(database, [run(number, **{"gpu_type": None, **kind}) for number, kind in enumerate(kinds, 1)])
    jobs = load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s).jobs
    assert resource_types(jobs, bundles).texts() == [
        "prep",
        NO_BUNDLE,
        "big",
        "train",
        NO_BUNDLE,
        "train",
        None,
    ]
    assert resource_types(jobs, []).texts() == [NO_GPU, NO_GPU, *["other"] * 4, None]
    assert waiting_by_resource_type(jobs, bundles).table.data["jobs"].sum() == 6


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (date(1, 1, 1), date(1, 1, 3)),
        (date(1969, 12, 31), date(2026, 1, 1)),
        (date(9999, 12, 1), date(9999, 12, 31)),
    ],
)
def test_a_report_is_of_days_that_epoch_seconds_and_calendars_have(since: date, until: date) -> None:
    with pytest.raises(UsageError, match="use days from 1970-01-01 to 9000-01-01"):
        ReportPeriod(since=since, until=until)


@pytest.mark.parametrize("zone", ["Asia/Seoul", "America/New_York", "Pacific/Kiritimati"])
def test_the_earliest_and_latest_days_have_valid_periods(zone: str) -> None:
    for since, until in ((date(1970, 1, 1), date(1970, 1, 2)), (date(8999, 12, 31), date(9000, 1, 1))):
        period = ReportPeriod(since=since, until=until, timezone=zone)
        assert len(period.edges_s()) == 25
        assert len([period.midnight_s(first) for first in period.months(13)]) == 14


def test_future_bins_are_gaps_and_the_present_one_is_a_mean_until_now(
    database: Database,
) -> None:
    """Test a report at 08:30: the ninth hour has a mean of 8 GPUs, although only half of it is over."""
    today = ReportPeriod(since=date(2026, 3, 10), until=date(2026, 3, 11))
    insert_nodes(database, [Node("n1", "a100", "east", 8)], today.since_s)
    insert_runs(database, [run(1, start_s=today.since_s, submit_s=today.since_s, end_s=None, mgpu=2000)])
    read = load(database, SiteConfig(cluster="c"), today, today.since_s + 8.5 * 3600)
    figures = {figure.id: figure.table.data for figure in all_figures(read)}
    for course, allocated in (
        (figures["allocation-over-time"], "allocated_gpus"),
        (figures["low-priority-small-jobs"], "other_gpus"),
    ):
        for name, gpus in (("capacity_gpus", 8.0), (allocated, 2.0)):
            assert course[name][:9].tolist() == [gpus] * 9
            assert np.isnan(course[name][9:]).all()


def test_a_run_with_an_unknown_part_leaves_others_unchanged(database: Database) -> None:
    """Test a job resized from an unknown number of GPUs to two, whose idle GPU-hours are unknown."""
    begin, hour = MARCH.since_s, 3600
    measured = {"ugpucore": 50.0, "ugpumem": 10.0, "coverage": 1.0, "no_process_mgpu_s": 1_800_000}
    insert_runs(
        database,
        [
            run(
                1,
                job_id=7,
                user="u",
                start_s=begin,
                submit_s=begin,
                end_s=begin + hour,
                mgpu=None,
                state="RESIZING",
                **measured,
            ),
            run(
                2,
                job_id=7,
                user="u",
                start_s=begin,
                submit_s=begin + hour,
                end_s=begin + 2 * hour,
                mgpu=2000,
                state="COMPLETED",
                **measured,
            ),
            run(
                3,
                user="v",
                start_s=begin,
                submit_s=begin,
                end_s=begin + hour,
                mgpu=1000,
                state="COMPLETED",
                **measured,
            ),
        ],
    )
    figures = {
        figure.id: figure
        for figure in all_figures(load(database, SiteConfig(cluster="c"), MARCH, MARCH.until_s))
    }
    idle = figures["allocated-but-idle"]
    assert (idle.table.data["user"], idle.table.data["wasted_gpu_h"].tolist()) == (["v"], [0.5])
    assert idle.reading.startswith("50 % of 1 GPU-hour measured (33.3 % of all) were wasted")
    by_application, by_user = (
        figures[name].table.data["gpu_h"] for name in ("usage-by-application", "gpu-hours-by-user")
    )
    assert by_application.sum() == by_user.sum() == 3.0


def test_one_job_is_singular(database: Database) -> None:
    insert_nodes(database, [Node("n1", "a100", "east", 8)], MARCH.since_s)
    insert_runs(database, [run(1)])
    site = SiteConfig(cluster="c", server_types={"a100": ServerType("n1", 2.0)})
    readings = {
        figure.id: figure.reading for figure in all_figures(load(database, site, MARCH, MARCH.until_s))
    }
    assert readings["parallel-coordinates"] == "1 job with GPUs of 1 user ended."
    assert readings["waiting-by-scale"] == "The only job waited 0s."
    assert readings["charge-per-account"].startswith("Charges of account a total 2.")


def test_a_report_ends_after_it_begins() -> None:
    with pytest.raises(UsageError, match="ends on 2026-03-01, but begins on 2026-03-01"):
        ReportPeriod(since=date(2026, 3, 1), until=date(2026, 3, 1))


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    if "database" in request.fixturenames:
        empty(request.getfixturevalue("database"))
