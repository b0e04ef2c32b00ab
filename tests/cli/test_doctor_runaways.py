"""`slurm-gpu doctor` reports jobs that slurmctld no longer has, but that accounting lists as running."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from slurm_gpu.cli.doctor.checks.finding import CheckResult, Level
from slurm_gpu.cli.doctor.checks.slurm.runaways import ended
from slurm_gpu.client.database_client import Run
from slurm_gpu.slurm.client import AccountingRun, QueuedJob
from tests.cli.conftest import START_S, make_run
from tests.cli.installation import Installation, Slurm, levels, worst
from tests.slurm.recorded import recorded_client

RUNNING = make_run(state="RUNNING", end_s=None, nodes="n1")
PENDING = make_run(id="18", job_id=18, state="PENDING", start_s=None, end_s=None, nodes="")


class LostJobs(Slurm):
    """A Slurm whose slurmctld lost jobs, with a given queue and given end times in accounting."""

    def __init__(self, queue: Sequence[QueuedJob], ends: dict[tuple[int, int], int | None]) -> None:
        super().__init__({})
        self.queue, self.ends = queue, ends
        self.asked: list[int] = []

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        return self.queue

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        self.asked = list(job_ids or ())
        row = next(iter(recorded_client().accounting(0)))
        for (job_id, submit_s), end_s in self.ends.items():
            yield row._replace(job_id=job_id, submit_s=submit_s, end_s=end_s)


def queued(job_id: int, submit_s: int) -> QueuedJob:
    return replace(recorded_client().jobs()[0], job_id=job_id, submit_s=submit_s)


def check(installed: Installation, slurm: LostJobs, *runs: Run) -> Iterator[CheckResult]:
    installed.database.runs = list(runs)
    at = installed.at()
    at.site.connect_slurm = lambda: slurm
    return ended(at)


def test_jobs_in_the_queue_are_ok_without_a_query_of_accounting(installed: Installation) -> None:
    slurm = LostJobs([queued(17, RUNNING.submit_s), queued(18, PENDING.submit_s)], {})
    assert levels(check(installed, slurm, RUNNING, PENDING)) == ["ok"]
    assert slurm.asked == []


@pytest.mark.parametrize("id_is_reused", [True, False])
def test_runaway_jobs_are_named_with_the_command_that_ends_them(
    installed: Installation, *, id_is_reused: bool
) -> None:
    queue = [queued(17, START_S + 60), queued(18, START_S + 61)] if id_is_reused else []
    ends = dict.fromkeys(((17, RUNNING.submit_s), (18, PENDING.submit_s)))
    finding = worst(check(installed, LostJobs(queue, ends), RUNNING, PENDING))
    assert finding.level is Level.WARN
    assert finding.message.startswith(
        "2 jobs (17, 18) are active in Slurm's accounting, but not in slurmctld"
    )
    assert str(finding.remedy).startswith("run sacctmgr show runawayjobs")


def test_a_job_that_ended_since_the_last_import_is_ok(installed: Installation) -> None:
    slurm = LostJobs([], {(17, RUNNING.submit_s): START_S + 60})
    assert levels(check(installed, slurm, RUNNING)) == ["ok"]
    assert slurm.asked == [17]


def test_a_requeued_job_is_ok(installed: Installation) -> None:
    again = START_S + 300
    slurm = LostJobs([queued(17, again)], {(17, RUNNING.submit_s): again, (17, again): None})
    assert levels(check(installed, slurm, RUNNING)) == ["ok"]
