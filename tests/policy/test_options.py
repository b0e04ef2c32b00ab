"""Rules with `options:` require or forbid options of jobs."""

from __future__ import annotations

import re

import pytest

from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.reporting.quota import quota_of
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.policy.explain.replay import without_unknown
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.language.model import OPTIONS, Need
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, RuleInForce
from slurm_gpu.policy.lua.script import Considered, PolicyScript, ScriptDecision
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json
from slurm_gpu.slurm.submission import UserAssociations
from tests.docs.pages import ROOT

from .checking import check, mistakes
from .compile import compiled
from .model import Request, RuleModel
from .policystrategies import OPTIONS as DRAWN
from .render import PARTITIONS, record
from .test_coverage_findings import HEAD, find_warnings


def rule(options: str, name: str = "a", per: str = "job", group: str = "all") -> str:
    return f"  - {{id: {name}, for: {group}, per: {per}, why: w, options: {options}}}\n"


def ask(options: dict[str, str], *words: str) -> ScriptDecision:
    table = compiled([RuleModel("r", "job", options=options)], "/nonexistent/decisions.log")
    desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
    desc |= {"default_account": "vision", "default_qos": "normal"}
    return PolicyScript(build_bundle(table), now=lambda: 1_000_000).submit(desc, PARTITIONS)


def test_the_script_and_the_model_have_the_same_options() -> None:
    script = (ROOT / "plugins/job_submit/options.lua").read_text()
    assert tuple(re.findall(r'(?:key = |  text\()"(\w+)"', script)) == OPTIONS
    assert set(DRAWN) < set(OPTIONS)


def test_options_are_read_and_shown() -> None:
    policy = check(f"{HEAD}{rule('{time: required, mem: forbidden, gpu_type: required}')}")
    options = {"time": Need.REQUIRED, "mem": Need.FORBIDDEN, "gpu_type": Need.REQUIRED}
    assert policy.rules[0].options == options
    assert make_page(policy).rules[0].remarks[:3] == (
        "Jobs must set --time.",
        "Jobs must not set --mem, --mem-per-cpu or --mem-per-gpu.",
        "Jobs must set the type of each GPU.",
    )
    assert to_json(policy)["rules"][0]["options"] == {key: str(need) for key, need in options.items()}


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (rule("{tim: required}"), "'tim' is not a setting of options of rule a; did you mean time?"),
        (rule("{time: needed}"), "time: 'needed' is not valid"),
        (rule("{}"), "options of rule a is empty; allowed: account, array"),
        (rule("{time: required}", per="user"), "'options' is not allowed in a rule with per: user"),
    ],
)
def test_mistakes_are_reported(written: str, message: str) -> None:
    (mistake,) = mistakes(HEAD + written)
    assert message in mistake


def test_an_option_that_is_required_and_forbidden_is_reported() -> None:
    (found,) = find_warnings(rule("{time: required}", group="vision"), rule("{time: forbidden}", "b"))
    assert found.endswith("no job satisfies both rules: rule b forbids time")
    assert find_warnings(rule("{time: required}", group="vision"), rule("{mem: forbidden}", "b")) == []


