"""Native limits for owners consist of sums by QOS, preemption of loans, and accounts that may borrow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import SlurmRefusalError
from slurm_gpu.policy.apply import PolicyInstaller
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
        policy,
        names,
        settings(**conf),
        store,
        owned,
        lambda: (),
        dict,
        dt.date(2026, 11, 21),
        UIDS.get,
        n_gpus,
    )  # type: ignore[arg-type]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ASSOCIATIONS, [qos("normal")])


def steps(native: NativePlan) -> list[str]:
    return [f"{step.entity}: {step.limit.show(step.new)}" for step in native.difference.steps]


def test_owners_other_jobs_and_loans_each_have_a_qos(store: MemoryStore) -> None:
    native = plan(store)
    assert list(map(str, native.new_qos)) == [
        "QOS sg-loans: to be created (idle GPUs of vision)",
        "QOS sg-vision: to be created (GPUs of vision)",
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


def test_rollback_restores_everything_except_the_created_qos(store: MemoryStore, tmp_path) -> None:
    before = store.associations("c")
    installer = PolicyInstaller(ApplyJournal(tmp_path), store, "")
    native = plan(store)
    change = native.difference
    entry = installer.apply(
        Entry(cluster="c", policy="p", steps=change.steps, owned=change.owned), None, native.new_qos
    )
    again = plan(store, owned=entry.owned)
    assert (again.new_qos, again.difference.steps, again.drift) == ((), (), ())
    store.set_by_hand("qos:sg-loans", GraceTime=30)
    store.set_by_hand("qos:normal", **{"Preempt_sg-loans": None})
    changed = plan(store, owned=entry.owned)
    assert [str(one) for one in changed.drift] == [
        "QOS normal: Preempt sg-loans (rule owners) was removed by hand",
        "QOS sg-loans: GraceTime=0 (rule owners.vision) was set to 30 by hand",
    ]
    store.set_by_hand("qos:sg-loans", GraceTime=0)
    store.set_by_hand("qos:normal", **{"Preempt_sg-loans": 1})
    assert installer.rollback() is not None
    assert store.associations("c") == before
    assert [one.name for one in store.qos()] == ["normal", "sg-loans", "sg-vision"]
    assert all(limit.name == "GraceTime" for one in store.qos() for limit in one.limits)


class Strict(MemoryStore):
    """A slurmdbd that, like the real one, refuses QOS that preempt each other."""

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


def test_loans_can_move_to_another_qos_and_back(tmp_path) -> None:
    store = Strict(ASSOCIATIONS, [qos("normal")])
    installer, owned = PolicyInstaller(ApplyJournal(tmp_path), store, ""), ()
    other = POLICY.replace("sg-loans", "sg-spare")
    for text in (POLICY, other, POLICY, other):
        native = plan(store, text, owned)
        owned = native.difference.owned
        installer.apply(
            Entry(cluster="c", policy="p", steps=native.difference.steps, owned=owned), None, native.new_qos
        )
        assert plan(store, text, owned).difference.steps == ()
    for _ in range(3):
        assert installer.rollback() is not None


def test_removing_an_owner_removes_its_native_limits(store: MemoryStore, tmp_path) -> None:
    installer, native = PolicyInstaller(ApplyJournal(tmp_path), store, ""), plan(store)
    owned = native.difference.owned
    installer.apply(
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


def test_a_stricter_rule_keeps_its_limit(store: MemoryStore) -> None:
    text = POLICY.replace("groups: {", "groups: {own: {qos: [sg-vision]}, ") + (
        "rules: [{id: few, for: own, per: group, mode: enforce, why: x, limits: {gpus_running: 10}}]\n"
    )
    store.add_qos("sg-vision", "", requeued=False)
    assert "QOS sg-vision: GrpTRES=gres/gpu=10" in steps(plan(store, text))


def test_rules_for_loans_apply_with_the_apply_that_creates_their_qos(store: MemoryStore, tmp_path) -> None:
    text = POLICY.replace("groups: {", "groups: {loans: {qos: [sg-loans]}, ") + (
        "rules: [{id: share, for: loans, per: user, mode: enforce, why: x, limits: {gpus_total: 10}}]\n"
    )
    native = plan(store, text)
    assert "QOS sg-loans: MaxTRESPU=gres/gpu=10" in steps(native)
    assert native.gaps == ()
    change = native.difference
    PolicyInstaller(ApplyJournal(tmp_path), store, "").apply(
        Entry(cluster="c", policy="p", steps=change.steps, owned=change.owned), None, native.new_qos
    )
    assert steps(plan(store, text, change.owned)) == []


@pytest.mark.parametrize(
    ("conf", "remark"),
    [
        ({"PreemptType": "preempt/none"}, "slurm.conf lacks PreemptType=preempt/qos: lent GPUs"),
        ({"PreemptMode": "CANCEL"}, "slurm.conf has PreemptMode=CANCEL: preempted jobs are not"),
        ({"JobRequeue": "0"}, "slurm.conf has JobRequeue=0: borrowing jobs without --requeue are cancelled"),
        ({"AccountingStorageEnforce": "limits"}, "any user can run in an owner's QOS"),
        ({"KillWait": "600 sec"}, "owner vision: return_within of 10m cannot be guaranteed: with"),
        ({"SchedulerParameters": "bf_interval=9,sched_interval=600"}, "of 10m cannot be guaranteed"),
    ],
)
def test_missing_settings_in_slurm_conf_are_reported(
    store: MemoryStore, conf: dict[str, str], remark: str
) -> None:
    remarks = plan(store, **conf).difference.remarks
    assert len(remarks) == 1
    assert remark in remarks[0]


def test_the_return_time_follows_from_slurm_conf() -> None:
    assert return_time_s(settings()) == 60 + 30 + 30
    assert return_time_s(settings(KillWait="2 sec", SchedulerParameters="sched_interval=5,x")) == 37


@pytest.mark.parametrize(
    ("more", "n_gpus", "remark"),
    [
        ([qos("normal"), qos("debug")], 16, "jobs in unmanaged QOS debug may use GPUs of owners"),
        ([qos("normal"), qos("sg-long")], 16, "ordinary jobs run in QOS normal, sg-long: each QOS may"),
        ([qos("normal")], 8, "owners own 12 GPUs, but the cluster has only 8"),
    ],
)
def test_risks_to_the_return_time_are_reported(more: list, n_gpus: int, remark: str) -> None:  # type: ignore[type-arg]
    remarks = plan(MemoryStore(ASSOCIATIONS, more), n_gpus=n_gpus).difference.remarks
    assert len(remarks) == 1
    assert remark in remarks[0]


def test_unmanaged_accounts_are_named(store: MemoryStore) -> None:
    remarks = plan(store, POLICY.replace(", accounts: [vision, nlp]", "")).difference.remarks
    assert remarks[0].startswith("account vision of owner vision is not managed")
    assert remarks[1].startswith("users of unmanaged account nlp cannot borrow")


def test_users_with_their_own_list_of_qos_get_the_qos_of_loans() -> None:
    associations = [*ASSOCIATIONS[:-1], user("bob", "nlp", QOS_normal=1)]
    assert "user bob in account nlp: QOS+=sg-loans" in steps(plan(MemoryStore(associations, [qos("normal")])))


def test_without_slurmdbd_nothing_is_lent_and_a_remark_states_it(store: MemoryStore) -> None:
    native = plan(store, AccountingStorageType="accounting_storage/none")
    assert native.new_qos == ()
    assert "GPUs are not lent without slurmdbd" in native.difference.remarks[0]


def test_a_return_time_that_cannot_be_guaranteed_is_reported_with_its_position() -> None:
    source = parse_yaml(POLICY, "policy.yaml")
    remarks = broken_promises(check_policy(source), source, settings(KillWait="600 sec"), 8)
    assert [str(error).partition(": ")[0] for error in remarks] == ["policy.yaml:4:1", "policy.yaml:4:48"]
    assert "own 12 GPUs, but the cluster has only 8" in remarks[0].message
    assert "the return may take 690s" in remarks[1].message
    assert broken_promises(check_policy(source), source, settings(), 16) == ()
