"""Rules that set options of jobs and shorten their time limits (`mode: fit`)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.cluster_names import unknown_to_cluster
from slurm_gpu.policy.language.job_changes import SetOptions, options_text
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import NodeResources, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.decisions import DecisionCounts, DecisionLine
from slurm_gpu.policy.lua.script import LUA_VERSIONS, Change, PolicyScript, ScriptDecision
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from tests.controller.fakes import make_node

from .checking import mistakes
from .model import Request
from .render import PARTITIONS, changes, description, record
from .users import Directory

HEAD = "version: 1\ngroups: {all: {}, debug: {partitions: [debug]}}\nrules:\n"
RULE = '  - {id: r%d, for: all, per: job, why: "So.", %s}\n'
DEBUG = '  - {id: small, for: debug, per: job, why: "Small.", mode: enforce, limits: {gpus: 1}}\n'
PARTS = [*PARTITIONS, {"name": "debug", "flag_default": 0, "default_time": 30, "max_time": 30}]
JOB = Request(1001, "vision", per_job=1, minutes=20)


def text(*rules: str) -> str:
    return HEAD + "".join(RULE % pair for pair in enumerate(rules)) + DEBUG


@functools.cache
def bundle(*rules: str, directory: Path = Path("/nonexistent")) -> str:
    source = parse_yaml(text(*rules), "p.yaml")
    policy = check_policy(source)
    facts = SiteFacts(year=2026, run_directory=directory)
    return build_bundle(compile_policy(policy, resolve_names(policy, source, Directory()), facts))


def submit(*rules: str, job: Request = JOB, lua: str = "5.4", **fields: Any) -> ScriptDecision:
    return PolicyScript(bundle(*rules), lua=lua).submit({**description(job), **fields}, PARTS)


def refusals(verdict: ScriptDecision) -> list[str]:
    """Return the lines in slurmctld's log about options that a job cannot have."""
    return [line for _, line in verdict.log if "does not set" in line]


def names(verdict: ScriptDecision, *fields: str) -> list[Any]:
    return [verdict.desc.get(field) for field in fields]


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_a_rule_sets_options_and_reports_them_in_one_line(lua: str) -> None:
    rule = "mode: fit, set: {partition: debug, qos: short, exclusive: true, nodes: 2}"
    verdict = submit(rule, job=Request(1001, "vision"), lua=lua)
    assert verdict.messages == (
        "Rule r0 sets --qos=short (was normal) --partition=debug (was gpu) --exclusive",
        "  --nodes=2: So.",
    )
    fields = ("partition", "qos", "shared", "min_nodes", "max_nodes", "min_cpus")
    assert names(verdict, *fields) == ["debug", "short", 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("mode", "message"), [("observe", ()), ("advise", ("Rule r0: So. Try: --qos=short",))]
)
def test_other_modes_change_nothing(mode: str, message: tuple[str, ...]) -> None:
    verdict = submit(f"mode: {mode}, set: {{qos: short}}")
    assert verdict.accepted
    assert verdict.messages == message
    assert names(verdict, "qos") == ["normal"]
    assert verdict.changes == (Change("r0", mode, "--qos=short", "normal"),)


def test_a_job_that_has_the_options_gets_no_message() -> None:
    job = Request(1001, "vision", partition="debug", minutes=20, exclusive=True, nodes=2, most_nodes=2)
    rule = "mode: fit, set: {partition: debug, exclusive: true, nodes: 2}, limits: {walltime: 20m}"
    assert submit(rule, job=job).messages == ()


def test_defaults_are_only_for_jobs_that_do_not_name_the_option() -> None:
    rule = "mode: fit, defaults: {walltime: 2h, constraint: a100, nodes: 2, qos: short, partition: debug}"
    named = Request(1001, "vision", minutes=5, nodes=1, most_nodes=1, constraint="x")
    assert submit(rule, job=named).messages == ()
    verdict = PolicyScript(bundle(rule)).submit(description(Request(1001, "vision"), terse=True), PARTS)
    fields = ("time_limit", "features", "min_nodes", "qos", "partition")
    # The partition's default time limit, which is its longest, remains.
    assert names(verdict, *fields) == [None, "a100", 2, "short", "debug"]


