"""The audit tells each urgent job that started once: why, whom it overtook, and what was requeued for it."""

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
    """Slurm's accounting and queue, slurm-gpudbd, and who tells one of the other."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rows: list[AccountingRun] = []
        self.jobs: list[CountedJob] = []
        self.reasons: dict[str, str] = {"u1": WHY, "u2": "an outage"}
        self.audit: dict[str, AuditEvent] = {}
        self.tells = 0
        self.is_away = self.slurm_is_away = False
        self.tells_acts = True
        self.asked = 0
        """How often accounting was."""
        self.start()

    def start(self) -> None:
        """Another slurm-gpuctld, which remembers nothing of the last."""
        self.teller = UrgentAudit("lab", self, lambda use: use(self), self.clock)

    def of_qos(self, qos: str, since_s: int) -> Sequence[AccountingRun]:
        self.asked += 1
        if self.slurm_is_away:
            raise SlurmError("slurmdbd does not answer")
        return [row for row in self.rows if row.qos == qos]

    def preempted(self, since_s: int, until_s: int) -> Sequence[AccountingRun]:
        return [
            row for row in self.rows if row.state == "PREEMPTED" and since_s <= (row.end_s or 0) <= until_s
        ]

    def decisions(self, token: str) -> Sequence[Decision]:
        if self.is_away:
            raise DatabaseError("nobody is there")
        if token not in self.reasons:
            return ()
        job = {"urgent": self.reasons[token]}
        return (Decision(id="d", at_s=0, host="h", asked="submit", verdict="allow", uid=1, job=job),)

    def tell_acts(self, acts: Sequence[AuditEvent]) -> None:
        if self.is_away:
            raise DatabaseError("nobody is there")
        self.tells += len(acts)
        for act in acts:
            self.audit.setdefault(act.id, act)

    def acts(self, limit: int) -> Sequence[AuditEvent]:
        if self.is_away:
            raise DatabaseError("nobody is there")
        return list(self.audit.values()) if self.tells_acts else []

    def runs(self, job_id: int, token: str = "u1", **changes: object) -> None:
        """It is in accounting, and in the queue."""
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

    def turn(self, after_s: float = 0.0) -> list[AuditEvent]:
        self.clock.advance(after_s)
        self.teller.run(
            QueueView(
                answered=True, in_charge=True, jobs=self.jobs, policy=PolicyInForce(urgent_qos="urgent")
            )
        )
        return list(self.audit.values())


@pytest.fixture
def world() -> World:
    return World()


def test_all_that_is_known_is_told_once_things_have_settled(world: World):
    for job_id in (1, 2):
        world.waits(job_id)
    world.waits(3, waited_s=10)  # it came later
    world.waits(4, partition="other")
    world.waits(7, "urgent", waited_s=60)
    world.turn()
    world.gave_way(9, user="bob")
    world.gave_way(10, nodes="n2")  # for somebody else
    world.runs(7)
    assert world.turn() == []
    (act,) = world.turn(after_s=60)
    assert (act.act, act.at_s, act.subject, act.why) == (ACT, NOON_S, "job 7 of alice", WHY)
    assert act.evidence["overtook"] == {"jobs": 2, "job_ids": (1, 2)}
    assert act.evidence["preempted"] == [{"job_id": 9, "user": "bob", "end_s": NOON_S - 5}]
    assert act.new == "overtook 2 jobs; requeued for it: 9"
    for _ in range(3):
        world.turn(after_s=700)
    assert world.tells == 1


def test_one_that_has_ended_by_then_is_told_as_soon(world: World):
    world.waits(1)
    world.waits(7, "urgent", waited_s=60)
    world.turn(after_s=1)
    world.runs(7)
    world.turn(after_s=1)
    world.rows[0] = world.rows[0]._replace(
        state="COMPLETED", end_s=NOON_S + 6, admin_comment="slurm-gpu/1 t=u1"
    )
    world.jobs = [job for job in world.jobs if job.job_id != 7]
    for _ in range(16):
        told = world.turn(after_s=1)
    assert [act.new for act in told] == ["overtook 1 job; requeued for it: none"]
    for _ in range(600):
        world.turn(after_s=1)
    assert world.asked <= 5


def test_what_started_and_ended_while_nobody_looked_is_told_later_and_whom_it_overtook_is_not_known(
    world: World,
):
    world.runs(7)
    world.rows[0] = world.rows[0]._replace(
        state="COMPLETED", end_s=NOON_S + 10, admin_comment="slurm-gpu/1 t=u1 r=size"
    )
    world.jobs.clear()
    world.clock.advance(86400)
    (act,) = world.turn()
    assert act.why == WHY
    assert act.evidence["overtook"] is None
    assert act.new == "overtook unknown jobs; requeued for it: none"


@pytest.mark.parametrize(("tells_acts", "tells"), [(True, 1), (False, 2)])
def test_one_that_was_restarted_tells_no_act_twice_and_where_it_does_it_is_the_same(
    world: World, tells_acts: bool, tells: int
):
    world.tells_acts = tells_acts  # there may have been more acts since than are shown
    world.runs(7)
    world.turn(after_s=60)
    world.start()
    assert len(world.turn(after_s=60)) == 1
    assert world.tells == tells


def test_a_requeued_job_that_starts_again_is_told_again(world: World):
    world.runs(7)
    world.turn(after_s=60)
    world.rows[0] = world.rows[0]._replace(state="REQUEUED", end_s=NOON_S + 60)
    world.runs(7)
    assert [act.at_s for act in world.turn(after_s=60)] == [NOON_S, NOON_S + 60]


def test_what_gave_way_is_told_of_one_job_alone(world: World):
    world.gave_way(9, nodes="n[1-2]")
    world.runs(7)
    world.clock.advance(1)
    world.runs(8, "u2", nodes="n2")
    first, second = world.turn(after_s=60)
    assert [one["job_id"] for one in first.evidence["preempted"]] == [9]
    assert second.evidence["preempted"] == []


def test_the_reason_is_waited_for_but_not_for_ever(world: World):
    world.reasons.clear()
    world.runs(7)
    assert world.turn(after_s=60) == []
    (act,) = world.turn(after_s=300)
    assert act.why == "no reason is known"


@pytest.mark.parametrize("away", ["is_away", "slurm_is_away"])
def test_nothing_is_lost_while_slurm_gpudbd_or_slurmdbd_is_away(
    world: World, away: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    setattr(world, away, True)
    world.runs(7)
    for _ in range(3):
        assert world.turn(after_s=90) == []
    setattr(world, away, False)
    assert len(world.turn(after_s=90)) == 1
    assert caplog.text.count("urgent jobs are missing in the audit") == 1
    assert caplog.text.count("all urgent jobs are in the audit again") == 1


def test_without_urgent_jobs_in_the_policy_nobody_is_asked(world: World):
    world.slurm_is_away = True
    world.teller.run(QueueView(answered=True, in_charge=True, jobs=world.jobs))
    world.clock.advance(3600)
    world.teller.run(QueueView(answered=True, in_charge=True, jobs=world.jobs))
    assert not world.teller._outage.lasts


def test_one_whose_reason_is_not_known_does_not_have_slurmdbd_asked_each_second(world: World):
    world.waits(7, "urgent", waited_s=60)
    world.turn()
    world.runs(7, token="unknown")
    for _ in range(600):
        world.turn(after_s=1)
    assert [act.why for act in world.audit.values()] == ["no reason is known"]
    assert world.asked <= 10


def test_nodes_that_are_no_list_keep_no_other_from_being_told(world: World):
    world.waits(7, "urgent", waited_s=60)
    world.turn()
    world.gave_way(9, nodes="n[1-")
    world.runs(7)
    (act,) = world.turn(after_s=60)
    assert act.evidence["preempted"] == []
