"""Waiting for a zone is bounded and always ends with the user's own constraint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.placement.zone_wait import EVERY_S, FILE_NAME, ZoneWait, written_zones
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.snapshot.zone_table import ZoneTable
from slurm_gpu.errors import SlurmError
from slurm_gpu.placement.zones import JobScale
from slurm_gpu.slurm.job_changes import ConstrainedJob
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.wire.answers.runs import AuditEvent

from .fakes import Clock, make_job

WAIT_S = 600.0
COMMENT = "slurm-gpu/1 t=abc1 r=share z=zone1:700,zone2:300"


class Features:
    """Stores pending jobs and their constraints."""

    def __init__(self) -> None:
        self.jobs: dict[int, tuple[str, str]] = {}
        self.written: list[tuple[tuple[int, ...], str]] = []
        self.asked = 0
        self.refuses = False

    def pending(self, job_ids: Collection[int]) -> Sequence[ConstrainedJob]:
        self.asked += 1
        return [ConstrainedJob(job_id, *self.jobs[job_id]) for job_id in job_ids if job_id in self.jobs]

    def write(self, job_ids: Sequence[int], features: str) -> None:
        if self.refuses:
            raise SlurmError("scontrol: Job is no longer pending execution")
        self.written.append((tuple(job_ids), features))
        for job_id in job_ids:
            self.jobs[job_id] = features, self.jobs[job_id][1]


class Site:
    """A slurm-gpuctld and a waiting job on two nodes."""

    def __init__(self, directory: Path, own: str = "") -> None:
        self.directory, self.clock, self.features = directory, Clock(), Features()
        self.own = own
        self.reported: list[AuditEvent] = []
        self.features.jobs[7] = (f"{own}&[zone1|zone2]" if own else "[zone1|zone2]"), "Resources"
        self.queue: list[CountedJob] = [make_job(7, JobPhase.PENDING, n_nodes=2, admin_comment=COMMENT)]
        self.in_charge = True
        self.mode, self.points = "enforce", {"zone1": 700, "zone2": 300}
        self.restart()

    def restart(self) -> None:
        acts = AuditReporter(self.clock, self.reported.extend)
        self.wait = ZoneWait(self.features, self.directory, WAIT_S, self.clock, acts)
        self.acts = acts

    @property
    def table(self) -> ZoneTable:
        return ZoneTable(
            self.mode, 1, {name: dict.fromkeys(JobScale, score) for name, score in self.points.items()}
        )

    def let_pass(self, seconds: float) -> None:
        """Run once per second, as the watcher does."""
        for _ in range(int(seconds)):
            self.wait.run(
                QueueView(answered=True, in_charge=self.in_charge, jobs=self.queue, zones=self.table)
            )
            self.clock.advance(1.0)

    @property
    def constraint(self) -> str:
        return self.features.jobs[7][0]

    def waits_because_of(self, reason: str) -> None:
        self.features.jobs[7] = self.constraint, reason


@pytest.fixture(params=["", "a100", "(a100|h100)"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    return Site(tmp_path, request.param)


def test_a_wait_ends_with_the_users_own_constraint(site: Site) -> None:
    site.let_pass(WAIT_S)
    assert site.features.written == []
    site.let_pass(2 * EVERY_S)
    assert site.features.written == [((7,), site.own.strip("()"))]
    site.let_pass(WAIT_S)
    assert len(site.features.written) == 1
    site.acts.close()
    act = site.reported[0]
    assert (act.action, act.subject, act.new) == ("own constraint restored", "jobs 7", site.own.strip("()"))
    assert act.old == (f"{site.own}&[zone1|zone2]" if site.own else "[zone1|zone2]")
    assert len(site.reported) == 1


def test_only_waiting_for_nodes_counts(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for reason in ("Priority", "Dependency", "JobHeldUser", "QOSGrpGRES", "BeginTime"):
        site.waits_because_of(reason)
        site.let_pass(WAIT_S)
    assert site.features.written == []
    site.waits_because_of("ReqNodeNotAvail, UnavailableNodes:n1")
    site.let_pass(WAIT_S + 2 * EVERY_S)
    assert site.constraint == ""


def test_a_restart_forgets_no_wait(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for _ in range(4):
        site.let_pass(WAIT_S / 4 + EVERY_S)
        site.restart()
    site.let_pass(2 * EVERY_S)
    assert site.constraint == ""


@pytest.mark.parametrize(
    "damaged", ['{"7": [1', '{"7": NaN}', '{"7": -1e9}', '{"7": 1e999}', "[" * 100_000, "\x00" * 9]
)
def test_a_damaged_file_is_ignored(tmp_path: Path, damaged: str) -> None:
    (tmp_path / FILE_NAME).write_text(damaged)
    site = Site(tmp_path)
    site.let_pass(WAIT_S)
    assert site.constraint == "[zone1|zone2]"
    site.let_pass(2 * EVERY_S)
    assert site.constraint == ""


def test_an_outage_of_slurmctld_does_not_count_as_waiting(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.let_pass(EVERY_S + 1)
    site.clock.advance(10 * WAIT_S)  # no other cycle runs
    site.let_pass(EVERY_S)
    assert site.constraint == "[zone1|zone2]"
    site.let_pass(WAIT_S)
    assert site.constraint == ""


def test_next_to_an_inactive_slurmctld_waits_are_counted_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.in_charge, site.mode = False, "advise"  # the site file of this host may differ
    site.let_pass(WAIT_S + 2 * EVERY_S)
    assert site.features.written == []
    site.in_charge, site.mode = True, "enforce"
    site.let_pass(EVERY_S)
    assert site.constraint == ""


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_no_job_waits_for_a_zone_once_zones_are_not_enforced(tmp_path: Path, mode: str) -> None:
    site = Site(tmp_path, "a100")
    site.mode = mode
    site.let_pass(1)
    assert site.constraint == "a100"


def test_without_zones_the_constraint_is_unchanged(tmp_path: Path) -> None:
    site = Site(tmp_path, "a100")
    site.wait.run(QueueView(answered=True, in_charge=True, jobs=site.queue))
    assert site.constraint == "a100"


def test_a_constraint_that_slurm_calls_wrong_is_taken_back_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, "a100")
    site.waits_because_of("BadConstraints")
    site.let_pass(1)
    assert site.constraint == "a100"


def test_alternatives_follow_the_scores_while_the_job_waits(tmp_path: Path) -> None:
    site = Site(tmp_path, "a100")
    site.points = {"zone1": 300, "zone2": 350}
    site.let_pass(60)
    assert site.features.written == []  # a small advantage changes nothing
    site.points = {"zone1": 300, "zone2": 700}
    site.let_pass(60)
    assert site.features.written == [((7,), "a100&[zone2|zone1]")]


@pytest.mark.parametrize(
    "features", ["", "a100", "[zone1]", "[zone1|zone3]", "(a|b)&c", "[zone1|zone2]&a100"]
)
def test_a_constraint_that_its_owner_has_changed_is_never_touched(tmp_path: Path, features: str) -> None:
    site = Site(tmp_path)
    site.features.jobs[7] = features, "Resources"
    site.let_pass(2 * WAIT_S)
    assert site.features.written == []


def test_a_job_without_a_zone_in_its_constraint_is_never_queried(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.queue = [
        make_job(7, JobPhase.PENDING, n_nodes=2, admin_comment="slurm-gpu/1 t=abc1 r=share by hand z=zone1:1")
    ]
    site.let_pass(60)
    assert site.features.asked == 0


def test_jobs_are_queried_every_twenty_seconds_and_equal_ones_changed_in_one_call(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    site.features.jobs[8] = site.features.jobs[9] = site.features.jobs[7]
    site.queue = [make_job(n, JobPhase.PENDING, n_nodes=2, admin_comment=COMMENT) for n in (7, 8, 9)]
    site.let_pass(WAIT_S + 2 * EVERY_S)
    assert site.features.asked <= (WAIT_S + 2 * EVERY_S) / EVERY_S + 1
    assert site.features.written == [((7, 8, 9), "")]


def test_a_refused_change_is_retried(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.features.refuses = True
    site.let_pass(WAIT_S + 2 * EVERY_S)
    site.features.refuses = False
    site.let_pass(EVERY_S)
    assert site.constraint == ""


def test_zones_are_read_from_the_comment_only_where_the_script_writes_them() -> None:
    assert written_zones(COMMENT) == {"zone1", "zone2"}
    assert written_zones("slurm-gpu/1 t=a k=i w=1 z=zone1:700") == {"zone1"}
    assert written_zones("slurm-gpu/1 t=a q=normal,high r=x z=zone1:700") == {"zone1"}
    assert written_zones("slurm-gpu/1 t=a r=x o=t4,a100") == {"t4", "a100"}
    assert written_zones("z=zone1:700") == frozenset()
    assert written_zones("slurm-gpu/1 t=a r=x by hand z=zone1:700") == frozenset()
