"""Test Slurm's own limits in the formats that sacctmgr 22.05.8 prints and accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.sacctmgr import NEW_QOS, Association, Entity, EntityKind, LimitField, Sacctmgr

ANSWERS = {
    "tres": "cpu|\nmem|\nnode|\nfs|disk\ngres|gpu\ngres|gpu:a100\n",
    "assoc": (
        "root|||||||||||normal\n"
        "root|root||||||||||\n"
        "vision|||root|cpu=4,gres/gpu=10|5|0|gres/gpu=3,mem=65537M|1-01:00:00|3|30|sg-loans,sg-vision\n"
        "vision|alice|gpu||gres/gpu=0|||mem=1T||50||\n"
    ),
    "qos": (
        "normal|cluster|||||||||||||||00:00:00\n"
        "sg-long|cluster|2.500000|DenyOnLimit,NoDecay|gres/gpu=64||9|gres/gpu=4|gres/gpu=16|gres/gpu=8|00:00:00|20|4|200|40"
        "|sg-loans,low|00:00:00\n"
        "sg-loans|requeue|||||||||||||||00:01:30\n"
    ),
}
VISION = Entity(EntityKind.ACCOUNT, "vision")


class Recorded:
    def __init__(self, answers: Mapping[str, str] = ANSWERS) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        self.asked.append(list(argv))
        return self.answers[argv[4]] if argv[3] == "show" else ""


def test_tres_have_the_names_that_limits_use() -> None:
    assert Sacctmgr(Recorded(), {}).tracked_tres() == {
        "cpu",
        "mem",
        "node",
        "fs/disk",
        "gres/gpu",
        "gres/gpu:a100",
    }


def test_associations_have_the_limits_of_their_own() -> None:
    run = Recorded()
    root, _, vision, alice = Sacctmgr(run, {}).associations("neuron")
    assert root == Association(account="root", limits={LimitField("QOS", "normal"): 1})
    assert (vision.entity, vision.parent) == (VISION, "root")
    assert {str(field): value for field, value in vision.limits.items()} == {
        "GrpTRES=cpu": 4,
        "GrpTRES=gres/gpu": 10,
        "GrpJobs": 5,
        "GrpSubmitJobs": 0,
        "MaxTRES=gres/gpu": 3,
        "MaxTRES=mem": 65537,
        "MaxWall": 1500,
        "MaxJobs": 3,
        "MaxSubmitJobs": 30,
        "QOS=sg-loans": 1,
        "QOS=sg-vision": 1,
    }
    assert (str(alice.entity), alice.partition) == ("user alice in account vision", "gpu")
    assert alice.limits[LimitField("GrpTRES", "gres/gpu")] == 0
    assert alice.limits[LimitField("MaxTRES", "mem")] == 2**20
    assert "WOPLimits" in run.asked[0]
    assert "cluster=neuron" in run.asked[0]


def test_flags_of_a_qos_are_among_its_limits() -> None:
    normal, long, loans = Sacctmgr(Recorded(), {}).qos()
    assert (normal.name, normal.limits) == ("normal", NEW_QOS)
    assert long.limits[LimitField("Flags", "DenyOnLimit")] == 1
    assert long.limits[LimitField("MaxTRESPU", "gres/gpu")] == 16
    of_account = {"MaxTRESPA=gres/gpu": 8, "MaxJobsPA": 4, "MaxSubmitJobsPA": 40}
    assert of_account.items() <= {str(limit): value for limit, value in long.limits.items()}.items()
    assert long.limits[LimitField("MaxWall")] == 0
    assert [long.limits.get(LimitField("Preempt", name)) for name in ("sg-loans", "low", "normal")] == [
        1,
        1,
        None,
    ]
    assert (long.preempt_mode, loans.preempt_mode) == ("cluster", "requeue")
    assert (long.limit_factor, loans.limit_factor) == (2.5, None)
    assert loans.limits == {LimitField("GraceTime"): 90}


@pytest.mark.parametrize("text", ["vision|alice\n", "a|b|||||||||||||\n", "vision|||root|gpu||||||||\n"])
def test_an_unreadable_limit_is_an_error(text: str) -> None:
    with pytest.raises(SlurmError, match="printed"):
        Sacctmgr(Recorded({"assoc": text}), {}).associations("c")


def test_an_unreadable_limit_factor_is_an_error() -> None:
    with pytest.raises(SlurmError, match="QOS normal: sacctmgr printed LimitFactor='x'"):
        Sacctmgr(Recorded({"qos": "normal|cluster|x||||||||||||||00:00:00\n"}), {}).qos()


def test_a_change_names_what_changes_and_nothing_else() -> None:
    run = Recorded()
    store = Sacctmgr(run, {})
    values = {LimitField("MaxWall"): 60, LimitField("MaxTRES", "mem"): None, LimitField("MaxTRES", "cpu"): 0}
    store.set_limits("c", [VISION], values)
    store.set_limits(
        "c",
        [Entity(EntityKind.USER, "vision", who) for who in ("alice", "bob")],
        {LimitField("MaxJobs"): None},
    )
    both = [Entity(EntityKind.USER, "nlp", "carol"), Entity(EntityKind.USER, "vision", "dan")]
    store.set_limits("c", both, {LimitField("MaxJobs"): 3})
    store.set_limits("c", [Entity(EntityKind.ACCOUNT, "nlp"), VISION], {LimitField("MaxJobs"): 9})
    store.set_limits("c", [Entity(EntityKind.QOS, "sg-a")], {LimitField("Flags", "DenyOnLimit"): None})
    store.set_limits("c", [Entity(EntityKind.QOS, "sg-a")], {LimitField("Flags", "DenyOnLimit"): 1})
    store.set_limits("c", [VISION], {LimitField("QOS", "sg-a"): 1, LimitField("QOS", "sg-b"): None})
    store.set_limits("c", [VISION], {})
    store.add_qos("sg-a", "GPUs of vision", requeued=False)
    store.add_qos("sg-b", "on loan", requeued=True)
    assert [" ".join(argv[2:]) for argv in run.asked] == [
        "modify account where name=vision cluster=c set MaxTRES=cpu=0,mem=-1 MaxWall=60",
        "modify user where name=alice,bob account=vision cluster=c set MaxJobs=-1",
        "modify user where name=carol,dan account=nlp,vision cluster=c set MaxJobs=3",
        "modify account where name=nlp,vision cluster=c set MaxJobs=9",
        "modify qos where name=sg-a set Flags-=DenyOnLimit",
        "modify qos where name=sg-a set Flags+=DenyOnLimit",
        "modify account where name=vision cluster=c set QOS+=sg-a QOS-=sg-b",
        "add qos sg-a set Description=GPUs of vision",
        "add qos sg-b set Description=on loan PreemptMode=requeue",
    ]


def test_a_false_preemption_loop_is_reported_with_a_remedy() -> None:
    def refuse(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        raise SlurmError("`sacctmgr …` failed (1): sacctmgr: error: QOS Preemption loop detected")

    urgent = Entity(EntityKind.QOS, "urgent")
    with pytest.raises(SlurmError, match=r"loop detected\nIf .*systemctl restart slurmdbd"):
        Sacctmgr(refuse, {}).set_limits("c", [urgent], {LimitField("Preempt", "normal"): 1})


def test_many_users_are_changed_in_calls_of_five_hundred() -> None:
    run = Recorded()
    users = [Entity(EntityKind.USER, "vision", f"u{number}") for number in range(1250)]
    Sacctmgr(run, {}).set_limits("c", users, {LimitField("MaxJobs"): 1})
    assert [argv[5].count(",") + 1 for argv in run.asked] == [500, 500, 250]


@pytest.mark.parametrize("name", ["", "a,b", "a b", "a'b", "a|b", "x=1"])
def test_an_ambiguous_name_is_refused(name: str) -> None:
    """Test that an empty name is rejected, because sacctmgr would apply it to all users."""
    run = Recorded()
    with pytest.raises(SlurmError, match="is not a name that sacctmgr accepts"):
        Sacctmgr(run, {}).set_limits(
            "c", [Entity(EntityKind.USER, "vision", name)], {LimitField("MaxJobs"): 1}
        )
    assert run.asked == []


def test_amounts_are_shown_with_the_unit_that_they_are_counted_in() -> None:
    shown = [
        LimitField("MaxWall").show(2880),
        LimitField("MaxTRES", "mem").show(65536),
        LimitField("MaxTRES", "mem").show(1500),
        LimitField("GrpTRES", "gres/gpu").show(12),
        LimitField("MaxWall").show(None),
    ]
    assert shown == [
        "MaxWall=2-00:00:00",
        "MaxTRES=mem=64G",
        "MaxTRES=mem=1500M",
        "GrpTRES=gres/gpu=12",
        "MaxWall=none",
    ]
