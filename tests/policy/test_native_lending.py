"""What Slurm itself is told of owners: sums by QOS, who takes back what is lent, and who may borrow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import SlurmRefusalError
from slurm_gpu.policy.apply import Force
from slurm_gpu.policy.journal import ApplyJournal, Entry
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.native.plan import NativePlan, plan_native
from slurm_gpu.policy.native.preemption import broken_promises, return_time_s
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.sacctmgr import Association, Entity, LimitField

from .limitstore import MemoryStore, account, qos, user
from .nativepolicies import load
from .users import UIDS

POLICY = """\
version: 1
manages: {qos: [sg-*, normal], accounts: [vision, nlp]}
groups: {vision: {accounts: [vision]}}
owners: {vision: {gpus: 12, lend_in: sg-loans, return_within: 10m}}
"""
ASSOCIATIONS = (
    Association(account="root"),
    user("root", "root"),
    account("vision"),
    user("alice", "vision"),
    account("nlp"),
    user("bob", "nlp"),
)
CONF = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageEnforce": "associations,limits,qos",
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "JobRequeue": "1",
    "KillWait": "30 sec",
}


def settings(**conf: str) -> SlurmSettings:
    raw = CONF | conf
    return SlurmSettings(
        cluster="c", version="22.05.8", slurm_user="slurm", slurm_user_uid=64030, conf_path="/x", raw=raw
    )


def plan(
    store: MemoryStore, text: str = POLICY, owned: Sequence[object] = (), n_gpus: int = 16, **conf: str
) -> NativePlan:
    policy, names = load(text)
    return plan_native(
        policy, names, settings(**conf), store, owned, lambda: (), dt.date(2026, 11, 21), UIDS.get, n_gpus
    )  # type: ignore[arg-type]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ASSOCIATIONS, [qos("normal")])


def steps(native: NativePlan) -> list[str]:
    return [f"{step.entity}: {step.limit.show(step.new)}" for step in native.difference.steps]


def test_owners_others_and_loans_have_a_qos_each(store: MemoryStore) -> None:
    native = plan(store)
    assert list(map(str, native.new_qos)) == [
        "QOS sg-loans: to be made (idle GPUs of vision)",
        "QOS sg-vision: to be made (GPUs of vision)",
    ]
    assert sorted(steps(native)) == [
        "QOS normal: Flags+=DenyOnLimit",
        "QOS normal: GrpTRES=gres/gpu=4",
        "QOS normal: Preempt+=sg-loans",
        "QOS sg-vision: Flags+=DenyOnLimit",
        "QOS sg-vision: GrpTRES=gres/gpu=12",
        "QOS sg-vision: Preempt+=sg-loans",
        "account nlp: QOS+=sg-loans",
        "account vision: QOS+=sg-loans",
        "account vision: QOS+=sg-vision",
    ]
    assert native.difference.remarks == ()


def test_what_is_applied_is_taken_back_but_for_the_qos_themselves(store: MemoryStore, tmp_path) -> None:
    before = store.associations("c")
    force = Force(ApplyJournal(tmp_path), store, "")
    native = plan(store)
    change = native.difference
    entry = force.apply(
        Entry(cluster="c", policy="p", steps=change.steps, owned=change.owned), None, native.new_qos
    )
    again = plan(store, owned=entry.owned)
    assert (again.new_qos, again.difference.steps, again.drift) == ((), (), ())
    store.by_hand("qos:sg-loans", GraceTime=30)
    store.by_hand("qos:normal", **{"Preempt_sg-loans": None})
    changed = plan(store, owned=entry.owned)
    assert [str(one) for one in changed.drift] == [
        "QOS normal: Preempt sg-loans (rule owners) was taken away by hand",
        "QOS sg-loans: GraceTime=0 (rule owners.vision) was set to 30 by hand",
    ]
    store.by_hand("qos:sg-loans", GraceTime=0)
    store.by_hand("qos:normal", **{"Preempt_sg-loans": 1})
    assert force.rollback() is not None
    assert store.associations("c") == before
    assert [one.name for one in store.qos()] == ["normal", "sg-loans", "sg-vision"]
    assert all(limit.name == "GraceTime" for one in store.qos() for limit in one.limits)


class Strict(MemoryStore):
    """Takes no QOS that preempt each other, as slurmdbd does not."""

    def set_limits(
        self, cluster: str, entities: Sequence[Entity], values: Mapping[LimitField, int | None]
    ) -> None:
        super().set_limits(cluster, entities, values)
        preempted = {
            one.name: {limit.item for limit in one.limits if limit.name == "Preempt"} for one in self.qos()
        }
        for name in preempted:
            ahead, seen = set(preempted[name]), set[str]()
            while ahead:
                seen |= ahead
                ahead = set().union(*(preempted[one] for one in ahead)) - seen
            if name in seen:
                raise SlurmRefusalError("QOS Preemption loop detected")


def test_what_is_lent_in_another_qos_may_be_lent_in_the_first_again(tmp_path) -> None:
    store = Strict(ASSOCIATIONS, [qos("normal")])
    force, owned = Force(ApplyJournal(tmp_path), store, ""), ()
    other = POLICY.replace("sg-loans", "sg-spare")
    for text in (POLICY, other, POLICY, other):
        native = plan(store, text, owned)
        owned = native.difference.owned
        force.apply(
            Entry(cluster="c", policy="p", steps=native.difference.steps, owned=owned), None, native.new_qos
        )
        assert plan(store, text, owned).difference.steps == ()
    for _ in range(3):
        assert force.rollback() is not None


def test_an_owner_that_is_gone_gives_all_back(store: MemoryStore, tmp_path) -> None:
    force, native = Force(ApplyJournal(tmp_path), store, ""), plan(store)
    owned = native.difference.owned
    force.apply(
        Entry(cluster="c", policy="p", steps=native.difference.steps, owned=owned), None, native.new_qos
    )
    without = plan(
        store,
        POLICY.replace("owners: {vision:", "bundles: {b:").replace(
            "{gpus: 12, lend_in: sg-loans, return_within: 10m}", "{gpus: 1, cpus: 8}"
        ),
        owned,
    )
    assert "QOS normal: GrpTRES=gres/gpu=none" in steps(without)
    assert "account nlp: QOS-=sg-loans" in steps(without)


def test_a_rule_that_is_tighter_stays_so(store: MemoryStore) -> None:
    text = POLICY.replace("groups: {", "groups: {own: {qos: [sg-vision]}, ") + (
        "rules: [{id: few, for: own, per: group, mode: enforce, why: x, limits: {gpus_running: 10}}]\n"
    )
    store.add_qos("sg-vision", "", requeued=False)
    assert "QOS sg-vision: GrpTRES=gres/gpu=10" in steps(plan(store, text))


def test_rules_for_loans_hold_from_the_apply_on_that_makes_their_qos(store: MemoryStore, tmp_path) -> None:
    text = POLICY.replace("groups: {", "groups: {loans: {qos: [sg-loans]}, ") + (
        "rules: [{id: share, for: loans, per: user, mode: enforce, why: x, limits: {gpus_total: 10}}]\n"
    )
    native = plan(store, text)
    assert "QOS sg-loans: MaxTRESPU=gres/gpu=10" in steps(native)
    assert native.gaps == ()
    change = native.difference
    Force(ApplyJournal(tmp_path), store, "").apply(
        Entry(cluster="c", policy="p", steps=change.steps, owned=change.owned), None, native.new_qos
    )
    assert steps(plan(store, text, change.owned)) == []


@pytest.mark.parametrize(
    ("conf", "remark"),
    [
        ({"PreemptType": "preempt/none"}, "slurm.conf lacks PreemptType=preempt/qos: what is lent"),
        ({"PreemptMode": "CANCEL"}, "slurm.conf has PreemptMode=CANCEL: jobs that are preempted are not"),
        ({"JobRequeue": "0"}, "slurm.conf has JobRequeue=0: borrowing jobs without --requeue are cancelled"),
        ({"AccountingStorageEnforce": "limits"}, "any user can run in an owner's QOS"),
        ({"KillWait": "600 sec"}, "owner vision: return_within of 10m cannot be guaranteed: with"),
        ({"SchedulerParameters": "bf_interval=9,sched_interval=600"}, "of 10m cannot be guaranteed"),
    ],
)
def test_what_slurm_conf_lacks_is_told(store: MemoryStore, conf: dict[str, str], remark: str) -> None:
    told = plan(store, **conf).difference.remarks
    assert len(told) == 1
    assert remark in told[0]


def test_the_promise_is_measured_by_slurm_conf() -> None:
    assert return_time_s(settings()) == 60 + 30 + 30
    assert return_time_s(settings(KillWait="2 sec", SchedulerParameters="sched_interval=5,x")) == 37


@pytest.mark.parametrize(
    ("more", "n_gpus", "remark"),
    [
        ([qos("normal"), qos("debug")], 16, "QOS debug: not managed (manages: qos), so that jobs there"),
        ([qos("normal"), qos("sg-long")], 16, "ordinary jobs run in QOS normal, sg-long: each of them"),
        ([qos("normal")], 8, "owners own 12 GPUs, and the cluster has 8: they cannot all have theirs"),
    ],
)
def test_what_could_break_the_promise_is_told(more: list, n_gpus: int, remark: str) -> None:  # type: ignore[type-arg]
    told = plan(MemoryStore(ASSOCIATIONS, more), n_gpus=n_gpus).difference.remarks
    assert len(told) == 1
    assert remark in told[0]


def test_accounts_that_are_not_managed_are_named(store: MemoryStore) -> None:
    told = plan(store, POLICY.replace(", accounts: [vision, nlp]", "")).difference.remarks
    assert told[0].startswith("account vision of owner vision: not managed")
    assert told[1].startswith("account nlp: not managed (manages: accounts), so its users cannot borrow")


def test_users_with_a_list_of_their_own_are_let_in_too() -> None:
    associations = [*ASSOCIATIONS[:-1], user("bob", "nlp", QOS_normal=1)]
    assert "user bob in account nlp: QOS+=sg-loans" in steps(plan(MemoryStore(associations, [qos("normal")])))


def test_without_slurmdbd_nothing_is_lent_and_it_is_said(store: MemoryStore) -> None:
    native = plan(store, AccountingStorageType="accounting_storage/none")
    assert native.new_qos == ()
    assert "nothing is lent without slurmdbd" in native.difference.remarks[0]


def test_a_promise_that_the_cluster_cannot_keep_is_told_with_its_place() -> None:
    source = parse_yaml(POLICY, "policy.yaml")
    told = broken_promises(check_policy(source), source, settings(KillWait="600 sec"), 8)
    assert [str(error).partition(": ")[0] for error in told] == ["policy.yaml:4:1", "policy.yaml:4:48"]
    assert "own 12 GPUs, and the cluster has 8" in told[0].message
    assert "it may take 690s" in told[1].message
    assert broken_promises(check_policy(source), source, settings(), 16) == ()
