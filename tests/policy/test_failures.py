"""If the script fails, slurmctld gets the decision that the policy names, and one error in its log."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptError

from .compile import compiled
from .fuzzing import examples, seeded
from .model import BundleModel, Request, RuleModel
from .render import PARTITIONS, description, record

ALICE = Request(uid=1001, account="vision", per_job=1)
RULE = RuleModel("share", "user", accounts=frozenset({"vision"}), limits={"gpus_total": 8000})


def script_of(
    on_error: str, lua: str = "5.4", now: Callable[[], int] | None = None, **broken: Plain
) -> PolicyScript:
    table = compiled([RULE], "/nonexistent/decisions.log")
    rule = table["rules"][0]  # type: ignore[index]
    rule |= {"on_error": on_error} | broken  # type: ignore[operator]
    return PolicyScript(build_bundle(table), lua=lua, now=now)


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(("on_error", "accepted"), [("allow", True), ("deny", False)])
def test_an_unreadable_queue_follows_on_error(lua: str, on_error: str, accepted: bool) -> None:
    script = script_of(on_error, lua)
    script.set_jobs([{"job_id": 1, "job_state": "?"}])  # a state that is no number is an error
    for _ in range(2):
        verdict = script.submit(description(ALICE), PARTITIONS)
        assert verdict.accepted is accepted
        assert [level for level, _ in verdict.log] == ["error"]
        assert bool(verdict.messages) is not accepted
    script.set_jobs([record(1, ALICE)])
    assert script.submit(description(ALICE), PARTITIONS).accepted


def test_on_error_of_a_rule_applies_only_to_its_group() -> None:
    script = script_of("deny")
    script.set_jobs([{"job_id": 1, "job_state": "?"}])
    stranger = Request(uid=1002, account="nlp", per_job=1)
    assert script.submit(description(stranger), PARTITIONS).accepted


@pytest.mark.parametrize(("day", "accepted"), [(0, False), (1, True)])
def test_on_error_of_a_rule_applies_only_at_its_hours(day: int, accepted: bool) -> None:
    thursday: Plain = {"days": [number == 3 for number in range(7)], "from_min": 0, "to_min": 1440}
    script = script_of("deny", now=lambda: day * 86400, when=thursday)  # 1 January 1970 was a Thursday
    script.set_jobs([{"job_id": 1, "job_state": "?"}])
    assert script.submit(description(ALICE), PARTITIONS).accepted is accepted


@pytest.mark.parametrize(("on_error", "accepted"), [("allow", True), ("deny", False)])
def test_a_rule_that_fails_follows_its_own_on_error(on_error: str, accepted: bool) -> None:
    script = script_of(on_error, limits={"gpus": "many"})
    verdict = script.submit(description(ALICE), PARTITIONS)
    assert verdict.accepted is accepted
    assert "rule share failed" in verdict.log[0][1]


def test_a_failing_rule_does_not_hide_the_others() -> None:
    table = compiled([RULE, RuleModel("size", "job", limits={"gpus": 0})], "/nonexistent/decisions.log")
    table["rules"][0]["limits"] = {"gpus": "many"}  # type: ignore[index]
    verdict = PolicyScript(build_bundle(table)).submit(description(ALICE), PARTITIONS)
    assert verdict.messages[0].startswith("Refused by rule size")


FIELDS = [
    "account",
    "qos",
    "partition",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
    "array_inx",
    "script",
    "admin_comment",
    "default_account",
    "default_qos",
    "cpus_per_tres",
    "mem_per_tres",
    "user_name",
    "features",
    "reservation",
    "assoc_qos",
]
NUMBERS = [
    "time_limit",
    "min_nodes",
    "max_nodes",
    "num_tasks",
    "ntasks_per_node",
    "ntasks_per_tres",
    "sockets_per_node",
    "min_cpus",
    "cpus_per_task",
    "pn_min_cpus",
    "min_mem_per_node",
    "min_mem_per_cpu",
    "shared",
    "het_job_offset",
    "argc",
]
ODD_TEXT = st.text(max_size=12) | st.sampled_from(
    [
        "%s%d%",
        "gres:gpu:",
        "gres/gpu:999999999999999999999",
        "gpu:a100:2K",
        "gres:gpu:2(S:0-1),,",
        ",",
        "0-",
        "5-1",
        "0-4294967294",
        "0-2200000000",
        "1,1,1",
        "1-10:0",
        "[0-3]%2",
        "gres:shard:3,gres:mps:50",
        "\n",
        "%",
        "%1",
        "gpu:0",
        "cpu=,mem=",
        "mem=1.5.5G",
        "gres:gpu:-1",
    ]
)
ODD_NUMBER = st.sampled_from(
    [0, 1, 65534, 65535, 4294967294, 4294967295, float(2**63), float(2**64), None]
) | st.integers(0, 2**32 - 1)
ALL_LIMITS = [
    RuleModel("user", "user", limits={"gpus_total": 8000, "jobs_total": 5, "cpus_total": 64}),
    RuleModel("typed", "group", limits={"gpus_total:a100": 4000, "memory_total": 500_000}),
    RuleModel(
        "job",
        "job",
        limits={"gpus": 4000, "gpus:a100": 2000, "nodes": 4, "cpus": 32, "memory": 10**5, "array_tasks": 9}
        | {"cpus_per_gpu": 8, "memory_per_gpu": 65536, "tasks": 9, "walltime": ((1000, 3600),)},
    ),
    RuleModel("shell", "job", kind="interactive", limits={"gpus": 1000, "gpu_types": frozenset({"a100"})}),
    RuleModel("place", "job", kind="batch", limits={"partitions": frozenset({"gpu"})}),
]
FITTED = [
    BundleModel("train", 1000, cpus=8, mib=65536, mode="fit"),
    BundleModel("cpu", 0, cpus=4, mode="enforce"),
]


HOSTILITY_PARTS = ("1", "2", "3", "4")


@pytest.mark.parametrize("part", HOSTILITY_PARTS)
def test_no_description_makes_the_script_fail(part: str) -> None:
    @seeded(part)
    @settings(max_examples=examples(200) // len(HOSTILITY_PARTS), deadline=None)
    @given(
        texts=st.dictionaries(st.sampled_from(FIELDS), st.none() | ODD_TEXT),
        numbers=st.dictionaries(st.sampled_from(NUMBERS), ODD_NUMBER),
        row=st.dictionaries(st.sampled_from([*FIELDS, "tres_fmt_req_str", "tres_fmt_alloc_str"]), ODD_TEXT),
        running=st.booleans(),
    )
    # A number of GPU parts above 2^63, which integers of Lua 5.3 and later cannot represent.
    @example(
        texts={"tres_per_task": "gres:shard:3,gres:mps:50"},
        numbers={"ntasks_per_node": 115, "min_nodes": 979043398},
        row={},
        running=False,
    )
    def check(
        texts: dict[str, str | None], numbers: dict[str, Any], row: dict[str, str], running: bool
    ) -> None:
        assert_robust(description(ALICE) | numbers | texts, record(1, ALICE, running=running) | row)

    check()


@pytest.mark.parametrize("text", ["%", "%s%d%n", "100%", "%%", "\0", "gpu:%d", "[%a-", "%f" * 1000])
@pytest.mark.parametrize("fields", [*[[field] for field in FIELDS], FIELDS], ids=str)
def test_percent_signs_are_safe_in_every_field(text: str, fields: list[str]) -> None:
    hostile = dict.fromkeys(fields, text)
    assert_robust(description(ALICE) | hostile, record(1, ALICE) | hostile)


def assert_robust(desc: dict[str, Any], row: dict[str, Any]) -> None:
    """Check that no error occurs, refusals have Slurm's code for limits, and Lua 5.1 and 5.4 decide alike."""
    verdicts = []
    for script in watched_scripts():
        script.set_jobs([row])
        verdict = script.submit(desc, PARTITIONS)
        assert not [text for level, text in verdict.log if level == "error"]
        assert verdict.code in (0, 2050)
        verdicts.append((verdict.code, verdict.messages))
        script.set_jobs([])  # admitted jobs do not count in the next example
        changed = script.modify(desc, row, PARTITIONS)
        assert not [text for level, text in changed.log if level == "error"]
    assert verdicts[0] == verdicts[1]


