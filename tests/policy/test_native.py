"""What of a policy Slurm's own limits hold: never more than it says, and only where it may write."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.native.fields import INHERITED

from .limitstore import account, limit, of, qos, user
from .nativepolicies import ASSOCIATIONS, numbers, rules, wish


def test_an_account_hands_on_what_each_job_and_user_may_have() -> None:
    wanted = wish(
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


def test_a_users_sum_hangs_on_each_association_of_hers() -> None:
    wanted = wish(
        rules("for: both, per: user, limits: {gpus_running: 16, gpus_total: {a100: 8}, cpus_total: 9}")
    )
    assert numbers(wanted) == {
        who: {"GrpTRES=gres/gpu": 16, "GrpTRES=gres/gpu:a100": 8, "GrpTRES=cpu": 9}
        for who in ("vision/alice", "vision/bob", "nlp/bob")
    }


def test_a_limit_on_running_and_pending_bounds_what_runs_and_the_tightest_wins() -> None:
    wanted = wish(
        rules(
            "for: grads, per: user, limits: {gpus_total: 32, gpus_running: 16}",
            "for: alice, per: user, limits: {gpus_total: 8}",
        )
    )
    assert numbers(wanted)["vision/alice"] == {"GrpTRES=gres/gpu": 8}
    assert numbers(wanted)["vision/bob"] == {"GrpTRES=gres/gpu": 16}
    assert wanted.bounds[of("vision/alice")][limit("GrpTRES_gpu")].rule == "r2"


def test_a_groups_sum_hangs_on_its_account() -> None:
    wanted = wish(rules("for: grads, per: group, limits: {gpus_total: 9, jobs_running: 3, jobs_total: 30}"))
    assert numbers(wanted) == {"vision": {"GrpTRES=gres/gpu": 9, "GrpJobs": 3, "GrpSubmitJobs": 30}}


def test_an_account_that_has_parts_is_not_summed_up_since_slurm_would_count_them_too() -> None:
    wanted = wish(
        rules(
            "for: grads, per: group, limits: {gpus_running: 9}",
            "for: grads, per: job, limits: {gpus: 4}",
        ),
        (*ASSOCIATIONS, account("vision-cv", parent="vision"), user("carol", "vision-cv")),
    )
    assert numbers(wanted) == {who: {"MaxTRES=gres/gpu": 4} for who in ("vision/alice", "vision/bob")}
    assert [str(gap) for gap in wanted.gaps] == [
        "r1: gpus_running: nothing holds it: in account vision Slurm would count its part vision-cv too"
    ]


def test_a_qos_holds_the_limits_of_its_jobs_and_refuses_what_could_never_start() -> None:
    wanted = wish(
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


def test_unix_groups_are_their_members_associations() -> None:
    wanted = wish(rules("for: undergrads, per: job, limits: {gpus: 2}"))
    assert numbers(wanted) == {who: {"MaxTRES=gres/gpu": 2} for who in ("vision/bob", "nlp/bob")}


def test_exceptions_hang_on_the_user_until_their_day_is_over() -> None:
    text = rules(
        "for: grads, per: user, limits: {jobs_running: 4, gpus_running: 8}",
        "for: grads, per: job, limits: {walltime: 1d}",
        more="""\
        exceptions:
          - {rule: r1, user: alice, limits: {jobs_running: 9}, until: 2026-11-21, why: x}
        """,
    )
    assert numbers(wish(text)) == {
        "vision": {"MaxJobs": 4, "MaxWall": 1440},
        "vision/alice": {"MaxJobs": 9, "GrpTRES=gres/gpu": 8},
        "vision/bob": {"GrpTRES=gres/gpu": 8},
    }
    assert "MaxJobs" not in numbers(wish(text, today=dt.date(2026, 11, 22)))["vision/alice"]


def test_a_qos_gives_everyone_what_one_exception_has() -> None:
    text = rules(
        "for: long, per: user, limits: {gpus_running: 8}",
        more="exceptions: [{rule: r1, user: alice, limits: {gpus_running: 12}, until: 2027-01-01, why: x}]",
    )
    assert numbers(wish(text, qos=(qos("sg-long"),)))["QOS sg-long"]["MaxTRESPU=gres/gpu"] == 12


def test_walltime_by_gpus_is_bounded_by_its_longest() -> None:
    wanted = wish(rules("for: grads, per: job, limits: {walltime: {1: 2d, 8: 7d, 32: 12h}}"))
    assert numbers(wanted) == {}  # a job without GPUs has no limit
    wanted = wish(rules("for: grads, per: job, limits: {walltime: {0: 2d, 8: 7d}}"))
    assert numbers(wanted) == {"vision": {"MaxWall": 10080}}


@pytest.mark.parametrize(
    ("line", "gaps"),
    [
        ("for: grads, per: job, kind: batch, limits: {gpus: 4}", ["gpus: job_submit.lua alone holds it: "]),
        ("for: grads, per: job, when: {days: mon}, limits: {gpus: 4}", ["gpus: job_submit.lua alone"]),
        ("for: night, per: user, limits: {gpus_running: 4}", ["gpus_running: nothing holds it: "]),
        ("for: undergrads, per: group, limits: {gpus_total: 4}", ["gpus_total: job_submit.lua alone"]),
        ("for: grads, per: job, limits: {cpus_per_gpu: 4}", ["cpus_per_gpu: job_submit.lua alone"]),
        (
            "for: long, per: user, limits: {jobs_running: 4}",
            ["jobs_running: nothing holds it: QOS sg-long: not"],
        ),
        # That its QOS is not managed is not why: Slurm could not hold it anyway.
        ("for: long, per: job, limits: {tasks: 4}", ["tasks: job_submit.lua alone holds it: Slurm has no"]),
    ],
)
def test_what_slurm_cannot_hold_is_said(line: str, gaps: list[str]) -> None:
    wanted = wish(rules(line))
    assert numbers(wanted) == {}
    assert [str(gap)[4:].startswith(start) for gap, start in zip(wanted.gaps, gaps, strict=True)] == [True]


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("for: both, per: user", ["account nlp"]),
        ("for: everyone, per: user", ["account nlp, other"]),  # and nobody is in account empty
        ("for: undergrads, per: user", ["account nlp, other"]),
        ("for: alice, per: user", []),
        ("for: grads, per: user", []),
    ],
)
def test_jobs_outside_of_what_is_managed_are_told(line: str, outside: list[str]) -> None:
    text = rules(f"{line}, limits: {{jobs_running: 4}}").replace("[vision, nlp], qos", "[vision], qos")
    wanted = wish(text, (*ASSOCIATIONS, account("empty")))
    assert [str(gap) for gap in wanted.gaps] == [
        f"r1: jobs_running: nothing holds it: not for {names}: not managed, or not in slurmdbd"
        for names in outside
    ]
    assert {entity.name for entity in wanted.bounds} == {"vision"}


def test_trial_rules_and_groups_that_ended_ask_nothing_of_slurm() -> None:
    wanted = wish(
        rules(
            "for: grads, per: job, mode: advise, limits: {gpus: 4}",
            "for: course, per: job, limits: {gpus: 4}",
        )
    )
    assert (wanted.bounds, wanted.gaps) == ({}, ())


def test_what_is_not_tracked_cannot_be_limited() -> None:
    wanted = wish(rules("for: grads, per: job, limits: {gpus: 4}"), tres=frozenset({"cpu"}))
    assert numbers(wanted) == {}
    assert "AccountingStorageTRES" in str(wanted.gaps[0])


def test_names_that_slurmdbd_lacks_are_told_with_the_command_that_makes_them() -> None:
    policy = rules("for: everyone, per: job, limits: {gpus: 4}").replace("[vision, nlp]", "[vision, nowhere]")
    assert [remark.partition("; ")[2] for remark in wish(policy).remarks] == [
        "`sacctmgr add account nowhere` makes it"
    ]


def test_users_by_partition_are_left_as_they_are() -> None:
    wanted = wish(
        rules("for: grads, per: user, limits: {gpus_running: 4}"),
        (*ASSOCIATIONS, user("alice", "vision", partition="gpu")),
    )
    assert numbers(wanted) == {"vision/bob": {"GrpTRES=gres/gpu": 4}}
    assert wanted.remarks[0].startswith("alice has associations by partition")


# The property that matters, against an evaluation of its own: for whom a rule is, that much they have.

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
def test_everyone_has_exactly_the_tightest_of_the_rules(chosen: list[tuple[str, str, int]]) -> None:
    lines = [
        f"for: {group}, per: {_JOB_OR_USER[key][0]}, limits: {{{key}: {n}{'h' * (key == 'walltime')}}}"
        for group, key, n in chosen
    ]
    wanted = wish(rules(*lines) if lines else rules().replace("rules:", "rules: []"))
    assert {entity.name for entity in wanted.bounds} <= {"vision", "nlp"}
    for account_, user_ in (("vision", "alice"), ("vision", "bob"), ("nlp", "bob")):
        own = wanted.bounds.get(of(f"{account_}/{user_}"), {})
        handed_on = wanted.bounds.get(of(account_), {})
        for field in {name for _, name in _JOB_OR_USER.values()}:
            bound = own.get(limit(field))
            if bound is None and limit(field).name in INHERITED:
                bound = handed_on.get(limit(field))
            expected = [
                n * 60 if key == "walltime" else n
                for group, key, n in chosen
                if _JOB_OR_USER[key][1] == field and _GROUPS[group](account_, user_)
            ]
            assert (None if bound is None else bound.value) == min(expected, default=None)
