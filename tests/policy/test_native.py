"""What of a policy Slurm's own limits hold: never more than it says, and only where it may write."""

from __future__ import annotations

import datetime as dt
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.policy.check import check_policy
from slurm_gpu.policy.names import resolve_names
from slurm_gpu.policy.native.difference import Owned, commands, difference, drift
from slurm_gpu.policy.native.fields import INHERITED
from slurm_gpu.policy.native.plan import plan_native
from slurm_gpu.policy.native.stranded import stranded
from slurm_gpu.policy.native.wanted import Accounting, Wanted, lua_only, want
from slurm_gpu.slurm.client import QueuedJob, SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.sacctmgr import Association, LimitField, Qos
from slurm_gpu.yamlsource import parse_yaml

from .limitstore import TRES, MemoryStore, account, fields, limit, of, qos, user
from .users import UIDS, Directory

TODAY = dt.date(2026, 11, 21)
ASSOCIATIONS = (
    Association(account="root"),
    user("root", "root"),
    account("vision"),
    user("alice", "vision"),
    user("bob", "vision"),
    account("nlp"),
    user("bob", "nlp"),
    account("other"),
    user("carol", "other"),
)


def load(text: str):
    source = parse_yaml(textwrap.dedent(text), "policy.yaml")
    policy = check_policy(source)
    return policy, resolve_names(policy, source, Directory())


def wish(text: str, associations=ASSOCIATIONS, qos: tuple[Qos, ...] = (), today=TODAY, tres=TRES) -> Wanted:
    policy, names = load(text)
    found = Accounting(cluster="c", associations=associations, qos=qos, tres=tres)
    return want(policy, names, found, today, UIDS.get)


def numbers(wanted: Wanted) -> dict[str, dict[str, int]]:
    """{"vision/alice": {"GrpTRES=gres/gpu": 4}}"""
    names = {of(name): name for name in ("vision", "vision/alice", "vision/bob", "nlp", "nlp/bob", "other")}
    return {
        names.get(entity, str(entity)): {str(field): bound.value for field, bound in bounds.items()}
        for entity, bounds in wanted.bounds.items()
    }


RULES = """\
    version: 1
    manages: {accounts: [vision, nlp], qos: [sg-*]}
    groups:
      grads: {accounts: [vision]}
      both: {accounts: [vision, nlp]}
      undergrads: {unix_groups: [undergrad]}
      alice: {users: [alice]}
      long: {qos: [SG-long]}
      night: {partitions: [night]}
      everyone: {}
      course: {accounts: [nlp], until: 2026-11-20}
    rules:
"""


def rules(*lines: str, more: str = "") -> str:
    written = "".join(f"      - {{id: r{number}, why: x, {line}}}\n" for number, line in enumerate(lines, 1))
    return textwrap.dedent(RULES + written) + textwrap.dedent(more)


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


# From what is found to what is wanted.

ONE = rules("for: grads, per: user, limits: {jobs_running: 4}")
NONE = rules("for: grads, per: user, mode: observe, limits: {jobs_running: 4}")


def found(associations=ASSOCIATIONS):
    return Accounting(cluster="c", associations=associations).limits()


def own(value: int, before: int | None = None) -> Owned:
    return Owned(of("vision"), limit("MaxJobs"), value, before, "r1")


def test_a_limit_set_by_hand_that_no_rule_names_stays() -> None:
    by_hand = (account("vision", GrpJobs=7, MaxJobs=4), account("other", MaxJobs=1))
    assert difference(wish(ONE, by_hand), found(by_hand), ()).steps == ()
    assert difference(wish(NONE, by_hand), found(by_hand), ()).steps == ()


def test_a_limit_that_no_rule_names_any_more_becomes_what_it_was_before() -> None:
    now = (account("vision", MaxJobs=4),)
    (step,) = difference(wish(NONE, now), found(now), [own(4, before=2)]).steps
    assert (step.old, step.new) == (4, 2)
    assert str(step) == "account vision: MaxJobs=2 (was 4; no rule wants it any more)"
    changed = (account("vision", MaxJobs=5),)
    left = difference(wish(NONE, changed), found(changed), [own(4, before=2)])
    assert left.steps == ()
    assert "MaxJobs=4 (rule r1) was set to 5 by hand; no rule wants it any more" in left.remarks[0]