@pytest.mark.parametrize(
    ("options", "words", "said"),
    [
        (
            {"time": "required"},
            ["--gpus=1"],
            ["This rule requires --time.", "Try: sbatch --time=01:00:00 ..."],
        ),
        ({"mem": "required"}, ["--gpus=1"], None),
        (
            {"partition": "required"},
            [],
            ["This rule requires --partition.", "Try: sbatch --partition=gpu ..."],
        ),
        ({"account": "required"}, [], ["This rule requires --account.", "Try: sbatch --account=vision ..."]),
        ({"qos": "required"}, [], ["This rule requires --qos.", "Try: sbatch --qos=normal ..."]),
        (
            {"exclusive": "required", "time": "required"},
            [],
            [
                "This rule requires --exclusive.",
                "This rule requires --time.",
                "Try: sbatch --exclusive --time=01:00:00 ...",
            ],
        ),
        (
            {"gpu_type": "required"},
            ["--gpus=2"],
            [
                "This rule requires the type of each GPU, such as --gpus=TYPE:2.",
                "Try: sbatch --gpus=a100:2 ...",
            ],
        ),
        (
            {"gpu_type": "required"},
            ["-p", "long", "--gpus=2", "--gpus-per-node=v100:1"],
            [
                "This rule requires the type of each GPU, such as --gpus=TYPE:2.",
                "Try: sbatch --gpus=v100:2 --gpus-per-node=v100:1 ...",
            ],
        ),
        ({"gpu_type": "forbidden"}, ["--gpus=a100:2"], ["This rule forbids the type of GPUs."]),
        (
            {"nodelist": "forbidden", "comment": "forbidden"},
            ["-w", "n1", "--comment=x"],
            [
                "This rule forbids --comment.",
                "This rule forbids --nodelist.",
                "Try without --comment and --nodelist: sbatch ...",
            ],
        ),
        (
            {"time": "required", "reservation": "forbidden"},
            ["--reservation=x"],
            [
                "This rule forbids --reservation.",
                "This rule requires --time.",
                "Try without --reservation: sbatch --time=01:00:00 ...",
            ],
        ),
        (
            {"exclusive": "forbidden"},
            ["--exclusive"],
            ["This rule forbids --exclusive.", "Try without --exclusive: sbatch ..."],
        ),
        (
            {"mem": "forbidden"},
            ["--mem=4G"],
            ["This rule forbids --mem, --mem-per-cpu and --mem-per-gpu."],
        ),
    ],
    ids=str,
)
def test_a_refusal_states_the_option(
    options: dict[str, str], words: list[str], said: list[str] | None
) -> None:
    lines = [line.strip() for line in ask(options, *words).messages]
    assert lines[0] == "Refused by rule r: Reason of r."
    if said is None:
        said = ["This rule requires --mem, --mem-per-cpu or --mem-per-gpu.", "Try: sbatch --mem=16G ..."]
    assert lines[1:-1] == said


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("account", ["--account=vision"]),
        ("array", ["--array=0-3"]),
        ("comment", ["--comment=x"]),
        ("constraint", ["-C", "a100"]),
        ("dependency", ["-d", "afterok:7"]),
        ("exclude", ["-x", "n1"]),
        ("exclusive", ["--exclusive"]),
        ("gpu_type", ["--gpus=a100:2"]),
        ("gpu_type", ["--gres=gpu:a100:1,shard:1"]),
        ("licenses", ["-L", "matlab"]),
        ("mem", ["--mem=4G"]),
        ("mem", ["--mem-per-cpu=4G"]),
        ("mem", ["--gpus=1", "--mem-per-gpu=4G"]),
        ("nodelist", ["-w", "n1"]),
        ("partition", ["-p", "gpu"]),
        ("qos", ["-q", "normal"]),
        ("reservation", ["--reservation=x"]),
        ("time", ["-t", "10"]),
    ],
    ids=str,
)
def test_an_option_satisfies_the_rule_that_requires_it(option: str, words: list[str]) -> None:
    assert ask({option: "required"}, *words).accepted
    assert not ask({option: "forbidden"}, *words).accepted
    without = ["--gpus=2"] if option == "gpu_type" else []
    assert not ask({option: "required"}, *without).accepted
    assert ask({option: "forbidden"}, *without).accepted


@pytest.mark.parametrize(
    ("need", "words", "accepted"),
    [
        ("required", ["-c4"], True),
        ("required", ["--gres=shard:1"], True),
        ("required", ["-n4", "--ntasks-per-gpu=2"], False),
        ("required", ["--gpus=2", "--gpus-per-node=a100:1"], False),
        ("forbidden", ["--gpus=2", "--gpus-per-node=a100:1"], False),
        ("forbidden", ["-n4", "--ntasks-per-gpu=2"], True),
    ],
    ids=str,
)
def test_a_gpu_type_is_that_of_all_gpus(need: str, words: list[str], accepted: bool) -> None:
    assert ask({"gpu_type": need}, *words).accepted == accepted


