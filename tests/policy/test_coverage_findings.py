"""`policy check` warns of settings without effect and of no others, and names their position."""

from __future__ import annotations

import datetime as dt

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.dead_rules import find_doubts
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.cluster_names import unknown_to_cluster
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.slurm.client import SlurmNode

from .users import Directory

NODE = SlurmNode(
    name="n1",
    address="n1",
    state="idle",
    reason=None,
    cpus=8,
    cpus_allocated=0,
    memory_mib=1,
    memory_allocated_mib=0,
    gpus={"A100": 2, "v100": 2},
    gpus_allocated={},
    shards=0,
    shards_allocated=0,
    features=(),
    partitions=("gpu", "cpu"),
)
TODAY = dt.date(2026, 11, 21)
HEAD = """\
version: 1
groups:
  all: {}
  vision: {accounts: [vision]}
  grads: {accounts: [vision, nlp]}
  gpu: {partitions: [gpu, long]}
  bob: {users: [bob], unix_groups: [undergrad]}
rules:
"""


def rule(name: str, group: str, per: str, limits: str, more: str = "") -> str:
    return f"  - {{id: {name}, for: {group}, per: {per}, why: w, limits: {{{limits}}}{more}}}\n"


def find_warnings(
    *rules: str, tail: str = "", head: str = HEAD, manages: str = "manages: {qos: [sg-a]}\n"
) -> list[str]:
    text = (
        (head if rules else head.replace("rules:\n", ""))
        + "".join(rules)
        + tail
        + manages
        + "mode: enforce\n"
    )
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    return [
        str(error) for error in find_doubts(policy, resolve_names(policy, source, Directory()), source, TODAY)
    ]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            (rule("a", "all", "user", "gpus_total: 8"), rule("b", "grads", "user", "gpus_total: 16")),
            "gpus_total of rule b has no effect: rule a already allows at most 8 GPUs running and",
        ),
        (
            (rule("a", "grads", "group", "jobs_total: 8"), rule("b", "vision", "user", "jobs_total: 8")),
            "jobs_total of rule b has no effect: rule a already allows at most 8 jobs running and pending",
        ),
        (
            (rule("a", "all", "user", "gpus_running: 16, gpus_total: 8"),),
            "p.yaml:9:51: gpus_running of rule a has no effect: this rule already allows at most 8 GPUs",
        ),
        (
            (rule("a", "all", "user", "cpus_total: 8"), rule("b", "all", "job", "cpus: 8")),
            "cpus of rule b has no effect: rule a already allows at most 8 CPUs running and pending per user",
        ),
        (
            (rule("a", "all", "job", "gpus: 4"), rule("b", "all", "job", "gpus: {a100: 4, v100: 2}")),
            "gpus:a100 of rule b has no effect: rule a already allows at most 4 GPUs per job",
        ),
        (
            (rule("a", "all", "user", "gpu_hours: {day: 500, week: 400}"),),
            "gpu_hours:day of rule a has no effect: this rule already allows at most 400 GPU-hours a week",
        ),
        (
            (rule("a", "all", "user", "gpu_hours: {day: {a100: 500, v100: 300}, week: 400}"),),
            "gpu_hours:day:a100 of rule a has no effect: this rule already allows at most 400 GPU-hours",
        ),
        (
            (
                rule("a", "all", "job", "walltime: {1: 2d, 8: 1d}"),
                rule("b", "all", "job", "walltime: {8: 2d}"),
            ),
            "walltime of rule b has no effect: rule a already allows time limit at most 2d from 1 GPU on",
        ),
        (
            (rule("a", "all", "job", "partitions: [gpu]"), rule("b", "all", "job", "partitions: [gpu, cpu]")),
            "partitions of rule b has no effect: rule a already allows only partitions gpu per job",
        ),
        (
            (rule("a", "all", "job", "walltime: {1: 2d, 8: 7d}"),),
            "p.yaml:9:50: walltime increases from 2d to 7d at 8 GPUs; usually it decreases with the",
        ),
        (
            (rule("a", "all", "job", "gpus: 4, walltime: {1: 2d, 8: 1d}"),),
            "the walltime from 8 GPUs on never applies: the rule allows at most 4 GPUs",
        ),
        (
            (rule("a", "gpu", "job", "partitions: [cpu]"),),
            "refuses every job: group gpu contains only jobs in gpu, long, but the rule allows only cpu",
        ),
        (
            (rule("a", "all", "job", "gpu_types: [a100]"), rule("b", "all", "job", "gpu_types: [V100]")),
            "p.yaml:10:50: no GPU type satisfies both rules: rule a allows only a100",
        ),
    ],
)
def test_a_limit_that_never_binds_is_reported(rules: tuple[str, ...], message: str) -> None:
    warnings = find_warnings(*rules)
    assert any(message in line for line in warnings), warnings
    assert len(warnings) == 1, warnings