# Maximum number of instructions of Lua's virtual machine in one call, which take 10 to 20 ms.
MOST_INSTRUCTIONS = 3_000_000

WATCHED = f"""
local code = (function(...) BUNDLE
end)(...)
for _, name in ipairs({{ "slurm_job_submit", "slurm_job_modify" }}) do
  local ask = _G[name]
  _G[name] = function(...)
    debug.sethook(function() error("slurmctld would be held up") end, "", {MOST_INSTRUCTIONS})
    return ask(...)
  end
end
return code
"""


@cache
def watched_scripts() -> tuple[PolicyScript, PolicyScript]:
    """Return scripts with every limit in the oldest and newest Lua; a call that takes too long fails."""
    clock = count(1_000_000, 100)
    bundle = build_bundle(compiled(ALL_LIMITS, "/nonexistent/decisions.log", FITTED))
    watched = WATCHED.replace("BUNDLE", bundle)
    return PolicyScript(watched, lua="5.1", now=lambda: next(clock)), PolicyScript(
        watched, lua="5.4", now=lambda: next(clock)
    )


def test_a_call_that_takes_too_long_fails() -> None:
    """Check the instruction limit that the tests above rely on."""
    bundle = build_bundle(compiled(ALL_LIMITS, "/nonexistent/decisions.log"))
    opening = "function slurm_job_submit(job_desc, part_list, submit_uid)"
    endless = bundle.replace(opening, f"{opening} while true do end")
    with pytest.raises(ScriptError, match="held up"):
        PolicyScript(WATCHED.replace("BUNDLE", endless)).submit(description(ALICE), PARTITIONS)


def test_the_order_of_advised_options_of_one_length_is_the_same_in_each_lua() -> None:
    forms = {"tres_per_task": "gres:gpu::", "tres_per_node": "gres:gpu"}
    assert_robust(description(ALICE) | {"script": None} | forms, record(1, ALICE))
