"""Each start of an urgent job is audited once, with its reason and the overtaken and requeued jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.urgent_audit import ACT, UrgentAudit
from slurm_gpu.errors import DatabaseError, SlurmError
from slurm_gpu.policy.lua.installed import PolicyInForce
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.queue import CountedJob, JobPhase
from slurm_gpu.wire.answers.runs import AuditEvent, Decision
from tests.controller.fakes import NOON_S, Clock, make_job, make_row

WHY = "a deadline"


class World:
    """Slurm's accounting and queue, slurm-gpudbd, and the urgent audit between them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rows: list[AccountingRun] = []
        self.jobs: list[CountedJob] = []
        self.reasons: dict[str, str] = {"u1": WHY, "u2": "an outage"}
        self.audit: dict[str, AuditEvent] = {}
        self.reports = 0
        self.is_down = self.slurm_is_down = False
        self.lists_acts = True
        self.asked = 0
        """The number of queries to accounting."""
        self.start()

    def start(self) -> None:
        """Start another slurm-gpuctld without any state."""
        self.audit_duty = UrgentAudit("lab", self, lambda use: use(self), self.clock)

    def of_qos(self, qos: str, since_s: int) -> Sequence[AccountingRun]:
        self.asked += 1
        if self.slurm_is_down:
            raise SlurmError("slurmdbd does not answer")
        return [row for row in self.rows if row.qos == qos]

    def preempted(self, since_s: int, until_s: int) -> Sequence[AccountingRun]:
        return [
            row for row in self.rows if row.state == "PREEMPTED" and since_s <= (row.end_s or 0) <= until_s
        ]

    def decisions(self, token: str) -> Sequence[Decision]:
        if self.is_down:
            raise DatabaseError("no answer")
        if token not in self.reasons:
            return ()
        job = {"urgent": self.reasons[token]}
        return (Decision(id="d", at_s=0, host="h", operation="submit", verdict="allow", uid=1, job=job),)

    def send_audit_events(self, acts: Sequence[AuditEvent]) -> None:
        if self.is_down:
            raise DatabaseError("no answer")
        self.reports += len(acts)
        for act in acts:
            self.audit.setdefault(act.id, act)

    def acts(self, limit: int) -> Sequence[AuditEvent]:
        if self.is_down:
            raise DatabaseError("no answer")
        return list(self.audit.values()) if self.lists_acts else []

    def runs(self, job_id: int, token: str = "u1", **changes: object) -> None:
        """Add a start to accounting and to the queue."""
        start_s = int(self.clock.wall())
        submit_s = start_s - 60
        comment = f"slurm-gpu/1 t={token}"
        self.rows.append(
            make_row(job_id, start_s, None, qos="urgent", state="RUNNING", submit_s=submit_s, **changes)
        )
        self.jobs = [job for job in self.jobs if job.job_id != job_id]
        self.jobs.append(
            make_job(job_id, qos="urgent", submit_s=submit_s, start_s=start_s, admin_comment=comment)
        )

    def waits(self, job_id: int, qos: str = "normal", waited_s: int = 3600, **changes: object) -> None:
        submit_s = int(self.clock.wall()) - waited_s
        self.jobs.append(
            make_job(job_id, JobPhase.PENDING, qos=qos, submit_s=submit_s, start_s=None, nodes="", **changes)
        )

    def gave_way(self, job_id: int, ago_s: int = 5, nodes: str = "n1", **changes: object) -> None:
        end_s = int(self.clock.wall()) - ago_s
        self.rows.append(make_row(job_id, end_s - 600, end_s, state="PREEMPTED", nodes=nodes, **changes))

    def run_cycle(self, after_s: float = 0.0) -> list[AuditEvent]:
        self.clock.advance(after_s)
        self.audit_duty.run(
            QueueView(
                answered=True, in_charge=True, jobs=self.jobs, policy=PolicyInForce(urgent_qos="urgent")
            )
        )
        return list(self.audit.values())


@pytest.fixture
def world() -> World:
    return World()


def test_an_urgent_start_is_reported_completely_after_it_settled(world: World):
    for job_id in (1, 2):
        world.waits(job_id)
    world.waits(3, waited_s=10)  # submitted later
    world.waits(4, partition="other")
    world.waits(7, "urgent", waited_s=60)
    world.run_cycle()
    world.gave_way(9, user="bob")
    world.gave_way(10, nodes="n2")  # for another job
    world.runs(7)
    assert world.run_cycle() == []
    (act,) = world.run_cycle(after_s=60)
    assert (act.action, act.at_s, act.subject, act.why) == (ACT, NOON_S, "job 7 of alice", WHY)
    assert act.evidence["overtook"] == {"jobs": 2, "job_ids": (1, 2)}
    assert act.evidence["preempted"] == [{"job_id": 9, "user": "bob", "end_s": NOON_S - 5}]
    assert act.new == "overtook 2 jobs; requeued for it: 9"
    for _ in range(3):
        world.run_cycle(after_s=700)
    assert world.reports == 1