WEEKEND = HEAD.replace("rules:\n", "  weekend: {from: 2026-11-28, until: 2026-11-29}\nrules:\n")


def test_hours_on_no_day_of_a_group_are_reported() -> None:
    def weekend(when: str) -> list[str]:
        return find_warnings(rule("a", "weekend", "job", "gpus: 1", f", when: {{{when}}}"), head=WEEKEND)

    assert weekend('days: mon-fri, hours: "22-24"') == [
        "p.yaml:10:64: rule a never applies: its hours are not on the days of group weekend: "
        "from 2026-11-28 until 2026-11-29"
    ]
    # Friday's night hours end on Saturday; jobs that are submitted at the weekend may run on Monday.
    assert weekend('days: mon-fri, hours: "22-06"') == weekend("days: mon-fri, at: run") == []


@pytest.mark.parametrize(
    "rules",
    [
        # The wider rule applies to fewer jobs, at other times, to one kind only, or in a weaker mode.
        (rule("a", "vision", "user", "gpus_total: 8"), rule("b", "grads", "user", "gpus_total: 16")),
        (
            rule("a", "all", "user", "gpus_total: 8", ', when: {hours: "09-18"}'),
            rule("b", "all", "user", "gpus_total: 16"),
        ),
        (rule("a", "all", "job", "gpus: 1", ", kind: interactive"), rule("b", "all", "job", "gpus: 16")),
        (
            rule("a", "all", "user", "gpus_total: 8", ", mode: advise"),
            rule("b", "all", "user", "gpus_total: 16"),
        ),
        # A limit per user does not bound a group's sum, and a limit on one type does not bound all types.
        (rule("a", "all", "user", "gpus_total: 8"), rule("b", "all", "group", "gpus_total: 16")),
        (rule("a", "all", "user", "gpus_total: {a100: 8}"), rule("b", "all", "user", "gpus_total: 16")),
        (rule("a", "all", "user", "gpus_running: 8, gpus_total: 16, gpu_hours: {day: 10, week: 50}"),),
        (rule("a", "all", "job", "walltime: {8: 1d}"), rule("b", "all", "job", "walltime: 2d")),
        (rule("a", "gpu", "job", "partitions: [gpu]"), rule("b", "all", "job", "partitions: [gpu, cpu]")),
    ],
)
def test_a_limit_that_can_bind_is_not_reported(rules: tuple[str, ...]) -> None:
    assert find_warnings(*rules) == []


def test_an_exception_from_the_stricter_rule_makes_the_looser_rule_bind() -> None:
    rules = (rule("a", "all", "user", "gpus_total: 8"), rule("b", "all", "user", "gpus_total: 16"))
    exception = "exceptions: [{rule: a, user: bob, limits: {gpus_total: 32}, until: 2026-12-05, why: w}]\n"
    assert len(find_warnings(*rules)) == 1
    assert find_warnings(*rules, tail=exception) == []


ALL_MANAGED = "manages: {qos: [sg-*], accounts: [vision, nlp]}\n"


