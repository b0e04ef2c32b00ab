"""A job that is shrunk while it runs is one run, regardless of the rows that Slurm's accounting has.

The rows are as Slurm 22.05 wrote them when a job on n[1-3] was shrunk twice.
"""

from typing import Any

import pytest
from sqlalchemy import select

from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run, run_device
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.wire import Mean, Record, Total
from slurm_gpu.wire.answers.runs import Run
from tests.database.samples import T0, record, row, segment
from tests.database.test_queries import fill, job, runs

HOUR = 3600


def _gpus(n: int) -> dict[str, float]:
    return {"cpu": n, "gres/gpu": n, "gres/gpu:a100": n}


def _rows(*, has_own_start: bool) -> list[AccountingRun]:
    """Return rows of three hours on three nodes, two hours on two nodes and one hour on n1.

    In Slurm, the start of a row after a resize is the start of the whole run or the time of the resize.
    """
    at = {"submit_s": T0 - 60, "eligible_s": T0 - 60, "start_s": T0}
    first = row(
        **at,
        end_s=T0 + 3 * HOUR,
        elapsed_s=3 * HOUR,
        state="RESIZING",
        nodes="n[1-3]",
        n_nodes=3,
        tres_allocated=_gpus(3),
        tres_requested=_gpus(3),
    )
    rows = [first]
    for resized_s, end_s, nodes in ((3 * HOUR, 5 * HOUR, "n[1-2]"), (5 * HOUR, 6 * HOUR, "n1")):
        start_s = resized_s if has_own_start else 0
        n = 2 if nodes == "n[1-2]" else 1
        rows.append(
            first._replace(
                submit_s=T0 + resized_s,
                eligible_s=T0 + resized_s,
                start_s=T0 + start_s,
                end_s=T0 + end_s,
                elapsed_s=end_s - start_s,
                nodes=nodes,
                n_nodes=n,
                tres_allocated=_gpus(n),
                state="COMPLETED" if n == 1 else "RESIZING",
            )
        )
    return rows


def _watch(n: int, until_h: float, *, watched: float = 1.0, **given: Any) -> Record:
    """Return node n's record of a GPU allocated for `until_h`, of which the fraction `watched` is sampled."""
    allocated_s = until_h * HOUR
    sampled_s = watched * allocated_s
    return record(
        **{
            "node": f"n{n}",
            "device": f"GPU-{n}",
            "segment": segment(n),
            "last_s": T0 + int(allocated_s),
            "allocated_s": allocated_s,
            "sampled_s": sampled_s,
            "util_hist_ms": {20 * n: int(sampled_s * 1000)},
            "mem_used_frac": Mean(sampled_s, 0.5, 0.5, 0.5),
            "energy_j": Total(sampled_s, 100 * sampled_s),
            **given,
        }
    )


WATCHED = [_watch(1, 6), _watch(2, 5), _watch(3, 3)]


def _show(database: Database, rows: list[AccountingRun], records: list[Record]) -> Run:
    """Store rows and records; return their only run."""
    database.write(lambda connection: store_records(connection, records))
    fill(database, *rows)
    (shown,) = job(database, "1", now_s=T0 + 9 * HOUR)
    (listed,) = runs(database).runs
    for name in ("submit_s", "start_s", "wait_h", "run_h", "n_gpus", "coverage", "energy_j", "ugpucore"):
        assert getattr(shown, name) == getattr(listed, name), name
    return shown


@pytest.mark.parametrize("has_own_start", [False, True])
def test_a_resized_job_is_shown_as_one_run(database: Database, has_own_start: bool) -> None:
    shown = _show(database, _rows(has_own_start=has_own_start), WATCHED)
    assert (shown.state, shown.submit_s, shown.start_s) == ("COMPLETED", T0 - 60, T0)
    assert (shown.wait_h, shown.submit_wait_h, shown.run_h) == (60 / HOUR, 60 / HOUR, 6.0)
    assert (shown.nodes, shown.n_nodes) == ("n[1-3]", 3)
    assert shown.n_gpus is not None
    assert shown.n_gpus * 6 == pytest.approx(3 * 3 + 2 * 2 + 1, abs=0.01), "GPU-hours"
    assert len(shown.devices or ()) == 3


@pytest.mark.parametrize("has_own_start", [False, True])
def test_its_measures_are_of_the_whole_time(database: Database, has_own_start: bool) -> None:
    shown = _show(database, _rows(has_own_start=has_own_start), WATCHED)
    assert shown.ugpucore == pytest.approx((20 * 6 + 40 * 5 + 60 * 3) / 14)
    assert (shown.coverage, shown.energy_j) == (1.0, 100 * 14 * HOUR)


