"""Compare a user's own use with each limit."""

from __future__ import annotations

from dataclasses import replace

from slurm_gpu.controller.queue.usage import RunningAndPending, Subject, Usage, UsageTotals
from slurm_gpu.controller.reporting.quota import QuotaLine, quota_of
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, RuleInForce
from slurm_gpu.slurm.submission import UserAssociations

from .fakes import NOON_S

GRADS = GroupInForce("grads", accounts=frozenset({"vision"}))
ALICE = UserAssociations(accounts=frozenset({"vision"}), qos=frozenset({"normal"}))
USE = RunningAndPending(
    UsageTotals(3, 12_000, 96, 4096, 3, {"a100": 8000}), UsageTotals(5, 20_000, 40, 0, 5, {"v100": 1000})
)
SNAPSHOT = Snapshot(
    1,
    NOON_S,
    "ab",
    Usage(
        {
            Subject("alice", "grads"): USE,
            Subject(None, "grads"): RunningAndPending(UsageTotals(9)),
            Subject(None, "labs", "vision"): RunningAndPending(UsageTotals(3), UsageTotals(1)),
        },
        {},
    ),
    hours={Subject("alice", "grads"): {"gpu_h_week": 410.5, "cpu_h_week": 7.0}},
    period_starts={"gpu_h_day": 3, "gpu_h_week": 2, "cpu_h_week": 2},
)


def rule(
    limits: dict[str, object], per: str = "user", group: GroupInForce = GRADS, **more: object
) -> RuleInForce:
    return RuleInForce("share", group, per, "Others.", "enforce", limits, **more)  # type: ignore[arg-type]


def lines(*rules: RuleInForce, places: UserAssociations = ALICE, now_s: float = NOON_S) -> list[QuotaLine]:
    policy = PolicyInForce(tuple(dict.fromkeys(rule.group for rule in rules)), rules, "ab")
    return quota_of(policy, SNAPSHOT, "alice", 1001, places, now_s)


def used(limits: dict[str, object], per: str = "user") -> dict[str, float | None]:
    return {line.key: line.used for line in lines(rule(limits, per))}


def test_a_limit_per_account_is_shown_for_each_account_of_the_user() -> None:
    group = GroupInForce("labs", accounts=frozenset({"vision", "nlp"}), by_account=True)
    places = UserAssociations(accounts=frozenset({"other", "nlp", "vision"}), qos=ALICE.qos)
    shown = [
        (line.account, line.used) for line in lines(rule({"jobs_total": 9}, "account", group), places=places)
    ]
    assert shown == [("nlp", 0), ("vision", 4)]
    unknown = UserAssociations(accounts=None, qos=None)
    (line,) = lines(rule({"jobs_total": 9}, "account", group), places=unknown)
    assert (line.account, line.used) == (None, None)


def test_each_limit_counts_jobs_in_its_states() -> None:
    assert used(
        {
            "gpus_total": 64_000,
            "gpus_running": 16_000,
            "jobs_total": 20,
            "jobs_pending": 10,
            "gpus_pending": 30_000,
            "cpus_total": 200,
            "memory_running": 8192,
        }
    ) == {
        "gpus_total": 32_000,
        "gpus_running": 12_000,
        "jobs_total": 8,
        "jobs_pending": 5,
        "gpus_pending": 20_000,
        "cpus_total": 136,
        "memory_running": 4096,
    }


def test_gpus_whose_type_is_not_known_yet_count_for_every_type() -> None:
    assert used({"gpus_total:a100": 1, "gpus_running:a100": 1, "gpus_total:v100": 1}) == {
        "gpus_total:a100": 8000 + 4000 + 19_000,
        "gpus_total:v100": 1000 + 4000 + 19_000,
        "gpus_running:a100": 8000 + 4000,
    }


def test_gpu_hours_are_those_of_the_period_and_0_where_there_are_none() -> None:
    assert used({"gpu_hours:week": 500.0, "gpu_hours:day": 50.0, "cpu_hours:week": 9.0}) == {
        "gpu_hours:week": 410.5,
        "gpu_hours:day": 0.0,
        "cpu_hours:week": 7.0,
    }