@pytest.mark.parametrize(
    ("limits", "manages", "why"),
    [
        (
            rule("a", "all", "user", "gpus_running: 8"),
            "",
            "Slurm's own limits are set only for names under manages:",
        ),
        (
            rule("a", "vision", "user", "gpus_running: 8"),
            "manages: {accounts: [nlp]}\n",
            "account vision must be in slurmdbd and under manages: accounts",
        ),
        (
            rule("a", "gpu", "user", "jobs_running: 8"),
            "manages: {accounts: [vision, nlp]}\n",
            "Slurm limits a partition through its QOS (QOS=NAME in its line in slurm.conf)",
        ),
        (
            rule("a", "all", "user", "jobs_running: 8", ", kind: batch"),
            ALL_MANAGED,
            "not distinguish interactive",
        ),
        (rule("a", "all", "user", "jobs_running: 8", ", mode: advise"), ALL_MANAGED, "with mode: enforce"),
        (
            rule("a", "bob", "group", "nodes_running: 8"),
            ALL_MANAGED,
            "cannot sum over some users of an account",
        ),
    ],
)
def test_a_limit_on_running_jobs_that_slurm_cannot_enforce_is_reported(
    limits: str, manages: str, why: str
) -> None:
    (warnings,) = find_warnings(limits, manages=manages)
    assert why in warnings
    assert warnings.startswith("p.yaml:9:")


@pytest.mark.parametrize(
    "limits",
    [
        rule(
            "a",
            "all",
            "user",
            "gpus_running: {a100: 8}, cpus_running: 8, memory_running: 1T, nodes_running: 2",
        ),
        rule("a", "vision", "group", "jobs_running: 8"),
        rule("a", "bob", "user", "jobs_running: 8"),
        rule("a", "gpu", "user", "jobs_running: 8"),
        rule("a", "cpu", "user", "jobs_running: 8"),
    ],
)
def test_a_limit_on_running_jobs_that_slurm_can_enforce_is_not_reported(limits: str) -> None:
    head = HEAD.replace("rules:", "  cpu: {not: [gpu]}\nrules:")
    assert find_warnings(limits, head=head, manages=ALL_MANAGED) == []


def test_the_later_of_two_equal_limits_is_reported() -> None:
    rules = (rule("a", "grads", "user", "gpus_total: 8"), rule("b", "grads", "user", "gpus_total: 8"))
    (warnings,) = find_warnings(*rules)
    assert "gpus_total of rule b has no effect" in warnings


def test_a_running_limit_on_gpus_is_reported_if_jobs_share_gpus() -> None:
    share = 'colocation: {mode: enforce, why: "Small ones."}\n'
    limits = rule("share", "vision", "user", "gpus_running: 4")
    assert any(
        "Slurm does not count jobs that share a GPU toward gpus_running of rule share" in message
        for message in find_warnings(limits, tail=share)
    )
    total = rule("share", "vision", "user", "gpus_total: 4")
    assert not any("shares" in message for message in find_warnings(total, tail=share))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("goal: considerate, slowdown: 1", "with slowdown: 1, almost no job shares a GPU"),
        ("max_gpu_fraction: 0", "with max_gpu_fraction: 0, no job shares a GPU"),
        (
            "allowed_groups: [gpu, vision], required_groups: [vision, bob]",
            "group vision is also in required_groups",
        ),
    ],
)
def test_colocation_settings_without_effect_are_reported(settings: str, message: str) -> None:
    (found,) = find_warnings(tail=f"colocation: {{{settings}, mode: enforce, why: w}}\n")
    assert message in found
    fine = "goal: considerate, slowdown: 1.02, max_gpu_fraction: 0.1, mode: advise"
    assert not find_warnings(tail=f"colocation: {{{fine}, why: w}}\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "warn: [30m], after: 40m",
            "the last warning is sent only 10m before the job ends; allow at least 30m",
        ),
        ("warn: [30m], after: 2h, for: [vision, bob], exempt: [bob]", "group bob is also in exempt"),
    ],
)
def test_cancel_idle_settings_that_are_hasty_or_without_effect_are_reported(
    settings: str, message: str
) -> None:
    (found,) = find_warnings(tail=f"cancel_idle: {{{settings}, mode: enforce, why: w}}\n")
    assert message in found
    assert not find_warnings(tail="cancel_idle: {warn: [30m], after: 1h, mode: observe, why: w}\n")