@pytest.mark.parametrize(
    ("own", "rule", "joined"),
    [
        (None, "a|b", "a|b"),
        ("c", "a", "c&a"),
        ("c&a", "a", "c&a"),
        ("a", "a|b", "a"),
        ("c&d", "a&d", "c&d&a"),
        ("c|d", "a", "(c|d)&a"),
        ("c", "a|b", "(a|b)&c"),
        ("b|a", "a|b", "b|a"),
        # Slurm would reject or misread these with another feature.
        ("c|d", "a|b", "c|d"),
        ("[c*1&d*2]", "a", "[c*1&d*2]"),
        ("(c|d)&e", "a", "(c|d)&e"),
        ("c&d|e", "a", "c&d|e"),
    ],
)
def test_constraints_are_joined(own: str | None, rule: str, joined: str) -> None:
    verdict = submit(f'mode: fit, set: {{constraint: "{rule}"}}', features=own)
    assert verdict.desc["features"] == joined
    assert len(refusals(verdict)) == (own in ("c|d", "[c*1&d*2]", "(c|d)&e", "c&d|e") and joined == own)


def test_a_partition_or_qos_that_is_closed_to_the_user_is_not_set() -> None:
    verdict = submit("mode: fit, set: {partition: secret, qos: short}", assoc_qos="normal,long")
    assert names(verdict, "partition", "qos") == ["gpu", "normal"]
    reasons = [
        "--qos for uid 1001: the user may not use it",
        "--partition for uid 1001: it does not exist, is closed to the job, or its MaxTime is less than the "
        "job's time limit",
    ]
    assert refusals(verdict) == [f"slurm-gpu: rule r0 does not set {reason}" for reason in reasons]


def test_prefer_gets_the_constraint_too() -> None:
    """Slurm uses --prefer instead of --constraint."""
    verdict = submit("mode: fit, set: {constraint: a100}", features="c", prefer="d")
    assert names(verdict, "features", "prefer") == ["c&a100", "d&a100"]
    verdict = submit('mode: fit, set: {constraint: "a|b"}', features="c", prefer="d|e")
    assert names(verdict, "features", "prefer") == ["c", "d|e"]


def test_walltime_is_shortened() -> None:
    rule = "mode: fit, limits: {walltime: {1: 2h, 4: 1h}}"
    long = Request(1001, "vision", per_job=1, minutes=180)
    verdict = submit(rule, job=long, time_min=150)
    assert verdict.messages == ("Rule r0 sets --time=02:00:00 (was 03:00:00): So.",)
    assert names(verdict, "time_limit", "time_min") == [120, 120]
    endless = Request(1001, "vision", per_job=4, minutes=0)
    assert submit(rule, job=endless).messages == ("Rule r0 sets --time=01:00:00 (was UNLIMITED): So.",)
    assert submit(rule, job=Request(1001, "vision", minutes=180)).messages == ()


def test_nodes_that_the_job_cannot_use_are_not_set() -> None:
    for job in (
        Request(1001, "vision", listed_nodes=3),
        Request(1001, "vision", per_job=8, per_node=4, nodes=2, most_nodes=2),
        Request(1001, "vision", nodes=4, most_nodes=4, n_tasks=8, tasks_per_node=2),
    ):
        verdict = submit("mode: fit, set: {nodes: 1}", job=job)
        assert verdict.changes == ()
        (line,) = refusals(verdict)
        assert line.endswith(
            "does not set --nodes for uid 1001: other options of the job, or the partition, "
            "require other nodes"
        )


def test_rules_see_the_job_as_changed_by_earlier_rules() -> None:
    rules = (
        "mode: fit, defaults: {walltime: 30m}",
        "mode: fit, jobs: {at_most: {walltime: 30m}}, set: {partition: debug}",
    )
    job = Request(1001, "vision", per_job=1)
    assert names(submit(*rules, job=job), "time_limit", "partition") == [30, "debug"]
    assert names(submit(*reversed(rules), job=job), "time_limit", "partition") == [30, "gpu"]


def test_a_refusal_mentions_the_changes_and_suggests_what_is_accepted_with_them() -> None:
    rule = "mode: fit, jobs: {at_most: {walltime: 30m}}, set: {partition: debug}"
    two = Request(1001, "vision", per_job=2, minutes=20)
    assert submit(rule, job=two).messages == (
        "Refused by rule small: Small.",
        "  GPUs in one job: limit 1, requested 2.",
        "  Before this check, rule r0 set --partition=debug (was gpu).",
        "  Try: sbatch --gpus=1 ...",
    )


def test_updates_are_not_changed() -> None:
    after = Request(1001, "vision", per_job=1, minutes=10)
    script = PolicyScript(bundle("mode: fit, set: {partition: debug}, limits: {walltime: 5m}"))
    verdict = script.modify(changes(JOB, after), record(1, JOB), PARTS)
    assert verdict.accepted
    assert verdict.messages == ()
    assert verdict.desc["time_limit"] == 10


