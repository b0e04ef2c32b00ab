"""Rules with tiers, and exceptions for groups: exactly one part of a rule applies to a job."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools

import pytest

from slurm_gpu.cli.policy.explain_job import ExplainedJob, decision_of
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.reporting.quota import quota_of
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.errors import InputError
from slurm_gpu.policy.dead_rules import find_doubts
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.limit_edit import edit_limit
from slurm_gpu.policy.language.limit_value import with_value
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.language.tiers import whole_rules, written_groups
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import policy_of
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.reports.recommend.rules import modelled_rules
from slurm_gpu.slurm.submission import UserAssociations

from .checking import check, mistakes
from .model import Request
from .nativepolicies import numbers, rules, wanted_limits
from .render import PARTITIONS, description
from .users import UIDS, Directory

TEXT = """\
version: 1
mode: enforce
groups:
  staff: {unix_groups: [undergrad]}
  guests: {accounts: ["guest*"]}
  paying: {accounts: [vision, nlp]}
rules:
  - id: share
    per: user
    why: Fair.
    tiers:
      - {for: staff}
      - {for: guests, limits: {gpus_total: 1, jobs_total: 2}, why: Guests pay nothing.}
      - {for: paying, limits: {gpus_total: 20}, mode: advise}
      - {limits: {gpus_total: 2}}
exceptions:
  - {rule: share, user: alice, limits: {jobs_total: 5, gpus_total: 4}, why: w, until: 2026-12-31}
"""
DAY = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


@functools.cache
def bundle(text: str = TEXT) -> str:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    return build_bundle(
        compile_policy(policy, resolve_names(policy, source, Directory()), SiteFacts(year=2026))
    )


def submit(job: Request, text: str = TEXT, lua: str = "5.4", at: dt.datetime = DAY) -> tuple[str, ...]:
    script = PolicyScript(bundle(text), lua=lua, now=lambda: int(at.timestamp()))
    return script.submit(description(job), PARTITIONS).messages


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_the_first_tier_that_matches_a_job_applies(lua: str) -> None:
    assert submit(Request(1002, "guests", per_job=30), lua=lua) == ()
    assert submit(Request(1001, "other", per_job=4), lua=lua) == ()
    assert submit(Request(1009, "guests", per_job=2), lua=lua)[:2] == (
        "Refused by rule share (guests): Guests pay nothing.",
        "  GPUs running + pending: used 0, limit 1, requested 2.",
    )
    assert submit(Request(1009, "vision", per_job=21), lua=lua)[0] == "Violates rule share (paying): Fair."
    assert submit(Request(1009, "other", per_job=3), lua=lua)[0] == "Refused by rule share: Fair."


def test_an_exception_of_a_user_replaces_the_limits_that_the_tier_sets() -> None:
    alice = Request(1001, "guest-x", array_tasks=6)
    assert "  jobs running + pending: used 0, limit 5, requested 6." in submit(alice)
    assert submit(dataclasses.replace(alice, account="other")) == ()
    later = dt.datetime(2027, 1, 1, 12, tzinfo=dt.UTC)
    assert "  jobs running + pending: used 0, limit 2, requested 6." in submit(alice, at=later)


def test_a_job_that_may_start_in_two_tiers_is_subject_to_both() -> None:
    text = TEXT.replace('{accounts: ["guest*"]}', "{partitions: [long]}")
    job = Request(1009, "other", "long,gpu", per_job=3)
    assert [line for line in submit(job, text) if line.startswith("Refused")] == [
        "Refused by rule share (guests): Guests pay nothing.",
        "Refused by rule share: Fair.",
    ]


def test_a_refusal_for_the_whole_group_names_the_jobs_that_count() -> None:
    text = TEXT.replace("per: user", "per: group").partition("exceptions:")[0]
    lines = submit(Request(1009, "guest", per_job=2), text)
    assert "(limit shared by group guests)." in " ".join(" ".join(lines).split())
    lines = submit(Request(1009, "other", per_job=3), text)
    assert "(limit shared by all other jobs)." in " ".join(" ".join(lines).split())


def test_admin_comment_and_explain_name_the_tier() -> None:
    script = PolicyScript(bundle(), now=lambda: int(DAY.timestamp()))
    comment = str(
        script.submit(description(Request(1009, "guest", per_job=1)), PARTITIONS).desc["admin_comment"]
    )
    assert " r=share%20%28guests%29" in comment
    assert decision_of(ExplainedJob(1, "PENDING", comment, None, 1), None).nearest_rule == "share (guests)"


EXCEPTION = """\
version: 1
mode: enforce
groups:
  all: {until: 2027-06-30}
  cvpr: {accounts: [vision]}
  old: {accounts: [nlp]}