@pytest.mark.parametrize(
    ("options", "fields", "accepted"),
    [
        ({"nodelist": "forbidden", "time": "required"}, {"name": "renamed"}, True),
        ({"nodelist": "forbidden"}, {"req_nodes": "n1"}, False),
        ({"time": "required"}, {"time_limit": 10}, True),
        ({"comment": "required"}, {"comment": "other"}, True),
        ({"comment": "required"}, {"comment": ""}, False),
        ({"comment": "forbidden"}, {"comment": ""}, True),
        ({"gpu_type": "required"}, {"tres_per_job": "gres:gpu:a100:1"}, True),
        ({"gpu_type": "required"}, {"tres_per_job": "gres:gpu:1"}, False),
        ({"gpu_type": "forbidden"}, {"tres_per_node": "gres:gpu:a100:1"}, False),
        ({"array": "forbidden"}, {"array_inx": "%4"}, True),
        ({"array": "required"}, {"array_inx": ""}, True),
        ({"exclusive": "required"}, {"shared": 1}, False),
        ({"exclusive": "forbidden"}, {"shared": 0}, False),
    ],
    ids=str,
)
def test_an_update_may_neither_set_a_forbidden_option_nor_clear_a_required_one(
    options: dict[str, str], fields: dict[str, str | int], accepted: bool
) -> None:
    rules = [RuleModel("r", "job", options=options)]
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")))
    row = record(7, Request(uid=1001, account="vision", per_job=1))
    script.set_jobs([row])
    assert script.modify(fields, row, PARTITIONS, 1001).accepted == accepted


def test_modes_observe_and_advise_accept_the_job() -> None:
    for mode, said in (
        ("observe", ()),
        (
            "advise",
            (
                "Violates rule r: Reason of r.",
                "  This rule requires --time.",
                "  Warning only; the job was accepted.",
            ),
        ),
    ):
        rules = [RuleModel("r", "job", mode, options={"time": "required"})]
        script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")), considers=True)
        verdict = script.submit(parse_command(["--wrap=true"], {}).description(1001, "alice"), PARTITIONS)
        assert verdict.accepted
        assert verdict.messages[: len(said)] == said
        assert verdict.considered == (
            Considered("r", mode, "option time", None, "required", "not set", fits=False),
        )


def test_a_job_that_differs_only_in_an_option_is_judged_again() -> None:
    rules = [RuleModel("r", "job", options={"comment": "forbidden"})]
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")), now=lambda: 1_000_000)
    for words in ([], [], ["--comment=x"], []):
        desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
        assert script.submit(desc, PARTITIONS).accepted == (not words)


def test_quota_lists_options() -> None:
    rule = RuleInForce("r", GroupInForce("g"), "job", "w", "enforce", {}, options={"time": "required"})
    (line,) = quota_of(
        PolicyInForce(rules=(rule,)),
        Snapshot(1, 0, None, Usage({}, {})),
        "alice",
        1001,
        UserAssociations(),
        0,
    )
    assert line.to_json() == {
        "rule": "r",
        "group": "g",
        "account": None,
        "per": "job",
        "on": "each job's option time",
        "key": "option:time",
        "unit": "names",
        "limit": ["required"],
        "used": None,
        "left": None,
        "carried_over": None,
        "mode": "enforce",
        "over_limit": None,
        "why": "w",
        "until_s": None,
    }


def test_the_replay_leaves_out_options() -> None:
    kept, remarks = without_unknown(
        compiled([RuleModel("r", "job", options={"time": "required"})], "/nonexistent/decisions.log")
    )
    assert "options" not in kept["rules"][0]  # type: ignore[index,operator]
    assert remarks == ["options of rule r are left out: records do not contain options"]