def test_a_rule_that_fails_leaves_the_job_as_it_is() -> None:
    def broken(on_error: str) -> str:
        whole = bundle(f"mode: fit, on_error: {on_error}, set: {{qos: short}}")
        return whole.replace("local function make(job", "local function never(job")

    verdict = PolicyScript(broken("allow")).submit(description(JOB), PARTS)
    assert verdict.accepted
    assert verdict.desc["qos"] == "normal"
    assert any("slurm-gpu: rule r0 failed" in line for _, line in verdict.log)
    assert not PolicyScript(broken("deny")).submit(description(JOB), PARTS).accepted


def test_changes_are_logged_and_counted(tmp_path: Path) -> None:
    script = PolicyScript(
        bundle("mode: fit, set: {partition: debug, qos: short}", directory=tmp_path), writes=True
    )
    script.submit(description(JOB), PARTS)
    written = (tmp_path / "decisions.log").read_text()
    line = DecisionLine.read(written)
    assert line is not None
    assert (line.fields["partition"], line.fields["qos"]) == ("debug", "short")
    assert line.fields["rules"] == "r0:set:qos:fit,r0:set:partition:fit"
    assert list(map(str, Change.read_all(line.fields["changes"]))) == [
        "rule r0 set --qos=short",
        "rule r0 set --partition=debug",
    ]
    counts = DecisionCounts()
    counts.add(written.rstrip("\n"))
    assert counts.rules["r0"].changed == 1


def test_changed_jobs_are_not_cached() -> None:
    script = PolicyScript(bundle("mode: fit, set: {qos: short}"))
    verdicts = [script.submit(description(JOB), PARTS) for _ in range(3)]
    assert [verdict.desc["qos"] for verdict in verdicts] == ["short"] * 3
    assert len({verdict.messages for verdict in verdicts}) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "mode: enforce, set: {qos: a}",
            "set: mode: enforce refuses jobs; write mode: fit in this rule to change them",
        ),
        (
            "mode: fit, limits: {gpus: 2}",
            "gpus: mode: fit sets options (set:, defaults:) and shortens time limits",
        ),
        ("set: {qos: a}, limits: {nodes: 2}", "nodes: mode: fit sets options"),
        ("mode: fit, options: {time: required}", "options: mode: fit sets options"),
        ("mode: fit, set: {qos: a}, defaults: {qos: b}", "qos: set: already sets it; write it once"),
        ("mode: fit, set: {exclusive: false}", "exclusive: False must be true"),
        ('mode: fit, set: {constraint: "a&b|c"}', "constraint: 'a&b|c' must be features joined by & or by |"),
        ("mode: fit", "rule r0 lacks limits, at_least, exactly, options, set or defaults"),
    ],
)
def test_mistakes(rule: str, message: str) -> None:
    assert message in "".join(mistakes(text(rule)))


def test_a_mode_at_the_top_of_the_file() -> None:
    found = "".join(mistakes(text("set: {qos: a}").replace("groups:", "mode: enforce\ngroups:")))
    assert "set: mode: enforce at the top of the file refuses jobs; write mode: fit in this rule" in found
    found = "".join(mistakes(text("set: {qos: a}").replace("groups:", "mode: fit\ngroups:")))
    assert "mode: 'fit' is not valid" in found


def test_tiers_can_shorten_time_limits() -> None:
    tiers = "tiers: [{for: debug, limits: {walltime: 10m}}, {limits: {walltime: 1h}}]"
    verdict = submit(f"mode: fit, {tiers}", job=Request(1001, "vision", minutes=120))
    assert verdict.desc["time_limit"] == 60
    assert "set: this rule has tiers" in "".join(mistakes(text(f"mode: fit, set: {{qos: a}}, {tiers}")))