def test_groups_and_exceptions_that_ended_are_reported() -> None:
    tail = (
        "exceptions:\n"
        "  - {rule: a, user: bob, limits: {gpus_total: 32}, until: 2026-11-20, why: w}\n"
        "  - {rule: a, user: alice, limits: {gpus_total: 32}, until: 2026-11-21, why: w}\n"
    )
    head = HEAD.replace("all: {}", "all: {}\n  course: {until: 2026-11-20}")
    assert find_warnings(rule("a", "all", "user", "gpus_total: 8"), tail=tail, head=head) == [
        "p.yaml:4:12: group course expired on 2026-11-20: its rules do not apply to any job",
        "p.yaml:12:52: the exception for bob from rule a expired on 2026-11-20",
    ]


def test_a_rule_that_allows_no_qos_of_its_group_is_reported() -> None:
    head = HEAD.replace("all: {}", "all: {qos: [SG-long]}")
    (found,) = find_warnings(rule("a", "all", "job", "qos: [SG-short]"), head=head)
    assert "group all contains only jobs in SG-long, but the rule allows only sg-short" in found
    assert not find_warnings(rule("a", "all", "job", "qos: [sg-long]"), head=head)


def test_an_exception_outside_the_days_of_its_group_is_reported() -> None:
    tail = "exceptions: [{rule: a, user: bob, limits: {gpus_total: 32}, until: 2027-01-31, why: w}]\n"
    days = {"from: 2027-02-01": True, "from: 2027-01-31": False, "until: 2027-01-01": False}
    for of_group, is_reported in days.items():
        head = HEAD.replace("all: {}", f"all: {{{of_group}}}")
        found = find_warnings(rule("a", "all", "user", "gpus_total: 8"), tail=tail, head=head)
        expected = ["p.yaml:10:14: the exception for bob never applies: group all has other days"]
        assert found == expected * is_reported


def test_a_rule_of_other_days_covers_no_limit() -> None:
    head = HEAD.replace("all: {}", "all: {from: 2027-01-01}")
    rules = (rule("a", "all", "job", "cpus: 8"), rule("b", "grads", "job", "cpus: 8"))
    assert not find_warnings(*rules, head=head)
    assert find_warnings(*rules, head=head.replace("nlp]", "nlp], from: 2027-02-01"))


def test_an_unenforced_limit_of_a_group_that_begins_later_is_reported() -> None:
    head = HEAD.replace("all: {}", "all: {from: 2027-01-01}")
    (found,) = find_warnings(rule("a", "all", "user", "gpus_running: 8"), head=head, manages="")
    assert "nothing enforces gpus_running of rule a" in found


def test_an_exception_for_a_user_whom_the_rule_does_not_bind_is_reported() -> None:
    tail = "exceptions: [{rule: a, user: alice, limits: {gpus_total: 8}, until: 2026-12-05, why: w}]\n"
    assert find_warnings(rule("a", "bob", "user", "gpus_total: 8"), tail=tail) == [
        "p.yaml:10:24: rule a does not apply to alice, who is not in group bob",
        "p.yaml:10:46: rule a has the same limit, so the exception for alice has no effect",
    ]


def test_an_empty_group_is_reported() -> None:
    head = HEAD.replace(
        "  all: {}\n",
        "  all: {}\n  none: {unix_groups: [empty]}\n  few: {users: [alice], unix_groups: [undergrad]}\n",
    )
    assert find_warnings(head=head) == [
        "p.yaml:4:3: UNIX group empty has no members, so group none is empty",
        "p.yaml:5:3: group few is empty: no user of the group is in UNIX group undergrad",
    ]


