"""What a policy says in vain is told with its place; what can bind someone is left alone."""

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


def doubts(
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
            "gpus_total of rule b never binds: rule a already allows at most 8 GPUs running and",
        ),
        (
            (rule("a", "grads", "group", "jobs_total: 8"), rule("b", "vision", "user", "jobs_total: 8")),
            "jobs_total of rule b never binds: rule a already allows at most 8 jobs running and pending per",
        ),
        (
            (rule("a", "all", "user", "gpus_running: 16, gpus_total: 8"),),
            "p.yaml:9:51: gpus_running of rule a never binds: this rule already allows at most 8 GPUs",
        ),
        (
            (rule("a", "all", "user", "cpus_total: 8"), rule("b", "all", "job", "cpus: 8")),
            "cpus of rule b never binds: rule a already allows at most 8 CPUs running and pending per user",
        ),
        (
            (rule("a", "all", "job", "gpus: 4"), rule("b", "all", "job", "gpus: {a100: 4, v100: 2}")),
            "gpus:a100 of rule b never binds: rule a already allows at most 4 GPUs per job",
        ),
        (
            (rule("a", "all", "user", "gpu_hours: {day: 500, week: 400}"),),
            "gpu_hours:day of rule a never binds: this rule already allows at most 400 GPU-hours a week",
        ),
        (
            (
                rule("a", "all", "job", "walltime: {1: 2d, 8: 1d}"),
                rule("b", "all", "job", "walltime: {8: 2d}"),
            ),
            "walltime of rule b never binds: rule a already allows time limit at most 2d from 1 GPU on",
        ),
        (
            (rule("a", "all", "job", "partitions: [gpu]"), rule("b", "all", "job", "partitions: [gpu, cpu]")),
            "partitions of rule b never binds: rule a already allows only partitions gpu per job",
        ),
        (
            (rule("a", "all", "job", "walltime: {1: 2d, 8: 7d}"),),
            "p.yaml:9:50: walltime grows from 2d to 7d at 8 GPUs: asking for more buys time",
        ),
        (
            (rule("a", "all", "job", "gpus: 4, walltime: {1: 2d, 8: 1d}"),),
            "no job has a walltime from 8 GPUs on: the rule allows 4 GPUs",
        ),
        (
            (rule("a", "gpu", "job", "partitions: [cpu]"),),
            "rule a refuses every job: group gpu is the jobs in gpu, long, and only cpu is allowed",
        ),
        (
            (rule("a", "all", "job", "gpu_types: [a100]"), rule("b", "all", "job", "gpu_types: [V100]")),
            "p.yaml:10:50: no type of GPU is left: rule a allows only a100",
        ),
    ],
)
def test_a_limit_that_never_binds_is_told(rules: tuple[str, ...], message: str) -> None:
    told = doubts(*rules)
    assert any(message in line for line in told), told
    assert len(told) == 1, told


@pytest.mark.parametrize(
    "rules",
    [
        # The wider rule binds fewer jobs, at other times, of one kind only, or more gently.
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
        # A user's limit says nothing of the group's sum, a type's nothing of all types together.
        (rule("a", "all", "user", "gpus_total: 8"), rule("b", "all", "group", "gpus_total: 16")),
        (rule("a", "all", "user", "gpus_total: {a100: 8}"), rule("b", "all", "user", "gpus_total: 16")),
        (rule("a", "all", "user", "gpus_running: 8, gpus_total: 16, gpu_hours: {day: 10, week: 50}"),),
        (rule("a", "all", "job", "walltime: {8: 1d}"), rule("b", "all", "job", "walltime: 2d")),
        (rule("a", "gpu", "job", "partitions: [gpu]"), rule("b", "all", "job", "partitions: [gpu, cpu]")),
    ],
)
def test_a_limit_that_can_bind_is_left_alone(rules: tuple[str, ...]) -> None:
    assert doubts(*rules) == []


def test_where_someone_is_excepted_from_the_tighter_rule_the_looser_one_binds() -> None:
    rules = (rule("a", "all", "user", "gpus_total: 8"), rule("b", "all", "user", "gpus_total: 16"))
    exception = "exceptions: [{rule: a, user: bob, limits: {gpus_total: 32}, until: 2026-12-05, why: w}]\n"
    assert len(doubts(*rules)) == 1
    assert doubts(*rules, tail=exception) == []


ALL_OF_IT = "manages: {qos: [sg-*], accounts: [vision, nlp]}\n"


@pytest.mark.parametrize(
    ("running", "manages", "why"),
    [
        (rule("a", "all", "user", "gpus_running: 8"), "", "Slurm's own limits are set only on what manages:"),
        (
            rule("a", "vision", "user", "gpus_running: 8"),
            "manages: {accounts: [nlp]}\n",
            "account vision: not managed (manages: accounts), or not in slurmdbd",
        ),
        (rule("a", "gpu", "user", "jobs_running: 8"), ALL_OF_IT, "Slurm limits a partition through a QOS"),
        (
            rule("a", "all", "user", "jobs_running: 8", ", kind: batch"),
            ALL_OF_IT,
            "not distinguish interactive",
        ),
        (rule("a", "all", "user", "jobs_running: 8", ", mode: advise"), ALL_OF_IT, "with mode: enforce"),
        (rule("a", "bob", "group", "nodes_running: 8"), ALL_OF_IT, "no sum over some users of an account"),
    ],
)
def test_a_limit_on_what_runs_that_slurm_cannot_hold_is_told(running: str, manages: str, why: str) -> None:
    (told,) = doubts(running, manages=manages)
    assert why in told
    assert told.startswith("p.yaml:9:")