rules:
  - {id: size, for: all, per: job, why: Fair., limits: {gpus: {a100: 2, h100: 1}, walltime: 2d, cpus: 8}}
exceptions:
  - {rule: size, group: cvpr, limits: {gpus: {a100: 4}}, from: 2026-12-01, until: 2026-12-31, why: Deadline.}
  - {rule: size, group: old, limits: {walltime: 4d}, why: Agreed., granted_by: dana}
"""


def test_the_days_of_an_exception_divide_the_rest_of_its_rule() -> None:
    policy = check(EXCEPTION)
    found = [(rule.id, *policy.groups[rule.group].days) for rule in policy.rules]
    december, new_year, end = dt.date(2026, 12, 1), dt.date(2027, 1, 1), dt.date(2027, 6, 30)
    last = [december - dt.timedelta(1), new_year - dt.timedelta(1)]
    assert found == [
        ("size (cvpr)", december, last[1]),
        ("size (old)", dt.date.min, last[0]),
        ("size (old)", december, last[1]),
        ("size (old)", new_year, end),
        ("size", dt.date.min, last[0]),
        ("size", december, last[1]),
        ("size", new_year, end),
    ]
    assert len(policy.groups) == 3 + len(found)
    assert [*written_groups(policy)] == ["all", "cvpr", "old"]
    assert [rule.id for rule in whole_rules(policy)] == ["size"]
    assert policy.groups["rule size from 2026-12-01"].none_of == ("cvpr", "old")
    assert policy.rules[0].limits.gpus is not None
    assert policy.rules[0].limits.gpus.by_type_mgpu == {"a100": 4000, "h100": 1000}


@pytest.mark.parametrize(
    ("day", "account", "gpus", "title"),
    [
        ("2026-11-30", "vision", 3, "rule size"),
        ("2026-12-01", "vision", 3, None),
        ("2026-12-31", "vision", 5, "rule size (cvpr)"),
        ("2027-01-01", "vision", 3, "rule size"),
        ("2026-12-15", "nlp", 3, "rule size (old)"),
        ("2026-12-15", "other", 3, "rule size"),
        ("2027-07-01", "other", 3, None),
    ],
)
def test_an_exception_of_a_group_applies_on_its_days(
    day: str, account: str, gpus: int, title: str | None
) -> None:
    at = dt.datetime.fromisoformat(f"{day} 12:00+00:00")
    lines = submit(Request(1001, account, per_job=gpus, gpu_type="a100"), EXCEPTION, at=at)
    assert lines[:1] == (() if title is None else (f"Refused by {title}: Fair.",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("for: staff", "for: stuff", "p.yaml:12:15: for: 'stuff' is not a group; did you mean staff?"),
        (
            "      - {for: staff}\n",
            "      - {}\n",
            "tiers: this tier never applies: the tier without for: must",
        ),
        ("for: paying", "for: guests", "p.yaml:14:9: tiers: there is an earlier tier for guests"),
        ("gpus_total: 20", "gpus: 20", "'gpus' is not allowed in a rule with per: user"),
        ("    why: Fair.\n", "    why: Fair.\n    limits: {jobs_total: 9}\n", "limits: this rule has tiers"),
        (
            "    tiers:\n",
            "    adjust: {gpus_running: [1, 2]}\n    tiers:\n",
            "rule share does not set this limit",
        ),
        (
            "{limits: {gpus_total: 2}}",
            "{limits: {}}",
            "p.yaml:15:18: limits of tier 4 of rule share is empty",
        ),
        ("user: alice, ", "", "exception 1 needs either user: or group:"),
        ("user: alice", "user: alice, group: staff", "exception 1 needs either user: or group:"),
        ("user: alice", "group: stuff", "group: 'stuff' is not a group; did you mean staff?"),
        ("user: alice", "group: staff", "rule: 'share' has tiers; add a tier for group staff to it"),
        ("{jobs_total: 5,", "{cpus_total: 5,", "'cpus_total': rule share does not set this limit"),
    ],
)
def test_mistakes_in_tiers_are_reported(old: str, new: str, message: str) -> None:
    assert old in TEXT
    found = mistakes(TEXT.replace(old, new, 1))
    assert any(message in line for line in found), found


def test_a_rule_has_tiers_or_limits_for_a_group() -> None:
    head, _, rest = TEXT.partition("    tiers:")
    exempt = head + "    tiers: [{for: staff}]\n"
    assert mistakes(exempt) == ["p.yaml:11:5: tiers: no tier has limits"]
    (first, second) = mistakes(head)
    assert "rule share lacks for; write for: a text" in first
    assert "rule share lacks limits" in second
    assert rest


def test_the_page_shows_the_tiers_in_order() -> None:
    section = make_page(check(TEXT)).rules[0]
    assert section.whom == "for every job; only the first line that matches a job applies"
    assert section.limits == (
        "staff (UNIX groups undergrad): no limit",
        "guests (accounts guest*): at most 1 GPU running and pending per user, at most 2 jobs running and "
        "pending per user (Guests pay nothing.)",
        "paying (accounts vision, nlp): at most 20 GPUs running and pending per user. Advice only: jobs "
        "that violate it are accepted with a warning.",
        "all other jobs: at most 2 GPUs running and pending per user",
    )
    assert len(section.exceptions) == 1
    (size, *_) = make_page(check(EXCEPTION)).rules
    assert size.exceptions == (
        "Exception from 2026-12-01 until 2026-12-31 for cvpr (accounts vision): at most 4 GPUs of type a100 "
        "per job (Deadline.)",
        "Exception for old (accounts nlp): time limit at most 4d (Agreed., granted by dana)",
    )


def test_json_lists_each_tier_as_a_rule() -> None:
    shown = to_json(check(TEXT))
    assert [(one["id"], one["tier_of"], one["for"]) for one in shown["rules"]] == [
        ("share (guests)", "share", "rule share (guests)"),
        ("share (paying)", "share", "rule share (paying)"),
        ("share", "share", "rule share"),
    ]
    assert shown["groups"]["rule share (paying)"] == {"in": ["paying"], "not": ["staff", "guests"]}
    assert [one["group"] for one in to_json(check(EXCEPTION))["exceptions"]] == ["cvpr", "old"]


def doubts(text: str) -> list[str]:
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    return [str(one) for one in find_doubts(policy, names, source, dt.date(2026, 11, 23))]


def test_a_useful_policy_with_tiers_has_no_doubts() -> None:
    assert doubts(TEXT) == []
    assert doubts(EXCEPTION) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (
            TEXT,
            "guests: {accounts",
            "guests: {unix_groups: [undergrad], accounts",
            "p.yaml:13:9: rule share (guests) never applies: all of its jobs are in group staff",
        ),
        (
            EXCEPTION,
            "cvpr: {accounts: [vision]}",
            "cvpr: {accounts: [vision], until: 2026-11-30}",
            "p.yaml:10:5: this entry never applies to group cvpr: the days do not overlap",
        ),
        (
            EXCEPTION,
            "until: 2026-12-31",
            "until: 2026-12-01",
            "",
        ),
        # In December, the rest of the rule applies to no job; on other days, it applies to all.
        (
            EXCEPTION,
            "all: {until",
            "all: {accounts: [vision], until",
            "p.yaml:11:5: rule size (old) never applies: no job is in both groups all and old",
        ),
        (
            EXCEPTION,
            "limits: {walltime: 4d}",
            "limits: {walltime: 2d}",
            "p.yaml:11:39: rule size has the same limit, so the exception for group old has no effect",
        ),
        (
            EXCEPTION,
            "from: 2026-12-01, until: 2026-12-31",
            "until: 2026-11-01",
            "p.yaml:10:58: the exception for group cvpr from rule size expired on 2026-11-01",
        ),
    ],
)
def test_a_part_of_a_rule_without_effect_is_reported_once(
    text: str, old: str, new: str, message: str
) -> None:
    assert old in text
    assert doubts(text.replace(old, new)) == ([message] if message else [])


def test_slurm_s_limits_are_those_of_the_tiers() -> None:
    tiers = "tiers: [{for: undergrads}, {for: alice, limits: {gpus_total: 8}}, {limits: {gpus_total: 2}}]"
    wanted = wanted_limits(rules(f"per: user, {tiers}"))
    assert numbers(wanted) == {"vision/alice": {"GrpTRES=gres/gpu": 8}}
    more = "exceptions: [{rule: r1, group: alice, limits: {gpus: 8}, why: w, until: 2026-11-21}]"
    text = rules("for: both, per: job, limits: {gpus: 2}", more=more)
    assert numbers(wanted_limits(text)) == {
        "vision/alice": {"MaxTRES=gres/gpu": 8},
        "vision/bob": {"MaxTRES=gres/gpu": 2},
        "nlp/bob": {"MaxTRES=gres/gpu": 2},
    }
    later = wanted_limits(text, today=dt.date(2026, 11, 22))
    assert numbers(later) == {name: {"MaxTRES=gres/gpu": 2} for name in ("vision", "nlp")}


def test_quota_shows_the_tiers_in_which_a_user_can_have_jobs() -> None:
    in_force = policy_of(bundle())
    snapshot = Snapshot(0, int(DAY.timestamp()), None, Usage({}, {}))

    def shown(user: str, *accounts: str) -> list[tuple[str, float]]:
        places = UserAssociations(accounts=frozenset(accounts), qos=frozenset({"normal"}))
        lines = quota_of(in_force, snapshot, user, UIDS[user], places, DAY.timestamp())
        return [(line.rule.id, line.limit) for line in lines]

    assert shown("alice", "guest-1") == [("share (guests)", 4000), ("share (guests)", 5)]
    assert shown("alice", "vision", "other") == [("share (paying)", 4000), ("share", 4000)]
    assert shown("bob", "vision") == []


def test_the_limit_of_a_tier_can_be_changed_in_the_file() -> None:
    text = TEXT.replace("gpus_total", "gpus_running")
    edited = edit_limit(text, "p.yaml", "share (guests)", "gpus_running", 3000)
    assert edited == text.replace("gpus_running: 1,", "gpus_running: 3,")
    edited = edit_limit(text, "p.yaml", "share", "gpus_running", 3000)
    assert edited == text.replace("gpus_running: 2}", "gpus_running: 3}")


RUNNING = """\
version: 1
mode: enforce
groups: {all: {}, cvpr: {accounts: [vision]}, old: {accounts: [nlp]}}
rules: [{id: use, for: all, per: user, why: w, limits: {gpus_running: 2, jobs_running: 8}}]
exceptions:
  - {rule: use, group: cvpr, limits: {gpus_running: 4}, from: 2026-12-01, until: 2026-12-31, why: w}
  - {rule: use, group: old, limits: {jobs_running: 4}, why: w}