def test_a_name_that_no_node_has_is_reported() -> None:
    text = (
        HEAD
        + rule("a", "gpu", "job", "gpus: {A100: 1, v10: 2}, gpu_types: [a100], partitions: [gpuu]")
        + rule("b", "gpu", "user", "gpu_hours: {week: {a100: 9, a10: 9}}")
        + "bundles: {b: {gpus: 1, cpus: 8, partitions: [gpu], gpu_types: [h100]}}\n"
    )
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    assert [str(error) for error in unknown_to_cluster(policy, source, [NODE])] == [
        "p.yaml:6:27: no node is in partition 'long'; see sinfo",
        "p.yaml:9:66: no node has a GPU of type 'v10'; did you mean v100?",
        "p.yaml:9:107: no node is in partition 'gpuu'; did you mean gpu?",
        "p.yaml:10:79: no node has a GPU of type 'a10'; did you mean a100?",
        "p.yaml:11:64: no node has a GPU of type 'h100'; did you mean v100?",
    ]
    assert unknown_to_cluster(policy, source, []) == ()


def test_a_bundle_after_one_that_matches_all_its_jobs_is_reported() -> None:
    tail = (
        "bundles:\n"
        "  big: {gpus: 4, cpus: 64, gpu_types: [a100], mode: fit}\n"
        "  any: {gpus: 1, cpus: 8, mode: fit}\n"
        "  cpu: {gpus: 0, cpus: 8, mode: enforce}\n"
        "  late: {gpus: 2, cpus: 8, partitions: [gpu], mode: fit}\n"
    )
    assert find_warnings(tail=tail) == [
        "p.yaml:12:3: bundle late never applies: bundle any comes first and matches all of its jobs"
    ]


def test_sections_without_a_mode_in_a_file_with_mode_enforce_are_reported() -> None:
    tail = (
        "bundles: {big: {gpus: 1, cpus: 64}, cpu: {gpus: 0, cpus: 8, mode: fit}}\n"
        "colocation: {why: w}\ncancel_idle: {warn: [30m], after: 2h, why: w}\n"
    )
    found = find_warnings(tail=tail)
    assert [message.partition(" only observes: mode: enforce at the top")[0] for message in found] == [
        "p.yaml:8:11: bundles.big",
        "p.yaml:9:1: colocation",
        "p.yaml:10:1: cancel_idle",
    ]


def test_conditions_that_no_job_can_meet_are_reported() -> None:
    jobs = ", jobs: {at_least: {walltime: 2d}, at_most: {walltime: 1d, gpus: 4}}"
    assert find_warnings(rule("a", "all", "job", "gpus: 1", jobs)) == [
        "p.yaml:9:60: rule a never applies: the minimum of walltime is above the maximum"
    ]


@pytest.mark.parametrize(
    ("of_rule", "of_exception", "is_reported"),
    [
        ("{accounts: [vision]}", "{accounts: [NLP, cv]}", True),
        ("{users: [alice]}", "{users: [bob]}", True),
        ("{accounts: [vision, cv]}", "{accounts: [nlp, VISION]}", False),
        ("{accounts: [vision]}", '{accounts: ["v*"], users: [bob]}', False),
        ("{accounts: [vision]}", "{users: [bob]}", False),
        ("{partitions: [gpu]}", "{partitions: [cpu]}", False),  # a job may name both
    ],
)
def test_an_exception_for_a_group_with_other_accounts_or_users_is_reported(
    of_rule: str, of_exception: str, is_reported: bool
) -> None:
    head = HEAD.replace("rules:", f"  one: {of_rule}\n  two: {of_exception}\nrules:")
    exception = "exceptions: [{rule: a, group: two, limits: {gpus: 8}, why: w}]\n"
    found = find_warnings(rule("a", "one", "job", "gpus: 1"), head=head, tail=exception)
    expected = ["p.yaml:12:14: rule a (two) never applies: no job is in both groups one and two"]
    assert found == (expected if is_reported else [])
