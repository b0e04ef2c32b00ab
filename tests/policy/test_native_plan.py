"""Plan the changes from existing to required native limits, and list the pending jobs that they strand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.native.difference import LimitChange, Owned, commands, difference, drift
from slurm_gpu.policy.native.plan import plan_native
from slurm_gpu.policy.native.required import SlurmdbdLimits, lua_only
from slurm_gpu.policy.native.stranded import stranded
from slurm_gpu.slurm.client import QueuedJob, SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.sacctmgr import Association, Entity, EntityKind, LimitField

from .limitstore import MemoryStore, account, fields, limit, of, user
from .nativepolicies import ASSOCIATIONS, TODAY, load, rules, wanted_limits
from .users import UIDS

ONE = rules("for: grads, per: user, limits: {jobs_running: 4}")
NONE = rules("for: grads, per: user, mode: observe, limits: {jobs_running: 4}")


def found(associations=ASSOCIATIONS):
    return SlurmdbdLimits(cluster="c", associations=associations).limits()


def owned(value: int, before: int | None = None) -> Owned:
    return Owned(of("vision"), limit("MaxJobs"), value, before, "r1")


def test_a_limit_set_by_hand_that_no_rule_names_is_kept() -> None:
    set_by_hand = (account("vision", GrpJobs=7, MaxJobs=4), account("other", MaxJobs=1))
    assert difference(wanted_limits(ONE, set_by_hand), found(set_by_hand), ()).steps == ()
    assert difference(wanted_limits(NONE, set_by_hand), found(set_by_hand), ()).steps == ()


def test_a_limit_that_no_rule_names_any_more_is_restored() -> None:
    now = (account("vision", MaxJobs=4),)
    (step,) = difference(wanted_limits(NONE, now), found(now), [owned(4, before=2)]).steps
    assert (step.old, step.new) == (4, 2)
    assert str(step) == "account vision: MaxJobs=2 (was 4; no rule requires it any more)"
    changed = (account("vision", MaxJobs=5),)
    left = difference(wanted_limits(NONE, changed), found(changed), [owned(4, before=2)])
    assert left.steps == ()
    assert "MaxJobs=4 (rule r1) was set to 5 by hand; no rule requires it any more" in left.remarks[0]


def test_the_original_value_is_remembered_over_every_apply() -> None:
    set_by_hand = (account("vision", MaxJobs=9),)
    first = difference(wanted_limits(ONE, set_by_hand), found(set_by_hand), ())
    assert [(one.value, one.before) for one in first.owned] == [(4, 9)]
    again = (account("vision", MaxJobs=4),)
    second = difference(wanted_limits(ONE, again), found(again), first.owned)
    assert (second.steps, second.owned) == ((), first.owned)


def test_changes_by_hand_are_drift_and_removed_entities_are_not() -> None:
    (one,) = drift(found((account("vision", MaxJobs=50),)), [owned(4)])
    assert str(one) == "account vision: MaxJobs=4 (rule r1) was set to 50 by hand"
    assert str(drift(found((account("vision"),)), [owned(4)])[0]).endswith("was removed by hand")
    assert drift(found((account("nlp"),)), [owned(4)]) == ()


def test_limits_of_an_unmanaged_entity_are_restored_and_then_left_alone() -> None:
    unmanaged = NONE.replace("[vision, nlp]", "[nlp]")
    now = (account("vision", MaxJobs=4, GrpJobs=9),)
    change = difference(wanted_limits(unmanaged, now), found(now), [owned(4)])
    assert [str(step) for step in change.steps] == [
        "account vision: MaxJobs=none (was 4; no rule requires it any more)"
    ]
    assert change.owned == ()


def test_a_looser_limit_of_a_user_is_reported() -> None:
    now = (account("vision"), user("alice", "vision", MaxJobs=50))
    (remark,) = difference(wanted_limits(ONE, now), found(now), ()).remarks
    assert remark.startswith("user alice in account vision has its own limit MaxJobs=50, set by hand")


def test_users_with_equal_changes_share_a_command() -> None:
    change = difference(
        wanted_limits(
            rules(
                "for: grads, per: user, limits: {gpus_running: 4}",
                "for: alice, per: job, limits: {gpus: 1}",
            ),
            (*ASSOCIATIONS, user("carol", "vision")),
        ),
        found((*ASSOCIATIONS, user("carol", "vision"))),
        (),
    )
    calls = [
        ([entity.user for entity in entities], values) for entities, values in commands(change.steps, ())
    ]
    assert calls == [
        (["bob", "carol"], {limit("GrpTRES_gpu"): 4}),
        (["alice"], {limit("GrpTRES_gpu"): 4, limit("MaxTRES_gpu"): 1}),
    ]


def test_a_qos_that_becomes_preempted_loses_its_own_preempt_afterwards() -> None:
    """In the other order, slurmdbd 22.05 reports a preemption loop."""
    normal, urgent = Entity(EntityKind.QOS, "normal"), Entity(EntityKind.QOS, "urgent")
    lent, wanted = LimitField("Preempt", "sg-loans"), LimitField("Preempt", "normal")
    steps = [LimitChange(normal, lent, 1, None), LimitChange(urgent, wanted, None, 1)]
    assert list(commands(steps, ())) == [([urgent], {wanted: 1}), ([normal], {lent: None})]


@pytest.mark.parametrize("lost", ["b", "c"])
def test_a_reversed_preemption_is_removed_before_the_new_one_is_added(lost: str) -> None:
    """slurmdbd refuses QOS that preempt each other, directly or through a third, at any time."""
    one, other, third = (Entity(EntityKind.QOS, name) for name in "abc")
    steps = [LimitChange(third if lost == "c" else other, LimitField("Preempt", "a"), 1, None)]
    steps.append(LimitChange(one, LimitField("Preempt", "b"), None, 1))
    if lost == "c":
        steps.append(LimitChange(other, LimitField("Preempt", "c"), None, 1))
    order = [(entities[0].name, set(values.values())) for entities, values in commands(steps, ())]
    assert order[0] == (lost, {None})
    undo = commands([step.back for step in steps], ())
    back = [(entities[0].name, set(values.values())) for entities, values in undo]
    assert back[-1] == (lost, {1})


_AMOUNTS = st.dictionaries(
    st.sampled_from([limit(name) for name in ("MaxJobs", "GrpTRES_gpu", "MaxWall", "GrpJobs")]),
    st.integers(0, 5),
)


def test_accounts_with_equal_changes_share_a_command_as_do_their_users() -> None:
    """sacctmgr changes each named user in each named account, so user pi in account a needs another call."""
    pairs = [("a", ""), ("b", ""), ("a", "dan"), ("a", "pi"), ("b", "eve"), ("a", "head"), ("b", "head")]
    changed = [Association(account=name, user=who) for name, who in pairs]
    others = [Association(account="b", user="pi"), Association(account="c", user="head")]
    steps = [LimitChange(one.entity, limit("MaxJobs"), None, 4) for one in changed]
    calls = [[(one.name, one.user) for one in those] for those, _ in commands(steps, changed + others)]
    assert calls == [
        [("a", ""), ("b", "")],
        [("a", "dan"), ("a", "head"), ("b", "eve"), ("b", "head")],
        [("a", "pi")],
    ]


@given(_AMOUNTS, _AMOUNTS, _AMOUNTS, st.lists(st.sampled_from(["jobs_running", "gpus_running"]), unique=True))
def test_the_steps_reach_the_plan_and_can_be_undone(vision, alice, other, keys) -> None:
    start = (
        Association(account="vision", limits=vision),
        Association(account="vision", user="alice", limits=alice),
        Association(account="nlp", limits=vision),
        Association(account="nlp", user="bob", limits=alice),
        Association(account="nlp", user="carol"),
        Association(account="other", limits=other),
        Association(account="other", user="carol", limits=other),
    )
    lines = [f"for: grads, per: user, limits: {{{key}: 3}}" for key in keys]
    text = rules(*lines) if lines else NONE
    store = MemoryStore(start)
    change = difference(wanted_limits(text, start), found(start), ())
    for entities, values in commands(change.steps, start):
        store.set_limits("c", entities, values)
    after = store.associations("c")
    again = difference(wanted_limits(text, after), found(after), change.owned)
    assert (again.steps, again.owned) == ((), change.owned)
    assert found(after)[of("other")] == other
    undone = difference(wanted_limits(NONE, after), found(after), change.owned)
    for entities, values in commands(undone.steps, after):
        store.set_limits("c", entities, values)
    assert found(store.associations("c")) == found(start)


# Queued jobs.


def job(job_id: int, user_: str = "alice", account_: str = "vision", **more) -> QueuedJob:
    given_ = {
        "state": "PENDING",
        "qos": "normal",
        "partition": "gpu",
        "time_limit_s": 3600,
        "tres_requested": {"cpu": 8.0, "mem": 4096.0, "node": 1.0, "gres/gpu": 4.0},
    } | more
    return QueuedJob(
        job_id=job_id,
        array_job_id=None,
        array_task=None,
        n_tasks=1,
        het_job_id=None,
        name="j",
        user=user_,
        uid=1,
        account=account_,
        reason="",
        restarts=0,
        submit_s=1,
        eligible_s=1,
        start_s=None,
        end_s=None,
        n_nodes=1,
        nodes=[],
        tres_allocated={},
        gpu_index={},
        gres_per_node="",
        features="",
        admin_comment="",
        **given_,
    )


def test_queued_jobs_that_can_no_longer_start_are_listed() -> None:
    now = (account("vision", MaxWall=120), user("alice", "vision"), user("bob", "vision"), account("nlp"))
    wanted = wanted_limits(
        rules(
            "for: grads, per: job, limits: {gpus: 3, walltime: 3h}",
            "for: alice, per: job, limits: {walltime: 30m}",
        ),
        now,
    )
    steps = difference(wanted, found(now), ()).steps
    queue = [
        job(1),
        job(2, tres_requested={"gres/gpu": 3.0}, time_limit_s=1800),
        job(3, state="RUNNING"),
        job(4, "bob", time_limit_s=4 * 3600),  # this job could not start even before the change
        job(5, account_="nlp"),
        job(6, "bob", tres_requested={"cpu": 1.0}, time_limit_s=None),
    ]
    assert [str(one) for one in stranded(queue, found(now), steps)] == [
        "job 1 of alice requests 01:00:00: user alice in account vision, MaxWall=00:30:00",
        "job 1 of alice requests 4 gres/gpu: account vision, MaxTRES=gres/gpu=3",
    ]


def test_a_limit_of_zero_jobs_strands_all_jobs() -> None:
    (one,) = stranded(
        [job(1)],
        found(),
        difference(
            wanted_limits(rules("for: grads, per: group, limits: {jobs_running: 0}")), found(), ()
        ).steps,
    )
    assert str(one) == "job 1 of alice could not run: account vision, GrpJobs=0"


def test_a_job_in_several_qos_is_listed_only_if_it_can_start_in_none() -> None:
    found_now = {of("qos:normal"): {}, of("qos:high"): {}}
    limit_ = LimitField("MaxTRES", "gres/gpu")
    steps = [LimitChange(of("qos:high"), limit_, None, 2, "r1")]
    assert not stranded([job(1, qos="normal,high")], found_now, steps)
    steps.append(LimitChange(of("qos:normal"), limit_, None, 3, "r1"))
    assert [str(one) for one in stranded([job(1, qos="normal,high")], found_now, steps)] == [
        "job 1 of alice requests 4 gres/gpu: QOS high, MaxTRES=gres/gpu=2",
        "job 1 of alice requests 4 gres/gpu: QOS normal, MaxTRES=gres/gpu=3",
    ]
    mine = LimitField("QOS", "high")
    taken = [LimitChange(of("vision"), mine, 1, None, "r1")]
    both = {of("vision"): {mine: 1, LimitField("QOS", "normal"): 1}}
    assert not stranded([job(1, qos="normal,high")], both, taken)
    only = {of("vision"): {mine: 1}}
    assert len(stranded([job(1, qos="other,high")], only, taken)) == 1


# Clusters without native limits.


def settings(**raw: str) -> SlurmSettings:
    return SlurmSettings(
        cluster="c", version="22.05.8", slurm_user="slurm", slurm_user_uid=1, conf_path="/x", raw=raw
    )


SLURMDBD = {"AccountingStorageType": "accounting_storage/slurmdbd"}


def test_without_slurmdbd_limits_on_running_jobs_are_reported_as_not_enforced() -> None:
    text = rules("for: grads, per: user, limits: {gpus_running: 4, gpus_total: 8}")
    policy, names = load(text)
    store = MemoryStore(())
    plan = plan_native(policy, names, settings(), store, (), list, dict, TODAY, UIDS.get)
    assert plan.absent is not None
    assert "only job_submit.lua enforces the policy" in plan.absent
    assert [(gap.rule, gap.key) for gap in plan.unenforced] == [("r1", "gpus_running")]
    known = plan_native(policy, names, settings(), store, [owned(4)], list, dict, TODAY, UIDS.get)
    assert known.difference.owned == (owned(4),)  # owned limits are kept until slurmdbd is configured again
    assert lua_only(policy, TODAY, "x") != ()
    assert not has_slurmdbd(settings())


def test_a_policy_that_manages_nothing_changes_nothing() -> None:
    policy, names = load(ONE.replace("manages: {accounts: [vision, nlp], qos: [sg-*]}\n", ""))
    plan = plan_native(
        policy, names, settings(**SLURMDBD), MemoryStore(ASSOCIATIONS), (), list, dict, TODAY, UIDS.get
    )
    assert plan.difference.steps == ()
    assert [(gap.rule, gap.key) for gap in plan.unenforced] == [("r1", "jobs_running")]


def test_limits_that_slurmctld_does_not_enforce_are_reported() -> None:
    policy, names = load(ONE)
    store = MemoryStore(ASSOCIATIONS)
    for enforced, n_remarks in (("none", 1), ("associations,limits,qos", 0), ("safe", 0)):
        raw = settings(**SLURMDBD, AccountingStorageEnforce=enforced)
        plan = plan_native(policy, names, raw, store, (), list, dict, TODAY, UIDS.get)
        assert len(plan.difference.remarks) == n_remarks
        assert len(plan.difference.steps) == 1


def test_limits_are_parsed_and_shown() -> None:
    assert LimitField("MaxTRES", "mem").show(64) == "MaxTRES=mem=64M"
    assert fields(MaxWall=60) == {LimitField("MaxWall"): 60}
