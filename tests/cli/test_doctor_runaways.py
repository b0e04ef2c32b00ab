"""`slurm-gpu doctor` on jobs of which slurmctld knows nothing any more, and Slurm's accounting no end."""

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


class After(Slurm):
    """Slurm once a slurmctld was killed: its queue is given, and accounting has these ends."""

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


def look(installed: Installation, slurm: After, *runs: Run) -> Iterator[CheckResult]:
    installed.database.runs = list(runs)
    at = installed.at()
    at.site.connect_slurm = lambda: slurm
    return ended(at)


def test_what_slurmctld_knows_is_well_and_accounting_is_not_asked(installed: Installation) -> None:
    slurm = After([queued(17, RUNNING.submit_s), queued(18, PENDING.submit_s)], {})
    assert levels(look(installed, slurm, RUNNING, PENDING)) == ["ok"]
    assert slurm.asked == []


@pytest.mark.parametrize("given_again", [True, False])
def test_jobs_that_nobody_ends_are_named_with_what_ends_them(
    installed: Installation, *, given_again: bool
) -> None:
    queue = [queued(17, START_S + 60), queued(18, START_S + 61)] if given_again else []
    ends = dict.fromkeys(((17, RUNNING.submit_s), (18, PENDING.submit_s)))
    finding = worst(look(installed, After(queue, ends), RUNNING, PENDING))
    assert finding.level is Level.WARN
    assert finding.message.startswith("2 jobs (17, 18) go on by Slurm's accounting, but not in slurmctld")
    assert str(finding.remedy).startswith("sacctmgr show runawayjobs")


def test_a_job_that_has_ended_since_slurm_gpudbd_read_of_it_is_none(installed: Installation) -> None:
    slurm = After([], {(17, RUNNING.submit_s): START_S + 60})
    assert levels(look(installed, slurm, RUNNING)) == ["ok"]
    assert slurm.asked == [17]


def test_a_requeued_job_goes_on(installed: Installation) -> None:
    again = START_S + 300
    slurm = After([queued(17, again)], {(17, RUNNING.submit_s): again, (17, again): None})
    assert levels(look(installed, slurm, RUNNING)) == ["ok"]