def test_what_was_before_is_remembered_over_every_apply() -> None:
    by_hand = (account("vision", MaxJobs=9),)
    first = difference(wish(ONE, by_hand), found(by_hand), ())
    assert [(one.value, one.before) for one in first.owned] == [(4, 9)]
    again = (account("vision", MaxJobs=4),)
    second = difference(wish(ONE, again), found(again), first.owned)
    assert (second.steps, second.owned) == ((), first.owned)


def test_what_somebody_changed_by_hand_is_drift_and_what_is_gone_is_not() -> None:
    (one,) = drift(found((account("vision", MaxJobs=50),)), [own(4)])
    assert str(one) == "account vision: MaxJobs=4 (rule r1) was set to 50 by hand"
    assert str(drift(found((account("vision"),)), [own(4)])[0]).endswith("was taken away by hand")
    assert drift(found((account("nlp"),)), [own(4)]) == ()


def test_what_is_no_longer_managed_becomes_what_it_was_and_is_not_touched_again() -> None:
    unmanaged = NONE.replace("[vision, nlp]", "[nlp]")
    now = (account("vision", MaxJobs=4, GrpJobs=9),)
    change = difference(wish(unmanaged, now), found(now), [own(4)])
    assert [str(step) for step in change.steps] == [
        "account vision: MaxJobs=none (was 4; no rule wants it any more)"
    ]
    assert change.owned == ()


def test_a_users_own_looser_limit_is_told() -> None:
    now = (account("vision"), user("alice", "vision", MaxJobs=50))
    (remark,) = difference(wish(ONE, now), found(now), ()).remarks
    assert remark.startswith("user alice in account vision has MaxJobs=50 of its own, set by hand")


def test_users_who_change_alike_go_together() -> None:
    change = difference(
        wish(
            rules(
                "for: grads, per: user, limits: {gpus_running: 4}",
                "for: alice, per: job, limits: {gpus: 1}",
            ),
            (*ASSOCIATIONS, user("carol", "vision")),
        ),
        found((*ASSOCIATIONS, user("carol", "vision"))),
        (),
    )
    calls = [([entity.user for entity in entities], values) for entities, values in commands(change.steps)]
    assert calls == [
        (["bob", "carol"], {limit("GrpTRES_gpu"): 4}),
        (["alice"], {limit("GrpTRES_gpu"): 4, limit("MaxTRES_gpu"): 1}),
    ]


_AMOUNTS = st.dictionaries(
    st.sampled_from([limit(name) for name in ("MaxJobs", "GrpTRES_gpu", "MaxWall", "GrpJobs")]),
    st.integers(0, 5),
)


@given(_AMOUNTS, _AMOUNTS, _AMOUNTS, st.lists(st.sampled_from(["jobs_running", "gpus_running"]), unique=True))
def test_after_the_steps_nothing_is_left_to_do_and_back_is_back(vision, alice, other, keys) -> None:
    start = (
        Association(account="vision", limits=vision),
        Association(account="vision", user="alice", limits=alice),
        Association(account="other", limits=other),
    )
    lines = [f"for: grads, per: user, limits: {{{key}: 3}}" for key in keys]
    text = rules(*lines) if lines else NONE
    store = MemoryStore(start)
    change = difference(wish(text, start), found(start), ())
    for entities, values in commands(change.steps):
        store.set_limits("c", entities, values)
    after = store.associations("c")
    again = difference(wish(text, after), found(after), change.owned)
    assert (again.steps, again.owned) == ((), change.owned)
    assert found(after)[of("other")] == other
    undone = difference(wish(NONE, after), found(after), change.owned)
    for entities, values in commands(undone.steps):
        store.set_limits("c", entities, values)
    assert found(store.associations("c")) == found(start)


# Queued jobs.