def test_a_start_that_ended_is_reported_as_soon(world: World):
    world.waits(1)
    world.waits(7, "urgent", waited_s=60)
    world.run_cycle(after_s=1)
    world.runs(7)
    world.run_cycle(after_s=1)
    world.rows[0] = world.rows[0]._replace(
        state="COMPLETED", end_s=NOON_S + 6, admin_comment="slurm-gpu/1 t=u1"
    )
    world.jobs = [job for job in world.jobs if job.job_id != 7]
    for _ in range(16):
        reported = world.run_cycle(after_s=1)
    assert [act.new for act in reported] == ["overtook 1 job; requeued for it: none"]
    for _ in range(600):
        world.run_cycle(after_s=1)
    assert world.asked <= 5


def test_an_unobserved_start_is_reported_later_with_unknown_overtaken_jobs(
    world: World,
):
    world.runs(7)
    world.rows[0] = world.rows[0]._replace(
        state="COMPLETED", end_s=NOON_S + 10, admin_comment="slurm-gpu/1 t=u1 r=size"
    )
    world.jobs.clear()
    world.clock.advance(86400)
    (act,) = world.run_cycle()
    assert act.why == WHY
    assert act.evidence["overtook"] is None
    assert act.new == "overtook an unknown number of jobs; requeued for it: none"


@pytest.mark.parametrize(("lists_acts", "reports"), [(True, 1), (False, 2)])
def test_a_restarted_process_reports_no_event_twice_or_the_same_one(
    world: World, lists_acts: bool, reports: int
):
    world.lists_acts = lists_acts  # slurm-gpudbd may have more recent events than it lists
    world.runs(7)
    world.run_cycle(after_s=60)
    world.start()
    assert len(world.run_cycle(after_s=60)) == 1
    assert world.reports == reports


def test_a_requeued_job_is_reported_again(world: World):
    world.runs(7)
    world.run_cycle(after_s=60)
    world.rows[0] = world.rows[0]._replace(state="REQUEUED", end_s=NOON_S + 60)
    world.runs(7)
    assert [act.at_s for act in world.run_cycle(after_s=60)] == [NOON_S, NOON_S + 60]


def test_a_preempted_job_is_attributed_to_one_job(world: World):
    world.gave_way(9, nodes="n[1-2]")
    world.runs(7)
    world.clock.advance(1)
    world.runs(8, "u2", nodes="n2")
    first, second = world.run_cycle(after_s=60)
    assert [one["job_id"] for one in first.evidence["preempted"]] == [9]
    assert second.evidence["preempted"] == []


def test_an_audit_event_waits_for_its_reason_for_a_limited_time(world: World):
    world.reasons.clear()
    world.runs(7)
    assert world.run_cycle(after_s=60) == []
    (act,) = world.run_cycle(after_s=300)
    assert act.why == "no reason is known"


@pytest.mark.parametrize("down", ["is_down", "slurm_is_down"])
def test_nothing_is_lost_during_an_outage_of_slurm_gpudbd_or_slurmdbd(
    world: World, down: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    setattr(world, down, True)
    world.runs(7)
    for _ in range(3):
        assert world.run_cycle(after_s=90) == []
    setattr(world, down, False)
    assert len(world.run_cycle(after_s=90)) == 1
    assert caplog.text.count("urgent jobs are missing from the audit") == 1
    assert caplog.text.count("all urgent jobs are in the audit again") == 1


def test_without_urgent_jobs_in_the_policy_nothing_is_queried(world: World):
    world.slurm_is_down = True
    world.audit_duty.run(QueueView(answered=True, in_charge=True, jobs=world.jobs))
    world.clock.advance(3600)
    world.audit_duty.run(QueueView(answered=True, in_charge=True, jobs=world.jobs))
    assert not world.audit_duty._outage.lasts


def test_an_unknown_reason_does_not_query_slurmdbd_every_second(world: World):
    world.waits(7, "urgent", waited_s=60)
    world.run_cycle()
    world.runs(7, token="unknown")
    for _ in range(600):
        world.run_cycle(after_s=1)
    assert [act.why for act in world.audit.values()] == ["no reason is known"]
    assert world.asked <= 10


def test_an_invalid_node_list_blocks_no_other_report(world: World):
    world.waits(7, "urgent", waited_s=60)
    world.run_cycle()
    world.gave_way(9, nodes="n[1-")
    world.runs(7)
    (act,) = world.run_cycle(after_s=60)
    assert act.evidence["preempted"] == []