def test_unwatched_time_before_the_resize_lowers_coverage(database: Database) -> None:
    records = [_watch(1, 6), _watch(2, 5), _watch(3, 3, watched=0.0, energy_j=None, mem_used_frac=None)]
    shown = _show(database, _rows(has_own_start=False), records)
    assert shown.coverage == pytest.approx(11 / 14)
    assert shown.energy_j is None, "less than 0.8 of it was metered"
    nothing = _show(database, [], [_watch(3, 3, seq=2)])
    assert nothing.coverage == 1.0


def test_a_node_without_reports_counts_for_its_allocated_time(database: Database) -> None:
    assert _show(database, _rows(has_own_start=False), WATCHED[:2]).coverage == pytest.approx(11 / 14)


def test_until_the_next_row_is_there_the_first_is_the_run(database: Database) -> None:
    before, *_ = _rows(has_own_start=False)
    reported = _show(database, [before], [_watch(n, 3) for n in (1, 2, 3)])
    assert (reported.state, reported.coverage, reported.run_h) == ("RESIZING", 1.0, 3.0)


def test_without_its_first_row_the_wait_is_unknown(database: Database) -> None:
    *_, last = _rows(has_own_start=False)
    shown = _show(database, [last], [_watch(1, 6)])
    assert (shown.wait_h, shown.submit_wait_h, shown.state) == (None, None, "COMPLETED")


def test_a_resized_run_runs_since_its_first_start(database: Database) -> None:
    first, *_, last = _rows(has_own_start=False)
    goes_on = last._replace(submit_s=T0 + 3 * HOUR, end_s=None, elapsed_s=3 * HOUR, state="RUNNING")
    database.write(lambda connection: store_records(connection, [_watch(1, 6), _watch(2, 3), _watch(3, 3)]))
    fill(database, first, goes_on)
    (shown,) = job(database, "1", now_s=T0 + 6 * HOUR)
    assert (shown.run_h, shown.coverage) == (6.0, 1.0)
    assert shown.n_gpus == pytest.approx((3 * 3 + 3) / 6)


def test_a_requeue_after_it_is_a_run_of_its_own(database: Database) -> None:
    *parts, last = _rows(has_own_start=False)
    again = {"submit_s": T0 + 6 * HOUR, "eligible_s": T0 + 6 * HOUR + 120, "start_s": T0 + 7 * HOUR}
    later = last._replace(**again, end_s=T0 + 8 * HOUR, elapsed_s=HOUR)
    ran = _watch(1, 1, segment=segment(9), restart=1, first_s=T0 + 7 * HOUR, last_s=T0 + 8 * HOUR)
    database.write(lambda connection: store_records(connection, [*WATCHED, ran]))
    fill(database, *parts, last._replace(state="REQUEUED"), later)
    second, first = job(database, "1", now_s=T0 + 9 * HOUR)
    assert (first.state, first.run_h, first.coverage, len(first.devices or ())) == ("REQUEUED", 6.0, 1.0, 3)
    assert (second.run_h, second.coverage, len(second.devices or ())) == (1.0, 1.0, 1)
    assert second.submit_wait_h == pytest.approx(7 + 60 / HOUR)


def test_records_belong_to_the_row_that_continues(database: Database) -> None:
    _show(database, _rows(has_own_start=False), WATCHED)
    query = select(run_device.c.node, run.c.state).join(run, run.c.run_id == run_device.c.run_id)
    with database.reading() as connection:
        states = {item.node: item.state for item in connection.execute(query)}
    assert states == dict.fromkeys(("n1", "n2", "n3"), "COMPLETED")


@pytest.mark.parametrize("has_own_start", [False, True])
def test_a_run_was_submitted_when_its_first_part_was_and_is_shown_whole(
    database: Database, has_own_start: bool
) -> None:
    rows = _rows(has_own_start=has_own_start)
    again = {"start_s": None, "end_s": None, "elapsed_s": 0, "state": "PENDING", "nodes": ""}
    requeued = rows[-1]._replace(state="REQUEUED")
    pending = requeued._replace(submit_s=T0 + 6 * HOUR + 1, eligible_s=T0 + 6 * HOUR + 1, **again)
    fill(database, *rows[:-1], requeued, pending)

    def before(at_s: int) -> list[tuple[str, int]]:
        shown = runs(database, until=str(at_s)).runs
        paged = [runs(database, until=str(at_s), limit="1")] if shown else []
        while paged and paged[-1].cursor is not None:
            paged.append(runs(database, until=str(at_s), limit="1", cursor=paged[-1].cursor))
        assert [one for page in paged for one in page.runs] == list(shown)
        assert all(one.n_nodes == 3 and one.run_h == 6.0 for one in shown if one.state == "REQUEUED")
        return [(one.state, one.submit_s) for one in shown]

    assert before(T0 - 60) == []
    for hours in (0.0, 3.0, 4.0, 5.0, 5.5, 6.0):
        assert before(T0 + int(hours * HOUR)) == [("REQUEUED", T0 - 60)], hours
    both = [("PENDING", T0 + 6 * HOUR + 1), ("REQUEUED", T0 - 60)]
    assert before(T0 + 7 * HOUR) == both