@pytest.mark.parametrize(
    "running",
    [
        rule(
            "a",
            "all",
            "user",
            "gpus_running: {a100: 8}, cpus_running: 8, memory_running: 1T, nodes_running: 2",
        ),
        rule("a", "vision", "group", "jobs_running: 8"),
        rule("a", "bob", "user", "jobs_running: 8"),
    ],
)
def test_a_limit_on_what_runs_that_slurm_can_hold_is_left_alone(running: str) -> None:
    assert doubts(running, manages=ALL_OF_IT) == []


def test_of_two_equal_limits_the_later_is_told() -> None:
    rules = (rule("a", "grads", "user", "gpus_total: 8"), rule("b", "grads", "user", "gpus_total: 8"))
    (told,) = doubts(*rules)
    assert "gpus_total of rule b never binds" in told


def test_that_slurm_counts_no_shards_is_told_where_it_matters() -> None:
    share = 'colocation: {why: "Small ones."}\n'
    running = rule("share", "vision", "user", "gpus_running: 4")
    assert any(
        "gpus_running of rule share is Slurm's to count, which counts no job that shares" in doubt
        for doubt in doubts(running, tail=share)
    )
    total = rule("share", "vision", "user", "gpus_total: 4")
    assert not any("shares" in doubt for doubt in doubts(total, tail=share))


@pytest.mark.parametrize(
    ("said", "doubt"),
    [
        ("goal: considerate, slowdown: 1", "slowdown: 1 lets almost no job share"),
        ("max_gpu_fraction: 0", "max_gpu_fraction: 0 lets no job share"),
        (
            "allowed_groups: [gpu, vision], required_groups: [vision, bob]",
            "group vision is in required_groups, too",
        ),
    ],
)
def test_sharing_that_cannot_be_is_told(said: str, doubt: str) -> None:
    (found,) = doubts(tail=f"colocation: {{{said}, why: w}}\n")
    assert doubt in found
    assert not doubts(tail="colocation: {goal: considerate, slowdown: 1.02, max_gpu_fraction: 0.1, why: w}\n")


@pytest.mark.parametrize(
    ("said", "doubt"),
    [
        (
            "warn: [30m], after: 40m",
            "the last warning comes only 10m before the end; allow at least 30m",
        ),
        ("warn: [30m], after: 2h, for: [vision, bob], exempt: [bob]", "group bob is in exempt, too"),
    ],
)
def test_ends_that_are_hasty_or_never_come_are_told(said: str, doubt: str) -> None:
    (found,) = doubts(tail=f"cancel_idle: {{{said}, why: w}}\n")
    assert doubt in found
    assert not doubts(tail="cancel_idle: {warn: [30m], after: 1h, why: w}\n")


def test_what_is_over_is_told() -> None:
    tail = (
        "exceptions:\n"
        "  - {rule: a, user: bob, limits: {gpus_total: 32}, until: 2026-11-20, why: w}\n"
        "  - {rule: a, user: alice, limits: {gpus_total: 32}, until: 2026-11-21, why: w}\n"
    )
    head = HEAD.replace("all: {}", "all: {}\n  course: {until: 2026-11-20}")
    assert doubts(rule("a", "all", "user", "gpus_total: 8"), tail=tail, head=head) == [
        "p.yaml:4:12: group course ended on 2026-11-20: its rules apply to no job",
        "p.yaml:12:52: the exception for bob from a expired on 2026-11-20",
    ]


def test_an_exception_for_someone_whom_the_rule_does_not_bind_is_told() -> None:
    tail = "exceptions: [{rule: a, user: alice, limits: {gpus_total: 8}, until: 2026-12-05, why: w}]\n"
    assert doubts(rule("a", "bob", "user", "gpus_total: 8"), tail=tail) == [
        "p.yaml:10:24: rule a does not bind alice, who is not in group bob",
        "p.yaml:10:46: rule a allows alice as much already",
    ]


def test_a_group_that_nobody_is_in_is_told() -> None:
    head = HEAD.replace(
        "  all: {}\n",
        "  all: {}\n  none: {unix_groups: [empty]}\n  few: {users: [alice], unix_groups: [undergrad]}\n",
    )
    assert doubts(head=head) == [
        "p.yaml:4:3: no user is in UNIX group empty: group none is empty",
        "p.yaml:5:3: no user of group few is in UNIX group undergrad: it is empty",
    ]


def test_a_name_that_no_node_bears_is_told() -> None:
    text = (
        HEAD
        + rule("a", "gpu", "job", "gpus: {A100: 1, v10: 2}, gpu_types: [a100], partitions: [gpuu]")
        + "bundles: {b: {gpus: 1, cpus: 8, partitions: [gpu], gpu_types: [h100]}}\n"
    )
    source = parse_yaml(text, "p.yaml")
    policy = check_policy(source)
    assert [str(error) for error in unknown_to_cluster(policy, source, [NODE])] == [
        "p.yaml:6:27: no node is in partition 'long'; see sinfo",
        "p.yaml:9:66: no node has a GPU of type 'v10'; did you mean v100?",
        "p.yaml:9:107: no node is in partition 'gpuu'; did you mean gpu?",
        "p.yaml:10:64: no node has a GPU of type 'h100'; did you mean v100?",
    ]
    assert unknown_to_cluster(policy, source, []) == ()


def test_a_bundle_behind_one_that_takes_all_is_told() -> None:
    tail = (
        "bundles:\n"
        "  big: {gpus: 4, cpus: 64, gpu_types: [a100]}\n"
        "  any: {gpus: 1, cpus: 8}\n"
        "  cpu: {gpus: 0, cpus: 8}\n"
        "  late: {gpus: 2, cpus: 8, partitions: [gpu]}\n"
    )
    assert doubts(tail=tail) == [
        "p.yaml:12:3: bundle late never applies: any comes first and has all of its jobs"
    ]
