import logging
import threading
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from slurm_gpu.database.accounting.importer import (
    OVERLAP_S,
    WIDE_EVERY_S,
    WIDE_OVERLAP_S,
    Importer,
    read_until_s,
    store_changed_runs,
)
from slurm_gpu.database.accounting.run_row import RunRows, allocated_mgpu, gpu_type, run_row
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.accounting.writer import IMPORTED, RUN_KEY, store_records
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import run
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import AccountingRun, SlurmNode
from tests.database.samples import (
    CLUSTER,
    T0,
    FakeClock,
    MemorySlurm,
    node,
    queued,
    record,
    requeued,
    row,
    segment,
)

NODES = {f"n{number}": node(number) for number in range(1, 5)}


def importer(database: Database, slurm: MemorySlurm, clock: FakeClock) -> Importer:
    return Importer(database, SlurmView(slurm, clock), clock, CLUSTER, 60.0)


def runs(database: Database) -> dict[tuple[int, int], dict[str, object]]:
    with database.reading() as connection:
        return {(r["job_id"], r["submit_s"]): dict(r) for r in connection.execute(select(run)).mappings()}


def test_a_job_is_followed_from_pending_to_its_end(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm()
    importing = importer(database, slurm, clock)
    pending = {
        "state": "PENDING",
        "start_s": None,
        "end_s": None,
        "elapsed_s": 0,
        "nodes": "",
        "tres_allocated": {},
    }
    key = (1, T0 - 60)
    for given, state, granted in (
        (pending, "PENDING", 0),
        ({"state": "RUNNING", "end_s": None, "elapsed_s": 5}, "RUNNING", 1000),
        ({}, "COMPLETED", 1000),
    ):
        slurm.rows = [row(**given)]
        assert importing.run_once() == 1
        assert importing.run_once() == 0, "an unchanged row is not written again"
        assert (runs(database)[key]["state"], runs(database)[key]["granted_mgpu"]) == (state, granted)


def test_a_job_cancelled_while_held_is_queried_by_its_id(database: Database) -> None:
    """Test a job that no period of Slurm's accounting contains."""
    held = queued(job_id=7, state="PENDING", eligible_s=None, start_s=None, nodes=[])
    slurm = MemorySlurm(jobs=[held, queued(job_id=8, state="CANCELLED")])
    clock = FakeClock()
    importing = importer(database, slurm, clock)
    importing.run_once()
    assert [ids for _, ids in slurm.questions] == [None]
    slurm.queue = [replace(held, state="CANCELLED")]
    clock.now += 60
    importing.run_once()
    assert slurm.questions[-1] == (0, (7,))


def test_the_growing_elapsed_time_of_a_running_job_is_no_change(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm([row(state="RUNNING", end_s=None, elapsed_s=5)])
    importing = importer(database, slurm, clock)
    assert importing.run_once() == 1
    slurm.rows = [row(state="RUNNING", end_s=None, elapsed_s=65)]
    assert importing.run_once() == 0


def test_each_requeue_is_a_run(database: Database) -> None:
    importer(database, MemorySlurm(requeued()), FakeClock()).run_once()
    assert [r["state"] for r in runs(database).values()] == ["REQUEUED", "COMPLETED"]


def test_the_first_pass_reads_everything_and_later_ones_the_overlap(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm()
    importing = importer(database, slurm, clock)
    expected = []
    importing.run_once()
    for seconds, back in (
        (60, WIDE_OVERLAP_S),
        (60, OVERLAP_S),
        (WIDE_EVERY_S, WIDE_OVERLAP_S),
        (60, OVERLAP_S),
    ):
        expected.append(int(clock.now) - back)
        clock.now += seconds
        importing.run_once()
    first, *later = [since for since, _ in slurm.questions]
    assert later == expected
    begins, ends = zip(*slurm.periods, strict=True)
    assert [*begins, first] == [0, *ends], "years are read in parts, without a gap"


def test_after_a_clock_that_was_ahead_accounting_is_read_up_to_now(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm()
    importing = importer(database, slurm, clock)
    importing.run_once()
    clock.now += 400 * 86400
    importing.run_once()
    clock.now -= 400 * 86400
    for _ in range(2):
        importing.run_once()
        since_s, _ = slurm.questions[-1]
        assert since_s <= clock.now - OVERLAP_S
        clock.now += 60


def test_a_pass_that_failed_does_not_move_the_watermark(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm()
    importing = importer(database, slurm, clock)
    importing.run_once()
    slurm.unavailable = True
    clock.now += 5000
    with pytest.raises(SlurmError):
        importing.run_once()
    with database.reading() as connection:
        assert read_until_s(connection, CLUSTER) == T0


def test_an_open_run_that_slurmdbd_closed_late_is_queried_by_its_id(database: Database) -> None:
    clock = FakeClock()
    slurm = MemorySlurm([row(state="RUNNING", end_s=None)])
    importing = importer(database, slurm, clock)
    clock.now += 10 * WIDE_OVERLAP_S
    importing.run_once()
    slurm.rows = [row()]  # the job ended long before the next pass's period
    importing.run_once()
    assert slurm.questions[-1] == (0, (1,))
    assert runs(database)[1, T0 - 60]["state"] == "COMPLETED"


def test_records_without_a_run_are_queried_in_several_passes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that old jobs, which accounting no longer has, do not prevent queries of the newest ones."""
    monkeypatch.setattr("slurm_gpu.database.accounting.importer._MAX_UNMATCHED", 2)
    clock, slurm = FakeClock(T0 + 30 * 86400), MemorySlurm()
    records = [record(job_id=job_id, segment=segment(job_id)) for job_id in range(1, 6)]
    database.write(lambda connection: store_records(connection, records))
    importing = importer(database, slurm, clock)
    asked: list[int] = []
    for _ in range(3):
        slurm.questions.clear()
        importing.run_once()
        asked += [job_id for _, job_ids in slurm.questions for job_id in job_ids or ()]
        clock.now += 60
    assert set(asked) == {1, 2, 3, 4, 5}


def test_a_record_without_a_run_is_queried_with_backoff(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm()
    importing = importer(database, slurm, clock)
    database.write(lambda connection: store_records(connection, [record(job_id=7)]))
    asked = []
    for minute in range(70):
        before = len(slurm.questions)
        importing.run_once()
        if any(ids == (7,) for _, ids in slurm.questions[before:]):
            asked.append(minute)
        clock.now += 60
    assert asked == [0, 1, 3, 7, 15, 31, 63]
    slurm.rows = [row(job_id=7)]
    clock.now += 3600
    importing.run_once()
    with database.reading() as connection:
        assert connection.execute(select(run.c.ugpucore)).scalar() == 40.0


def test_records_are_matched_even_while_slurm_is_unreachable(database: Database) -> None:
    clock, slurm = FakeClock(), MemorySlurm([row()])
    importing = importer(database, slurm, clock)
    importing.run_once()
    slurm.unavailable = True
    database.write(lambda connection: store_records(connection, [record()]))
    with pytest.raises(SlurmError):
        importing.run_once()
    assert runs(database)[1, T0 - 60]["ugpucore"] == 40.0


def test_a_row_that_the_database_cannot_take_costs_only_itself(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(job_id=1), row(job_id=2, uid=2**70), row(job_id=3)]
    importer(database, MemorySlurm(rows), FakeClock()).run_once()
    assert [job_id for job_id, _ in runs(database)] == [1, 3]
    assert "job 2 was skipped" in caplog.text


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "'; DROP TABLE run; --", "a\nb\tc", "naïve 🚀", "\udcff", "%s \\ "]
)
def test_a_hostile_job_name_is_kept_as_text(database: Database, name: str) -> None:
    importer(database, MemorySlurm([row(name=name)]), FakeClock()).run_once()
    stored = runs(database)[1, T0 - 60]["name"]
    assert stored == name.encode("utf-8", "replace").decode()


def test_an_error_is_logged_when_it_begins_and_when_it_ends(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slurm_gpu.database.accounting.importer")
    slurm, clock = MemorySlurm(), FakeClock()
    importing = importer(database, slurm, clock)

    class Passes(threading.Event):
        """An event that replaces the pauses between ten passes; Slurm is unreachable in passes 4 to 8."""

        n = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.n += 1
            slurm.unavailable = 3 <= self.n < 8
            if self.n == 10:
                self.set()
            return True

    importing.run_until(Passes())
    reported = [entry.getMessage() for entry in caplog.records]
    assert reported == [
        "import: slurmctld does not answer; trying again every 10 s",
        "import: works again",
    ]
    assert importing.status.error is None


@pytest.mark.parametrize(("interval_s", "retry_s"), [(60.0, 10.0), (5.0, 5.0)])
def test_an_import_that_failed_is_tried_again_before_the_next_interval(
    database: Database, interval_s: float, retry_s: float
) -> None:
    slurm, clock = MemorySlurm(), FakeClock()
    slurm.unavailable = True
    importing = Importer(database, SlurmView(slurm, clock), clock, CLUSTER, interval_s)
    waits: list[float | None] = []

    class Passes(threading.Event):
        """An event that replaces the pauses between three passes; Slurm answers again before the last."""

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            slurm.unavailable = len(waits) < 2
            if len(waits) == 3:
                self.set()
            return True

    importing.run_until(Passes())
    assert waits == [retry_s, retry_s, interval_s]
    assert importing.status.error is None


@pytest.mark.parametrize(
    ("tres", "hostlist", "mgpu", "kind"),
    [
        ({"cpu": 8}, "n1", 0, None),
        ({}, "", 0, None),
        ({"gres/gpu": 2, "gres/gpu:a100": 2}, "n1", 2000, "a100"),
        ({"gres/gpu:a100": 2, "gres/gpu:v100": 1}, "n1", 3000, "a100,v100"),
        ({"gres/gpu": 4}, "n[1-2]", 4000, "a100"),
        ({"gres/shard": 1}, "n1", 250, "a100"),
        ({"gres/shard": 6}, "n[1-2]", 1500, "a100"),
        ({"gres/shard": 1}, "gone1", None, None),
        ({"gres/gpu": 1}, "gone1", 1000, None),
    ],
)
def test_gpus_of_an_allocation(
    tres: dict[str, float], hostlist: str, mgpu: int | None, kind: str | None
) -> None:
    assert allocated_mgpu(tres, hostlist, NODES) == mgpu
    assert gpu_type(tres, hostlist, NODES) == kind


def test_nodes_that_differ_in_shards_give_no_number() -> None:
    nodes = {"n1": node(1), "n2": node(2, shards=32)}
    assert allocated_mgpu({"gres/shard": 2}, "n[1-2]", nodes) is None


def test_one_allocation_on_other_nodes_may_be_other_gpus() -> None:
    tres = {"gres/shard": 2.0}
    made = RunRows({"n1": node(1), "n2": node(2, shards=32)})
    found = made.of([row(tres_allocated=tres, nodes=nodes) for nodes in ("n1", "n2", "gone1", "n1")])
    assert [item.allocated_mgpu for item in found] == [500, 250, None, 500]


def test_jobs_come_in_any_order_of_their_numbers(database: Database) -> None:
    def store(*job_ids: int) -> int:
        rows = [run_row(row(job_id=job_id), NODES) for job_id in job_ids]
        return database.write(partial(store_changed_runs, rows=rows))

    assert store(5) == 1
    assert store(3, 5, 9) == 2
    assert store(9, 5, 3, 4) == 1
    assert store(3, 4, 5, 9) == 0


def test_every_imported_column_is_filled() -> None:
    assert AccountingRun._fields == (*RUN_KEY, *IMPORTED)


def test_shares_of_nodes_stay_while_slurmctld_is_down(database: Database) -> None:
    reported = row(tres_allocated={"gres/shard": 1})
    for rows in ([run_row(reported, NODES)], [run_row(reported, {})]):
        database.write(partial(store_changed_runs, rows=rows))
    assert runs(database)[1, T0 - 60]["allocated_mgpu"] == 250
    assert runs(database)[1, T0 - 60]["gpu_type"] == "a100"


def test_the_gpus_of_an_ended_run_stay_when_nodes_are_reconfigured(
    database: Database,
) -> None:
    """Test that the current nodes apply to a running job, and to a job whose nodes have changed."""
    reconfigured = {"n1": node(1, shards=32, gpus={"h100": 4}), "n2": NODES["n2"]}

    def reported(known: dict[str, SlurmNode], **given: object) -> tuple[object, object]:
        fresh = run_row(row(tres_allocated={"gres/shard": 4.0}, **given), known)
        database.write(partial(store_changed_runs, rows=[fresh]))
        (stored,) = runs(database).values()
        return stored["allocated_mgpu"], stored["gpu_type"]

    assert reported(reconfigured, state="RUNNING", end_s=None) == (500, "h100")
    assert reported(NODES, state="RUNNING", end_s=None) == (1000, "a100")
    assert reported(reconfigured) == (1000, "a100")
    assert reported(reconfigured) == (1000, "a100")
    assert reported({}) == (1000, "a100")
    assert reported({"n2": node(2, shards=8)}, nodes="n2") == (2000, "a100")


def test_shards_that_accounting_cannot_convert_are_counted_by_the_nodes(database: Database) -> None:
    slurm = MemorySlurm([row(nodes="gone1", tres_allocated={"gres/shard": 1})])
    database.write(
        lambda connection: store_records(
            connection, [record(node="gone1", granted_mgpu=125, segment=segment(5))]
        )
    )
    importing = importer(database, slurm, FakeClock())
    importing.run_once()
    assert runs(database)[1, T0 - 60]["granted_mgpu"] == 125
    assert importing.run_once() == 0