"""


def test_a_moved_limit_moves_for_groups_whose_exception_does_not_replace_it() -> None:
    moved = with_value(check(RUNNING), "use", "gpus_running", 3000)
    assert moved == check(RUNNING.replace("gpus_running: 2", "gpus_running: 3"))
    edited = edit_limit(RUNNING, "p.yaml", "use", "jobs_running", 9)
    assert edited == RUNNING.replace("jobs_running: 8", "jobs_running: 9")
    with pytest.raises(InputError, match="is not written as a single value"):
        edit_limit(RUNNING, "p.yaml", "use (old)", "gpus_running", 3000)


def test_the_model_of_the_cluster_uses_the_parts_in_force() -> None:
    at_s = dt.datetime(2026, 12, 5, tzinfo=dt.UTC).timestamp()
    modelled, remarks = modelled_rules(policy_of(bundle(RUNNING)), [], at_s)
    assert [rule.id for rule in modelled.rules] == ["use (cvpr)", "use (old)", "use"]
    assert remarks == ()


SHAPES = """\
version: 1
mode: enforce
groups:
  staff: {unix_groups: [undergrad]}
  guests: {accounts: ["guest*"]}
rules:
  - id: shape
    per: job
    why: Fair.
    when: {days: mon-fri, hours: "08-18", at: run}
    tiers:
      - {for: staff, at_least: {gpus: 1}}
      - {for: guests, exactly: {nodes: 2, cpus_per_gpu: 4}, options: {time: required}}
      - {options: {gpu_type: required, mem: forbidden}}
