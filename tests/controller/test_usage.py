"""Use is summed by user, by user in a group, and by group."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.controller.queue.usage import Subject, usage_of
from slurm_gpu.policy.lua.installed import GroupInForce
from slurm_gpu.slurm.queue import JobPhase

from .fakes import make_job

FACTS = CountingFacts(shards_per_gpu=4)
GRADS = GroupInForce("grads", accounts=frozenset({"vision", "nlp"}))
BOB = GroupInForce("bob's", uids=frozenset({1002}))
LONG = GroupInForce("long", partitions=frozenset({"long"}), qos=frozenset({"normal"}))
NOBODY = GroupInForce("nobody", member_uids=frozenset())


def test_each_job_counts_for_its_user_and_in_each_group_that_it_is_in() -> None:
    jobs = [
        make_job(1),
        make_job(2, phase=JobPhase.PENDING, account="NLP", partition="gpu,long", qos="Normal"),
        make_job(3, user="bob", uid=1002, account="other"),
        make_job(4, phase=JobPhase.ENDED),
    ]
    usage = usage_of(jobs, [GRADS, BOB, LONG, NOBODY], FACTS)
    assert set(usage.by_subject) == {
        Subject("alice", None),
        Subject("alice", "grads"),
        Subject(None, "grads"),
        Subject("alice", "long"),
        Subject(None, "long"),
        Subject("bob", None),
        Subject("bob", "bob's"),
        Subject(None, "bob's"),
    }
    alice = usage.of("alice", "grads")
    assert (alice.running.mgpu, alice.pending.mgpu) == (2000, 2000)
    assert usage.of("alice", "long").running.jobs == 0
    assert usage.of("carol", "grads").running.jobs == 0
    assert usage.uids == {"alice": 1001, "bob": 1002}


def test_jobs_count_by_account_in_a_group_with_a_rule_per_account() -> None:
    jobs = [make_job(1), make_job(2, user="bob", uid=1002), make_job(3, account="NLP", uid=1002)]
    usage = usage_of(jobs, [replace(GRADS, by_account=True), BOB], FACTS)
    assert usage.of(None, "grads", "vision").running.jobs == 2
    assert usage.of(None, "grads", "nlp").running.jobs == 1
    assert {one.account for one in usage.by_subject if one.group == "bob's"} == {None}


def test_a_job_that_waits_in_several_qos_counts_in_the_groups_of_each() -> None:
    jobs = [make_job(1, phase=JobPhase.PENDING, qos="high,Normal", partition="long")]
    assert usage_of(jobs, [LONG], FACTS).of("alice", "long").pending.jobs == 1
    jobs = [make_job(1, phase=JobPhase.PENDING, qos="high,abnormal", partition="long")]
    assert usage_of(jobs, [LONG], FACTS).of("alice", "long").pending.jobs == 0


def test_every_task_of_an_array_that_waits_is_a_job() -> None:
    use = usage_of([make_job(phase=JobPhase.PENDING, n_tasks=5)], [GRADS], FACTS).of("alice", "grads").pending
    assert (use.jobs, use.mgpu, use.cpus, use.mib, use.nodes) == (5, 10_000, 40, 5 * 65536, 5)


def test_the_last_pending_job_is_known_per_user() -> None:
    jobs = [make_job(number, phase=JobPhase.PENDING) for number in (7, 12, 9)]
    jobs += [make_job(20), make_job(21, phase=JobPhase.ENDED), make_job(30, user="bob", uid=1002)]
    usage = usage_of(jobs, [GRADS], FACTS)
    assert usage.of("alice", "grads").last_pending == 12
    assert usage.of("alice", None).last_pending == 12
    assert usage.of("bob", "grads").last_pending is None
    assert usage.of(None, "grads").last_pending is None