def test_exceptions_replace_the_time_limit() -> None:
    exceptions = (
        "exceptions:\n"
        "  - {rule: r0, group: debug, limits: {walltime: 5m}, why: Tests.}\n"
        "  - {rule: r1, user: alice, limits: {walltime: 15m}, why: Tests.}\n"
    )
    rules = text("mode: fit, limits: {walltime: 1h}", "mode: fit, limits: {walltime: 30m}") + exceptions
    source = parse_yaml(rules, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    script = PolicyScript(build_bundle(compile_policy(policy, names, SiteFacts(year=2026))))
    times = [
        script.submit(description(Request(uid, "vision", partition=name, minutes=120)), PARTS).desc[
            "time_limit"
        ]
        for uid, name in ((1001, "gpu"), (1002, "gpu"), (1002, "debug"))
    ]
    assert times == [15, 30, 5]


def test_names_that_the_cluster_lacks() -> None:
    source = parse_yaml(text('set: {partition: debgu, constraint: "a100|b100"}'), "p.yaml")
    nodes = [make_node("n1", partitions=("debug",), features=("a100",))]
    found = [error.message for error in unknown_to_cluster(check_policy(source), source, nodes)]
    assert found == [
        "no node is in partition 'debgu'; did you mean debug?",
        "no node has the feature 'b100'; did you mean a100?",
    ]


def test_pages() -> None:
    options = 'set: {partition: debug, constraint: "a|b"}, defaults: {walltime: 1h}, limits: {walltime: 2h}'
    policy = check_policy(parse_yaml(text(f"mode: fit, {options}"), "p.yaml"))
    section = make_page(policy).rules[0]
    assert section.limits == (
        "jobs get --partition=debug --constraint='a|b' (in addition to their own constraint)",
        "jobs without --time get --time=01:00:00",
        "time limit at most 2h",
    )
    assert section.remarks == (
        "Jobs are changed at submission, and each change is printed.",
        "A longer time limit is shortened, and the job is not refused.",
    )
    found = to_json(policy)["rules"][0]
    assert found["set"]["partition"] == "debug"
    assert found["defaults"]["walltime_s"] == 3600


NAMES = st.from_regex(r"[A-Za-z0-9_.:+=-]{1,8}", fullmatch=True)


@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from("&|"))
def test_constraints_are_read_and_shown_as_written(features: list[str], sign: str) -> None:
    constraint = sign.join(features)
    policy = check_policy(parse_yaml(text(f'mode: fit, set: {{constraint: "{constraint}"}}'), "p.yaml"))
    assert policy.rules[0].set == SetOptions(constraint=constraint)
    quote = "'" if len(features) > 1 else ""
    assert options_text({"constraint": constraint}) == f"--constraint={quote}{constraint}{quote}"


@pytest.mark.parametrize(
    "part",
    [
        {"allow_accounts": "research"},
        {"deny_accounts": "Vision"},
        {"deny_qos": "normal"},
        {"allow_qos": "long,short"},
        {"state_up": 2},
        {"max_time": 10},
        {},
    ],
)
def test_a_partition_that_slurm_would_refuse_is_not_set(part: dict[str, Any]) -> None:
    parts = [*PARTITIONS, {"name": "debug", "flag_default": 0, "max_time": 30, "state_up": 3, **part}]
    rule = "mode: fit, set: {partition: debug}"
    verdict = PolicyScript(bundle(rule)).submit(description(JOB), parts)
    assert names(verdict, "partition") == ["gpu" if part else "debug"]


def test_more_nodes_than_the_partition_allows_are_not_set() -> None:
    parts = [{**PARTITIONS[0], "max_nodes": 1}]
    verdict = PolicyScript(bundle("mode: fit, set: {nodes: 2}")).submit(description(JOB), parts)
    assert verdict.changes == ()


@pytest.mark.parametrize("request_of_gpus", ["gres:gpu:+8", "gres:gpu:0x8"])
def test_an_unreadable_size_is_refused_where_a_rule_depends_on_it(request_of_gpus: str) -> None:
    rule = "mode: fit, jobs: {at_least: {gpus: 4}}, limits: {walltime: 1h}"
    refused = submit(rule, job=Request(1001, "vision", minutes=600), tres_per_node=request_of_gpus)
    assert not refused.accepted
    assert "plain numbers" in " ".join(refused.messages)


def test_a_job_cannot_grow_into_the_conditions_of_a_rule() -> None:
    source = parse_yaml(text("mode: fit, jobs: {at_least: {gpus: 8}}, limits: {walltime: 1h}"), "p.yaml")
    policy = check_policy(source)
    nodes = {"gpu": {NodeResources(4, 256, 256, 2, 500_000): 100}}
    facts = SiteFacts(year=2026, partition_nodes=nodes)
    plugin = PolicyScript(
        build_bundle(compile_policy(policy, resolve_names(policy, source, Directory()), facts))
    )
    job = Request(1001, "vision", per_node=2, n_tasks=128, minutes=600)
    assert names(plugin.submit(description(job), PARTS), "max_nodes", "time_limit") == [1, 600]


def test_a_change_that_is_left_out_is_logged_for_each_job() -> None:
    plugin = PolicyScript(bundle("mode: fit, set: {qos: short}"))
    logs = [plugin.submit({**description(JOB), "assoc_qos": "normal"}, PARTS) for _ in range(3)]
    assert [len(refusals(one)) for one in logs] == [1, 1, 1]