exceptions:
  - {rule: shape, user: alice, exactly: {nodes: 1}, why: A deadline.}
"""


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_tiers_may_set_minimums_and_options_for_the_time_of_the_run(lua: str) -> None:
    staff = Request(1002, "guests", minutes=60)
    assert submit(staff, SHAPES, lua)[:3] == (
        "Refused by rule shape (staff): Fair.",
        "  The rule applies to jobs that may run on Monday to Friday from 08:00 to 18:00.",
        "  GPUs in one job: at least 1, requested 0.",
    )
    assert submit(staff, SHAPES, lua, DAY.replace(hour=18)) == ()
    night = submit(dataclasses.replace(staff, minutes=15 * 60), SHAPES, lua, DAY.replace(hour=18))
    assert night[-1] == "  To end before these hours: --time=13:59:00"
    guest = Request(1009, "guests", per_node=1, cpus_per_gpu=4)
    assert submit(guest, SHAPES, lua)[2:] == (
        "  nodes in one job: at least 2, requested 1.",
        "  This rule requires --time.",
        "  Try: sbatch --nodes=2 --time=01:00:00 ...",
        "  To run at other hours: --begin=2026-11-23T18:00",
    )
    assert submit(dataclasses.replace(guest, nodes=2, minutes=60), SHAPES, lua) == ()
    assert submit(dataclasses.replace(guest, uid=1001, minutes=60), SHAPES, lua) == ()
    other = submit(Request(1009, "other", per_job=1, mib_per_node=100), SHAPES, lua)
    assert [line for line in other if line.startswith("  This rule")] == [
        "  This rule requires the type of each GPU, such as --gpus=TYPE:2.",
        "  This rule forbids --mem, --mem-per-cpu and --mem-per-gpu.",
    ]


def test_the_page_and_json_show_minimums_and_options_of_tiers() -> None:
    policy = check(SHAPES)
    assert make_page(policy).rules[0].limits == (
        "staff (UNIX groups undergrad): at least 1 GPU per job",
        "guests (accounts guest*): exactly 2 nodes per job, exactly 4 CPUs per GPU per job. "
        "Jobs must set --time",
        "all other jobs: no limit. Jobs must set the type of each GPU. "
        "Jobs must not set --mem, --mem-per-cpu or --mem-per-gpu",
    )
    shown = {rule["id"]: (rule["at_least"], rule["options"]) for rule in to_json(policy)["rules"]}
    assert shown == {
        "shape (staff)": ({"gpus": 1}, {}),
        "shape (guests)": ({"nodes": 2, "cpus_per_gpu": 4}, {"time": "required"}),
        "shape": ({}, {"gpu_type": "required", "mem": "forbidden"}),
    }


def test_a_rule_with_tiers_sets_its_minimums_and_options_there() -> None:
    own = "    at_least: {gpus: 1}\n    options: {mem: required}\n    tiers:\n"
    first, second = mistakes(SHAPES.replace("    tiers:\n", own))
    assert "at_least: this rule has tiers; write it in a tier" in first
    assert "options: this rule has tiers; write it in a tier" in second
    twice = mistakes(SHAPES.replace("exactly: {nodes: 2,", "limits: {nodes: 3}, exactly: {nodes: 2,"))
    assert "nodes: limits: already sets it; write it once" in twice[0]


def test_useless_and_impossible_parts_of_tiers_are_reported() -> None:
    text = SHAPES.replace("at_least: {gpus: 1}}", "at_least: {gpus: 2, tasks: 0}, limits: {gpus: 1}}")
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    doubts = find_doubts(policy, resolve_names(policy, source, Directory()), source, DAY.date())
    assert [str(doubt).split(": ", 1)[1] for doubt in doubts] == [
        "no job satisfies both the minimum of gpus in rule shape (staff) and its maximum",
        "a minimum of 0 has no effect: tasks of rule shape (staff)",
    ]
