"""Limits on running jobs in partitions are set on the partitions' QOS."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.native.difference import difference
from slurm_gpu.policy.native.plan import plan_native
from slurm_gpu.policy.native.stranded import stranded
from slurm_gpu.slurm.sacctmgr import Association

from .limitstore import MemoryStore, account, limit, of, qos, user
from .nativepolicies import ASSOCIATIONS, TODAY, load, numbers, rules, wanted_limits
from .test_native_plan import SLURMDBD, job, settings
from .users import UIDS

NIGHT = "for: night, limits: {gpus_running: 4, jobs_running: 2}"
OWN = {"gpu": None, "night": "sg-night"}


@pytest.mark.parametrize(
    ("per", "fields"),
    [
        ("user", {"MaxTRESPU=gres/gpu": 4, "MaxJobsPU": 2}),
        ("account", {"MaxTRESPA=gres/gpu": 4, "MaxJobsPA": 2}),
        ("group", {"GrpTRES=gres/gpu": 4, "GrpJobs": 2}),
    ],
)
def test_the_qos_of_the_partition_has_the_limits(per: str, fields: dict[str, int]) -> None:
    wanted = wanted_limits(rules(f"{NIGHT}, per: {per}"), qos=(qos("sg-night"),), partitions=OWN)
    assert numbers(wanted) == {"QOS sg-night": {**fields, "Flags=DenyOnLimit": 1}}
    assert wanted.gaps == ()


def test_partitions_are_chosen_as_in_other_groups() -> None:
    text = rules("for: new, per: user, limits: {jobs_running: 4}").replace(
        "rules:", "  new: {not: [night]}\nrules:"
    )
    partitions = {"gpu": "sg-a", "cpu": "sg-b", "night": "sg-c"}
    wanted = wanted_limits(text, qos=(qos("sg-a"), qos("sg-b"), qos("sg-c")), partitions=partitions)
    assert set(numbers(wanted)) == {"QOS sg-a", "QOS sg-b"}


def test_limits_on_one_job_are_left_to_the_script() -> None:
    text = rules("for: night, per: job, limits: {gpus: 4}")
    wanted = wanted_limits(text, qos=(qos("sg-night"),), partitions=OWN)
    assert numbers(wanted) == {}
    assert str(wanted.gaps[0]).startswith("r1: gpus: only job_submit.lua enforces it: as a limit of")


@pytest.mark.parametrize(
    ("partitions", "chosen", "why"),
    [
        ({"night": None}, (), "partition night has no QOS; add QOS=NAME to its line in slurm.conf"),
        ({"night": "other"}, (), "QOS other of partition night must be in slurmdbd and under manages: qos"),
        (
            {"night": "sg-night", "gpu": "sg-night"},
            (),
            "partition night shares QOS sg-night with gpu",
        ),
        (
            {"night": "sg-night"},
            (Association(account="vision", limits={limit("QOS_sg-night"): 1}),),
            "users may name QOS sg-night of partition night in other partitions, too",
        ),
        ({"gpu": None}, (), "slurm.conf has no partition of this group"),
    ],
)
def test_a_partition_without_its_own_managed_qos_is_reported(
    partitions: dict[str, str | None], chosen: tuple[Association, ...], why: str
) -> None:
    known = (qos("sg-night"), qos("other"))
    text = rules("for: night, per: user, limits: {gpus_running: 4}")
    wanted = wanted_limits(text, (*ASSOCIATIONS, *chosen), qos=known, partitions=partitions)
    assert numbers(wanted) == {}
    (gap,) = wanted.gaps
    assert gap.why.startswith(why)
    assert gap.unenforced


def test_of_two_partitions_the_one_without_a_qos_is_reported() -> None:
    text = rules("for: two, per: user, limits: {jobs_running: 4}").replace(
        "rules:", "  two: {partitions: [gpu, night]}\nrules:"
    )
    wanted = wanted_limits(text, qos=(qos("sg-night"),), partitions=OWN)
    assert set(numbers(wanted)) == {"QOS sg-night"}
    assert [gap.why.partition(";")[0] for gap in wanted.gaps] == ["partition gpu has no QOS"]


def test_a_partition_and_accounts_together_have_no_limit_in_slurm() -> None:
    text = rules("for: both, per: user, limits: {jobs_running: 4}").replace(
        "both: {accounts: [vision, nlp]}", "both: {accounts: [vision, nlp], partitions: [night]}"
    )
    (gap,) = wanted_limits(text, qos=(qos("sg-night"),), partitions=OWN).gaps
    assert "its QOS, which is the same for all accounts and users" in gap.why


def remarks(*lines: str) -> tuple[str, ...]:
    policy, names = load(rules(*lines))
    store = MemoryStore(ASSOCIATIONS, [qos("sg-night"), qos("sg-long")])
    raw = settings(**SLURMDBD, AccountingStorageEnforce="limits")
    plan = plan_native(policy, names, raw, store, (), list, lambda: OWN, TODAY, UIDS.get)
    return plan.difference.remarks


@pytest.mark.parametrize(
    ("per", "other", "field"),
    [
        ("group", "for: grads, per: user, limits: {gpus_running: 2}", "GrpTRES=gres/gpu=4"),
        ("user", "for: grads, per: user, limits: {jobs_running: 1}", "MaxJobsPU=2"),
        ("account", "for: long, per: account, limits: {gpus_running: 2}", "MaxTRESPA=gres/gpu=4"),
    ],
)
def test_limits_that_those_of_the_partition_replace_are_reported(per: str, other: str, field: str) -> None:
    (remark,) = remarks(f"{NIGHT}, per: {per}", other)
    assert remark == (
        f"jobs in QOS sg-night: Slurm checks {field} (rule r1) instead of the limits of rule r2"
    )


@pytest.mark.parametrize(
    "other",
    [
        "for: grads, per: user, limits: {gpus_running: 2}",  # GrpTRES, next to MaxTRESPU
        "for: grads, per: user, limits: {jobs_total: 1}",  # the script enforces it
        "for: long, per: group, limits: {gpus_running: 2}",
    ],
)
def test_limits_that_apply_next_to_those_of_the_partition_are_not_reported(other: str) -> None:
    assert remarks(f"{NIGHT}, per: user", other) == ()


def test_queued_jobs_that_exceed_the_limit_of_their_partitions_are_listed() -> None:
    found = {one.entity: one.limits for one in (account("vision"), user("alice", "vision"))}
    wanted = wanted_limits(
        rules("for: night, per: user, limits: {gpus_running: 2}"), qos=(qos("sg-night"),), partitions=OWN
    )
    steps = difference(wanted, {of("qos:sg-night"): {}}, ()).steps
    in_gpu, in_night, in_both = job(1), job(2, partition="night"), job(3, partition="gpu,night")
    listed = stranded([in_gpu, in_night, in_both], found, steps, OWN)
    assert [str(one) for one in listed] == [
        "job 2 of alice requests 4 gres/gpu: QOS sg-night, MaxTRESPU=gres/gpu=2"
    ]
