"""Slurm's native limits are never stricter than the policy, and are set only on managed entities."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.slurm.sacctmgr import LimitField

from .limitstore import account, limit, of, qos, user
from .nativepolicies import ASSOCIATIONS, numbers, rules, wanted_limits


def test_limits_of_each_job_and_user_are_set_on_the_account() -> None:
    wanted = wanted_limits(
        rules(
            "for: grads, per: job, limits: {gpus: 4.5, cpus: 32, memory: 64G, nodes: 2, walltime: 2d}",
            "for: grads, per: user, limits: {jobs_running: 5, jobs_total: 9}",
        )
    )
    assert numbers(wanted) == {
        "vision": {
            "MaxTRES=gres/gpu": 4,
            "MaxTRES=cpu": 32,
            "MaxTRES=mem": 65536,
            "MaxTRES=node": 2,
            "MaxWall": 2880,
            "MaxJobs": 5,
            "MaxSubmitJobs": 9,
        }
    }
    assert wanted.gaps == ()


def test_a_sum_per_user_is_set_on_each_association_of_the_user() -> None:
    wanted = wanted_limits(
        rules("for: both, per: user, limits: {gpus_running: 16, gpus_total: {a100: 8}, cpus_total: 9}")
    )
    assert numbers(wanted) == {
        name: {"GrpTRES=gres/gpu": 16, "GrpTRES=gres/gpu:a100": 8, "GrpTRES=cpu": 9}
        for name in ("vision/alice", "vision/bob", "nlp/bob")
    }


def test_a_total_limit_also_bounds_running_jobs_and_the_strictest_limit_wins() -> None:
    wanted = wanted_limits(
        rules(
            "for: grads, per: user, limits: {gpus_total: 32, gpus_running: 16}",
            "for: alice, per: user, limits: {gpus_total: 8}",
        )
    )
    assert numbers(wanted)["vision/alice"] == {"GrpTRES=gres/gpu": 8}
    assert numbers(wanted)["vision/bob"] == {"GrpTRES=gres/gpu": 16}
    assert wanted.bounds[of("vision/alice")][limit("GrpTRES_gpu")].rule == "r2"


def test_a_sum_per_group_is_set_on_its_account() -> None:
    wanted = wanted_limits(
        rules("for: grads, per: group, limits: {gpus_total: 9, jobs_running: 3, jobs_total: 30}")
    )
    assert numbers(wanted) == {"vision": {"GrpTRES=gres/gpu": 9, "GrpJobs": 3, "GrpSubmitJobs": 30}}


def test_no_sum_is_set_on_an_account_with_children_because_slurm_would_count_them() -> None:
    wanted = wanted_limits(
        rules(
            "for: grads, per: group, limits: {gpus_running: 9}",
            "for: grads, per: job, limits: {gpus: 4}",
        ),
        (*ASSOCIATIONS, account("vision-cv", parent="vision"), user("carol", "vision-cv")),
    )
    assert numbers(wanted) == {name: {"MaxTRES=gres/gpu": 4} for name in ("vision/alice", "vision/bob")}
    assert [str(gap) for gap in wanted.gaps] == [
        "r1: gpus_running: nothing enforces it: "
        "in account vision, Slurm would also count sub-account vision-cv"
    ]


def test_limits_per_account_are_set_on_each_account_or_in_the_qos() -> None:
    limits = "per: account, limits: {gpus_running: 4, jobs_running: 2, jobs_total: 5}"
    wanted = wanted_limits(rules(f"for: both, {limits}", f"for: long, {limits}"), qos=(qos("sg-long"),))
    of_account = {"GrpTRES=gres/gpu": 4, "GrpJobs": 2, "GrpSubmitJobs": 5}
    of_qos = {"MaxTRESPA=gres/gpu": 4, "MaxJobsPA": 2, "MaxSubmitJobsPA": 5, "Flags=DenyOnLimit": 1}
    assert numbers(wanted) == {"vision": of_account, "nlp": of_account, "QOS sg-long": of_qos}
    assert wanted.gaps == ()


@pytest.mark.parametrize(
    ("per", "parts"), [("group", {"vision": 4, "vision-cv": 4}), ("account", {"vision-cv": 4})]
)
def test_a_limit_of_an_account_counts_its_sub_accounts(per: str, parts: dict[str, int]) -> None:
    text = rules(f"for: grads, per: {per}, limits: {{gpus_running: 4}}")
    text = text.replace("[vision]", "[vision, vision-cv]").replace("[vision, nlp]", "['*']", 1)
    wanted = wanted_limits(text, (*ASSOCIATIONS, account("vision-cv", parent="vision")))
    found = {
        entity.name: bounds[LimitField("GrpTRES", "gres/gpu")].value
        for entity, bounds in wanted.bounds.items()
    }
    assert found == parts
    assert [gap.why for gap in wanted.gaps] == [
        "in account vision, Slurm would also count sub-account vision-cv"
        for _ in parts
        if "vision" not in parts
    ]


def test_limits_of_a_qos_group_are_set_on_the_qos_with_deny_on_limit() -> None:
    wanted = wanted_limits(
        rules(
            "for: long, per: user, limits: {gpus_running: 16, jobs_running: 2, jobs_total: 4}",
            "for: long, per: group, limits: {gpus_running: 64, jobs_total: 40}",
            "for: long, per: job, limits: {gpus: 8, walltime: 7d}",
        ),
        qos=(qos("normal"), qos("sg-long")),
    )
    assert numbers(wanted) == {
        "QOS sg-long": {
            "MaxTRESPU=gres/gpu": 16,
            "MaxJobsPU": 2,
            "MaxSubmitJobsPU": 4,
            "GrpTRES=gres/gpu": 64,
            "GrpSubmitJobs": 40,
            "MaxTRES=gres/gpu": 8,
            "MaxWall": 10080,
            "Flags=DenyOnLimit": 1,
        }
    }


def test_limits_of_a_unix_group_are_set_on_its_members_associations() -> None:
    wanted = wanted_limits(rules("for: undergrads, per: job, limits: {gpus: 2}"))
    assert numbers(wanted) == {name: {"MaxTRES=gres/gpu": 2} for name in ("vision/bob", "nlp/bob")}


def test_exceptions_are_set_on_the_user_until_the_end_of_their_last_day() -> None:
    text = rules(
        "for: grads, per: user, limits: {jobs_running: 4, gpus_running: 8}",
        "for: grads, per: job, limits: {walltime: 1d}",
        more="""\
        exceptions:
          - {rule: r1, user: alice, limits: {jobs_running: 9}, until: 2026-11-21, why: x}
        """,
    )
    assert numbers(wanted_limits(text)) == {
        "vision": {"MaxJobs": 4, "MaxWall": 1440},
        "vision/alice": {"MaxJobs": 9, "GrpTRES=gres/gpu": 8},
        "vision/bob": {"GrpTRES=gres/gpu": 8},
    }
    for earlier, today in (("until", 22), ("from", 20)):
        numbers_then = numbers(wanted_limits(text.replace("until", earlier), today=dt.date(2026, 11, today)))
        assert "MaxJobs" not in numbers_then["vision/alice"]
    endless = text.replace("until: 2026-11-21, ", "")
    assert numbers(wanted_limits(endless, today=dt.date(2999, 1, 1)))["vision/alice"]["MaxJobs"] == 9


def test_a_group_has_native_limits_from_its_first_day_on() -> None:
    text = rules("for: course, per: user, limits: {jobs_running: 4}").replace("until: ", "from: ")
    days = [dt.date(2026, 11, day) for day in (19, 20)]
    assert [bool(numbers(wanted_limits(text, today=day))) for day in days] == [False, True]


def test_an_exception_raises_the_limit_of_the_whole_qos() -> None:
    text = rules(
        "for: long, per: user, limits: {gpus_running: 8}",
        more="exceptions: [{rule: r1, user: alice, limits: {gpus_running: 12}, until: 2027-01-01, why: x}]",
    )
    assert numbers(wanted_limits(text, qos=(qos("sg-long"),)))["QOS sg-long"]["MaxTRESPU=gres/gpu"] == 12


def test_a_walltime_by_gpus_is_bounded_by_its_longest_step() -> None:
    wanted = wanted_limits(rules("for: grads, per: job, limits: {walltime: {1: 2d, 8: 7d, 32: 12h}}"))
    assert numbers(wanted) == {}  # a job without GPUs has no time limit
    wanted = wanted_limits(rules("for: grads, per: job, limits: {walltime: {0: 2d, 8: 7d}}"))
    assert numbers(wanted) == {"vision": {"MaxWall": 10080}}


@pytest.mark.parametrize(
    ("line", "gaps"),
    [
        ("for: grads, per: job, kind: batch, limits: {gpus: 4}", ["gpus: only job_submit.lua enforces it: "]),
        ("for: grads, per: job, when: {days: mon}, limits: {gpus: 4}", ["gpus: only job_submit.lua"]),
        ("for: night, per: user, limits: {gpus_running: 4}", ["gpus_running: nothing enforces it: "]),
        ("for: undergrads, per: group, limits: {gpus_total: 4}", ["gpus_total: only job_submit.lua"]),
        ("for: grads, per: job, limits: {cpus_per_gpu: 4}", ["cpus_per_gpu: only job_submit.lua"]),
        (
            "for: long, per: user, limits: {jobs_running: 4}",
            ["jobs_running: nothing enforces it: QOS sg-long must be"],
        ),
        # Slurm has no limit on tasks, so the unmanaged QOS is not the reason.
        ("for: long, per: job, limits: {tasks: 4}", ["tasks: only job_submit.lua enforces it: Slurm has no"]),
    ],
)
def test_limits_that_slurm_cannot_enforce_are_reported(line: str, gaps: list[str]) -> None:
    wanted = wanted_limits(rules(line))
    assert numbers(wanted) == {}
    assert [str(gap)[4:].startswith(start) for gap, start in zip(wanted.gaps, gaps, strict=True)] == [True]


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("for: both, per: user", ["account nlp"]),
        ("for: everyone, per: user", ["account nlp, other"]),  # account empty has no users
        ("for: undergrads, per: user", ["account nlp, other"]),
        ("for: alice, per: user", []),
        ("for: grads, per: user", []),
    ],
)
def test_unmanaged_accounts_are_reported(line: str, outside: list[str]) -> None:
    text = rules(f"{line}, limits: {{jobs_running: 4}}").replace("[vision, nlp], qos", "[vision], qos")
    wanted = wanted_limits(text, (*ASSOCIATIONS, account("empty")))
    assert [str(gap) for gap in wanted.gaps] == [
        f"r1: jobs_running: nothing enforces it: Slurm cannot limit {names}, which must be in slurmdbd "
        "and under manages: accounts"
        for names in outside
    ]
    assert {entity.name for entity in wanted.bounds} == {"vision"}


def test_trial_rules_and_ended_groups_set_no_native_limits() -> None:
    wanted = wanted_limits(
        rules(
            "for: grads, per: job, mode: advise, limits: {gpus: 4}",
            "for: course, per: job, limits: {gpus: 4}",
        )
    )
    assert (wanted.bounds, wanted.gaps) == ({}, ())


def test_untracked_resources_cannot_be_limited() -> None:
    wanted = wanted_limits(rules("for: grads, per: job, limits: {gpus: 4}"), tres=frozenset({"cpu"}))
    assert numbers(wanted) == {}
    assert "AccountingStorageTRES" in str(wanted.gaps[0])


def test_names_missing_in_slurmdbd_are_reported_with_the_command_that_creates_them() -> None:
    policy = rules("for: everyone, per: job, limits: {gpus: 4}").replace("[vision, nlp]", "[vision, nowhere]")
    assert [remark.partition("; ")[2] for remark in wanted_limits(policy).remarks] == [
        "`sacctmgr add account nowhere` creates it"
    ]


def test_users_with_associations_by_partition_are_not_changed() -> None:
    wanted = wanted_limits(
        rules("for: grads, per: user, limits: {gpus_running: 4}"),
        (*ASSOCIATIONS, user("alice", "vision", partition="gpu")),
    )
    assert numbers(wanted) == {"vision/bob": {"GrpTRES=gres/gpu": 4}}
    assert wanted.remarks[0].startswith("alice has associations by partition")


# An independent evaluation, in which each user has the limits of the rules that apply to this user.

_JOB_OR_USER = {
    "gpus": ("job", "MaxTRES_gpu"),
    "walltime": ("job", "MaxWall"),
    "cpus": ("job", "MaxTRES_cpu"),
    "gpus_total": ("user", "GrpTRES_gpu"),
    "gpus_running": ("user", "GrpTRES_gpu"),
    "jobs_total": ("user", "MaxSubmitJobs"),
    "jobs_running": ("user", "MaxJobs"),
}
_GROUPS = {
    "grads": lambda account, user: account == "vision",
    "both": lambda account, user: account in ("vision", "nlp"),
    "undergrads": lambda account, user: user in ("bob", "carol"),
    "alice": lambda account, user: user == "alice",
    "everyone": lambda account, user: True,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(_GROUPS)), st.sampled_from(sorted(_JOB_OR_USER)), st.integers(1, 9)),
        max_size=6,
    )
)
def test_each_user_has_exactly_the_strictest_of_the_rules(chosen: list[tuple[str, str, int]]) -> None:
    lines = [
        f"for: {group}, per: {_JOB_OR_USER[key][0]}, limits: {{{key}: {n}{'h' * (key == 'walltime')}}}"
        for group, key, n in chosen
    ]
    wanted = wanted_limits(rules(*lines) if lines else rules().replace("rules:", "rules: []"))
    assert {entity.name for entity in wanted.bounds} <= {"vision", "nlp"}
    for account_, user_ in (("vision", "alice"), ("vision", "bob"), ("nlp", "bob")):
        own = wanted.bounds.get(of(f"{account_}/{user_}"), {})
        inherited = wanted.bounds.get(of(account_), {})
        for field in {name for _, name in _JOB_OR_USER.values()}:
            bound = own.get(limit(field))
            if bound is None and limit(field).name in INHERITED:
                bound = inherited.get(limit(field))
            expected = [
                n * 60 if key == "walltime" else n
                for group, key, n in chosen
                if _JOB_OR_USER[key][1] == field and _GROUPS[group](account_, user_)
            ]
            assert (None if bound is None else bound.value) == min(expected, default=None)