def test_hours_on_one_gpu_type_are_shown_with_the_type() -> None:
    sums = {"gpu_h_week:a100": 3.0, "gpu_h_week_before:a100": 4.0, "gpu_h_committed:a100": 1.0}
    starts = {key: 1 for key in sums if "committed" not in key}
    snapshot = replace(SNAPSHOT, hours={Subject("alice", "grads"): sums}, period_starts=starts)
    counted = rule({"gpu_hours:week:a100": 10.0}, hard=True, carry_over=True)
    (line,) = quota_of(PolicyInForce((GRADS,), (counted,), "ab"), snapshot, "alice", 1001, ALICE, NOON_S)
    assert (line.limit, line.used, line.carried) == (16.0, 4.0, 6.0)
    assert line.on == "GPU-hours (a100) used or committed this week"


def test_what_is_carried_over_is_part_of_the_limit() -> None:
    before = {"gpu_h_week": 410.5, "gpu_h_week_before": 450.0}
    snapshot = replace(
        SNAPSHOT,
        hours={Subject("alice", "grads"): before},
        period_starts={"gpu_h_week": 2, "gpu_h_week_before": 1, "gpu_h_30d": 1, "gpu_h_day": 3},
    )
    limits = {"gpu_hours:week": 500.0, "gpu_hours:30d": 900.0, "gpu_hours:day": 50.0}
    policy = PolicyInForce((GRADS,), (rule(limits, carry_over=True),), "ab")
    found = quota_of(policy, snapshot, "alice", 1001, ALICE, NOON_S)
    assert {line.key: (line.limit, line.used, line.carried, line.left) for line in found} == {
        "gpu_hours:week": (550.0, 410.5, 50.0, 139.5),
        "gpu_hours:30d": (900.0, 0.0, None, 900.0),  # a rolling window
        "gpu_hours:day": (50.0, None, None, None),  # slurm-gpuctld does not count the previous day yet
    }


def test_a_limit_per_group_is_measured_by_the_group_and_one_of_a_job_by_nothing() -> None:
    assert used({"jobs_total": 100}, "group") == {"jobs_total": 9}
    assert used({"gpus": 8000, "walltime": 3600}, "job") == {"gpus": None, "walltime": None}
    (hours,) = lines(rule({"gpu_hours": 96}, "job"))
    assert (hours.on, hours.limit, hours.used) == ("each job's GPU-hours", 96, None)


def test_use_by_rules_for_interactive_jobs_is_not_known_from_a_snapshot() -> None:
    (line,) = lines(rule({"jobs_total": 1}, kind="interactive"))
    assert (line.used, line.left) == (None, None)


def test_the_remainder_is_never_negative() -> None:
    (line,) = lines(rule({"jobs_total": 5}))
    assert (line.used, line.left) == (8, 0)


def test_groups_that_none_of_the_users_jobs_can_be_in_are_left_out() -> None:
    for group in (
        GroupInForce("others", uids=frozenset({1002})),
        GroupInForce("nlp", accounts=frozenset({"nlp"})),
        GroupInForce("urgent", qos=frozenset({"high"})),
        GroupInForce("course", until_s=NOON_S),
        GroupInForce("spring", from_s=NOON_S + 1),
    ):
        assert lines(rule({"jobs_total": 5}, group=group)) == []
    # If Slurm returns no partitions for the user, all partitions are possible.
    nlp = GroupInForce("nlp", accounts=frozenset({"nlp"}))
    assert len(lines(rule({"jobs_total": 5}, group=nlp), places=UserAssociations())) == 1


def test_a_user_s_exception_replaces_the_limit_until_its_end() -> None:
    exceptions = {1001: {"until_s": NOON_S + 1, "why": "deadline", "limits": {"jobs_total": 50}}}
    limits: dict[str, object] = {"jobs_total": 5, "gpus_total": 1}
    gpus, jobs = lines(rule(limits, exceptions=exceptions))
    assert (jobs.limit, jobs.until_s, gpus.until_s) == (50, NOON_S + 1, None)
    assert [line.limit for line in lines(rule(limits, exceptions=exceptions), now_s=NOON_S + 1)] == [1, 5]
    later = {1001: {"from_s": NOON_S + 1, "limits": {"jobs_total": 50}}}
    assert [line.limit for line in lines(rule(limits, exceptions=later))] == [1, 5]
    jobs = lines(rule(limits, exceptions=later), now_s=NOON_S + 1)[1]
    assert (jobs.limit, jobs.until_s, jobs.exception) == (50, None, later[1001])
