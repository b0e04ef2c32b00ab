"""The Lua decides what the independent model decides, in the oldest and the newest Lua."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.bundle import build_bundle
from slurm_gpu.policy.script import PolicyScript, Verdict

from .model import Request, RuleModel, violations
from .render import PARTITIONS, compiled, description, record

UIDS = st.sampled_from([1001, 1002, 1003])
ACCOUNTS = st.sampled_from(["vision", "nlp"])
PARTITION_LISTS = st.sampled_from(["gpu", "long", "long,gpu"])
SMALL = st.none() | st.integers(1, 6)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    size = draw(st.sampled_from(["per_job", "per_node", "per_task", "shards_per_node", None]))
    nodes = draw(st.none() | st.integers(1, 4))
    return Request(
        uid=draw(UIDS),
        account=draw(ACCOUNTS),
        partition=draw(PARTITION_LISTS),
        nodes=nodes,
        most_nodes=None if nodes is None else nodes + draw(st.integers(0, 3)),
        n_tasks=draw(st.none() | st.integers(1, 8)),
        array_tasks=draw(st.none() | st.integers(1, 5)),
        minutes=draw(st.none() | st.integers(1, 300)),
        **({} if size is None else {size: draw(st.integers(1, 6))}),
    )


def limits_of(per: str) -> st.SearchStrategy[dict[str, float]]:
    if per == "job":
        keys = {
            "gpus": st.integers(0, 12).map(lambda n: n * 500),
            "walltime": st.integers(1, 200).map(lambda n: n * 60),
        }
    else:
        keys = {"gpus_total": st.integers(0, 40).map(lambda n: n * 500), "jobs_total": st.integers(0, 15)}
    return st.fixed_dictionaries({}, optional=keys)


@st.composite
def rule_lists(draw: st.DrawFn) -> list[RuleModel]:
    rules = []
    for number in range(draw(st.integers(0, 4))):
        per = draw(st.sampled_from(["user", "group", "job"]))
        limits = draw(limits_of(per))
        exceptions = {}
        if per != "group" and draw(st.booleans()):
            exceptions = {
                draw(UIDS): {key: value for key, value in draw(limits_of(per)).items() if key in limits}
            }
        rules.append(
            RuleModel(
                id=f"rule{number}",
                per=per,
                mode=draw(st.sampled_from(["enforce", "enforce", "advise", "observe"])),
                users=draw(st.none() | st.frozensets(UIDS, min_size=1)),
                accounts=draw(st.none() | st.frozensets(ACCOUNTS, min_size=1)),
                partitions=draw(st.none() | st.frozensets(st.sampled_from(["gpu", "long"]), min_size=1)),
                limits=limits,
                exceptions=exceptions,
            )
        )
    return rules


def refused_for(verdict: Verdict, log: Path) -> set[str]:
    """`rule:key` of the enforced findings in the last line of decisions.log."""
    rules = log.read_text().splitlines()[-1].split(" rules=")[1].split(" ")[0]
    found = {item.rpartition(":")[0] for item in rules.split(",") if item.endswith(":enforce")}
    assert verdict.accepted == (not found), verdict
    return found


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rules=rule_lists(),
    queue=st.lists(st.tuples(requests(), st.booleans()), max_size=8),
    asked=st.lists(requests(), min_size=1, max_size=8),
    mark=st.sampled_from([":", "/"]),
)
def test_lua_and_model_agree(
    tmp_path: Path,
    lua: str,
    rules: list[RuleModel],
    queue: list[tuple[Request, bool]],
    asked: list[Request],
    mark: str,
) -> None:
    log = tmp_path / "decisions.log"
    log.write_text("")
    second = [1_000_000]
    script = PolicyScript(
        build_bundle(compiled(rules, str(log))), lua=lua, writes=True, now=lambda: second[0]
    )
    table = [record(10 + number, job, running=running) for number, (job, running) in enumerate(queue)]
    script.set_jobs(table)
    known = [job for job, _ in queue]
    for number, request in enumerate(asked):
        verdict = script.submit(description(request, mark), PARTITIONS)
        assert refused_for(verdict, log) == violations(rules, known, request)
        if verdict.accepted:
            known.append(request)
            table.append(record(100 + number, request, admin_comment=verdict.desc["admin_comment"]))
        if number % 3 == 2:  # now and then Slurm shows what it has, and time goes on
            second[0] += 1
            script.set_jobs(table)