def job(job_id: int, user_: str = "alice", account_: str = "vision", **more) -> QueuedJob:
    given_ = {
        "state": "PENDING", "qos": "normal", "time_limit_s": 3600,
        "tres_requested": {"cpu": 8.0, "mem": 4096.0, "node": 1.0, "gres/gpu": 4.0},
    } | more  # fmt: skip
    return QueuedJob(
        job_id=job_id, array_job_id=None, array_task=None, n_tasks=1, het_job_id=None, name="j", user=user_,
        uid=1, account=account_, partition="gpu", reason="", restarts=0, submit_s=1, eligible_s=1,
        start_s=None, end_s=None, n_nodes=1, nodes=[], tres_allocated={}, gpu_index={}, gres_per_node="",
        features="", admin_comment="", work_dir="/", **given_,
    )  # fmt: skip


def test_queued_jobs_that_could_never_start_any_more_are_listed() -> None:
    now = (account("vision", MaxWall=120), user("alice", "vision"), user("bob", "vision"), account("nlp"))
    wanted = wish(
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
        job(4, "bob", time_limit_s=4 * 3600),  # could not start before either
        job(5, account_="nlp"),
        job(6, "bob", tres_requested={"cpu": 1.0}, time_limit_s=None),
    ]
    assert [str(one) for one in stranded(queue, found(now), steps)] == [
        "job 1 of alice asks for 60 minutes: user alice in account vision, MaxWall=30",
        "job 1 of alice asks for 4 gres/gpu: account vision, MaxTRES=gres/gpu=3",
    ]


def test_no_jobs_may_run_at_all() -> None:
    (one,) = stranded(
        [job(1)],
        found(),
        difference(wish(rules("for: grads, per: group, limits: {jobs_running: 0}")), found(), ()).steps,
    )
    assert str(one) == "job 1 of alice could not run: account vision, GrpJobs=0"


# Without any native layer.


def settings(**raw: str) -> SlurmSettings:
    return SlurmSettings(
        cluster="c", version="22.05.8", slurm_user="slurm", slurm_user_uid=1, conf_path="/x", raw=raw
    )


SLURMDBD = {"AccountingStorageType": "accounting_storage/slurmdbd"}


def test_without_slurmdbd_what_runs_is_held_by_nothing_and_that_is_said() -> None:
    text = rules("for: grads, per: user, limits: {gpus_running: 4, gpus_total: 8}")
    policy, names = load(text)
    store = MemoryStore(())
    plan = plan_native(policy, names, settings(), store, (), list, TODAY, UIDS.get)
    assert plan.absent is not None
    assert "job_submit.lua alone holds the policy" in plan.absent
    assert [(gap.rule, gap.key) for gap in plan.unheld] == [("r1", "gpus_running")]
    known = plan_native(policy, names, settings(), store, [own(4)], list, TODAY, UIDS.get)
    assert known.difference.owned == (own(4),)  # for the day on which it has one again
    assert lua_only(policy, TODAY, "x") != ()
    assert not has_slurmdbd(settings())


def test_a_policy_that_manages_nothing_changes_nothing() -> None:
    policy, names = load(ONE.replace("manages: {accounts: [vision, nlp], qos: [sg-*]}\n", ""))
    plan = plan_native(
        policy, names, settings(**SLURMDBD), MemoryStore(ASSOCIATIONS), (), list, TODAY, UIDS.get
    )
    assert plan.difference.steps == ()
    assert [(gap.rule, gap.key) for gap in plan.unheld] == [("r1", "jobs_running")]


def test_limits_that_slurmctld_does_not_enforce_are_told() -> None:
    policy, names = load(ONE)
    store = MemoryStore(ASSOCIATIONS)
    for enforced, told in (("none", 1), ("associations,limits,qos", 0), ("safe", 0)):
        raw = settings(**SLURMDBD, AccountingStorageEnforce=enforced)
        plan = plan_native(policy, names, raw, store, (), list, TODAY, UIDS.get)
        assert len(plan.difference.remarks) == told
        assert len(plan.difference.steps) == 1


def test_limits_read_alike_however_they_are_written() -> None:
    assert LimitField("MaxTRES", "mem").show(64) == "MaxTRES=mem=64"
    assert fields(MaxWall=60) == {LimitField("MaxWall"): 60}
