"""Import sacct's rows of requeues, arrays, heterogeneous jobs, failed nodes, and jobs that never ran."""

from collections.abc import Mapping, Sequence

from slurm_gpu.database.accounting.importer import Importer
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.queries.run_filter import RunFilter
from slurm_gpu.database.queries.run_queries import find_job, find_runs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm import sacct
from slurm_gpu.wire.answers.runs import Run
from tests.database.samples import CLUSTER, T0, FakeClock, MemorySlurm
from tests.slurm.printed import MARK, NAMES, text_of

ROOT = Caller(0, "root", sees_all=True, writes=True)
NOW_S = T0 + 50_000


class Site:
    """An import of changing sacct output over several passes."""

    def __init__(self, database: Database) -> None:
        self.database, self.slurm = database, MemorySlurm()
        self.clock = FakeClock(NOW_S)
        self.importer = Importer(database, SlurmView(self.slurm, self.clock), self.clock, CLUSTER, 60.0)

    def prints(self, *rows: dict[str, str]) -> None:
        self.slurm.rows = list(sacct.parse_rows([text_of(rows)], NAMES, MARK))
        self.importer.run_once()
        self.clock.now += 60

    def runs(self, job: str | None = None) -> Sequence[Run]:
        with self.database.reading() as connection:
            if job is not None:
                return find_job(connection, CLUSTER, job, ROOT, NOW_S).runs
            return find_runs(connection, CLUSTER, RunFilter(), ROOT, NOW_S).runs


def times(submit_s: int, start_s: int | None, end_s: int | None) -> Mapping[str, str]:
    """Return a job's times as sacct prints them, from seconds after T0; it is eligible at submission."""

    def printed(at_s: int | None) -> str:
        return "Unknown" if at_s is None else str(T0 + at_s)

    elapsed_s = 0 if start_s is None or end_s is None else end_s - start_s
    return {
        "Submit": printed(submit_s),
        "Eligible": printed(submit_s),
        "Start": printed(start_s),
        "End": printed(end_s),
        "ElapsedRaw": str(elapsed_s),
    }


def test_a_requeued_job_has_a_run_for_each_time_and_waits_from_its_first_submission(
    database: Database,
) -> None:
    site = Site(database)
    site.prints({"State": "RUNNING", **times(0, 3600, None)})
    site.prints(
        {"State": "REQUEUED", **times(0, 3600, 7200)},
        {"State": "PREEMPTED", **times(7200, 10_800, 14_400)},
        {"State": "RUNNING", **times(14_400, 18_000, None)},
    )
    runs = site.runs("17")
    assert [run.state for run in runs] == ["RUNNING", "PREEMPTED", "REQUEUED"]
    assert [run.wait_h for run in runs] == [1.0, 1.0, 1.0]
    assert [run.submit_wait_h for run in runs] == [5.0, 3.0, 1.0]
    assert [run.run_h for run in runs[1:]] == [1.0, 1.0]


def test_a_job_whose_node_failed_is_run_again_elsewhere(database: Database) -> None:
    site = Site(database)
    site.prints(
        {"State": "NODE_FAIL", "NodeList": "n1", "ExitCode": "0:0", **times(0, 0, 3600)},
        {"State": "COMPLETED", "NodeList": "n2", **times(3600, 7200, 10_800)},
    )
    again, failed = site.runs("17")
    assert (failed.state, failed.nodes, failed.run_h) == ("NODE_FAIL", "n1", 1.0)
    assert (again.state, again.nodes, again.run_h, again.submit_wait_h) == ("COMPLETED", "n2", 1.0, 2.0)


def test_an_array_is_one_row_until_its_tasks_start_and_the_last_takes_its_place(database: Database) -> None:
    waiting = {"State": "PENDING", "NodeList": "None assigned", "AllocTRES": "", **times(0, None, None)}
    task = {"State": "COMPLETED", **times(0, 10, 20)}
    site = Site(database)
    site.prints({"JobID": "17_[1-3%2]", **waiting})
    (whole,) = site.runs()
    assert (whole.id, whole.array_job_id, whole.array_task, whole.state) == ("17", 17, None, "PENDING")
    site.prints(
        {"JobID": "17_1", "JobIDRaw": "18", **task},
        {"JobID": "17_2", "JobIDRaw": "19", **task},
        {"JobID": "17_[3]", **waiting},
    )
    assert [run.id for run in site.runs()] == ["17_2", "17_1", "17"]
    site.prints(
        {"JobID": "17_1", "JobIDRaw": "18", **task},
        {"JobID": "17_2", "JobIDRaw": "19", **task},
        {"JobID": "17_3", "JobIDRaw": "17", **task},
    )
    assert [run.id for run in site.runs("17")] == ["17_3", "17_2", "17_1"]
    assert [run.job_id for run in site.runs("17_3")] == [17]


def test_an_array_that_is_cancelled_in_the_queue_was_never_split(database: Database) -> None:
    never = {"State": "CANCELLED by 1001", "NodeList": "None assigned", "AllocTRES": ""}
    site = Site(database)
    site.prints({"JobID": "17_[1-3]", **never, **times(0, 50, 50)})
    (run,) = site.runs("17")
    assert (run.state, run.start_s, run.wait_h, run.run_h) == ("CANCELLED", None, None, None)
    # Slurm's accounting does not record the request of an array that was never split.
    assert (run.end_s, run.n_gpus, run.nodes) == (T0 + 50, None, "")


def test_components_of_a_heterogeneous_job_are_jobs_of_one_name(database: Database) -> None:
    site = Site(database)
    site.prints(
        {"JobID": "17+0", "AllocTRES": "cpu=4,mem=1G,node=1"},
        {"JobID": "17+1", "JobIDRaw": "18", "AllocTRES": "cpu=1,gres/gpu:a100=4,gres/gpu=4,node=1"},
    )
    assert [(run.id, run.job_id, run.n_gpus) for run in site.runs("17")] == [
        ("17+1", 18, 4.0),
        ("17+0", 17, 0.0),
    ]
    assert [run.id for run in site.runs("17+1")] == ["17+1"]


def test_a_job_that_is_cancelled_before_it_starts_used_nothing(database: Database) -> None:
    waiting = {"NodeList": "None assigned", "AllocTRES": "", "ReqTRES": "cpu=1,gres/gpu=8,node=1"}
    site = Site(database)
    site.prints({"State": "PENDING", **waiting, **times(0, None, None)})
    site.prints({"State": "CANCELLED by 1001", **waiting, **times(0, 300, 300)})
    (run,) = site.runs()
    assert (run.state, run.has_started, run.run_h, run.wait_h) == ("CANCELLED", False, None, None)
    assert run.n_gpus_requested == 8.0
    assert (run.ugpucore, run.coverage) == (None, None)


def test_a_job_that_is_cancelled_as_it_starts_has_run(database: Database) -> None:
    """Test a job that has nodes and ran for less than a second."""
    site = Site(database)
    site.prints({"State": "CANCELLED by 1001", **times(0, 300, 300)})
    (run,) = site.runs()
    assert (run.has_started, run.run_h, run.n_gpus) == (True, 0.0, 1.0)


def test_jobs_of_a_cluster_that_restarted_its_ids_are_other_jobs(database: Database) -> None:
    site = Site(database)
    site.prints({"User": "alice", **times(0, 10, 20)}, {"User": "bob", **times(5000, 5010, 5020)})
    later, earlier = site.runs("17")
    assert (earlier.user, later.user) == ("alice", "bob")
    assert later.submit_wait_h == 10 / 3600, "a job that completed was not requeued"
