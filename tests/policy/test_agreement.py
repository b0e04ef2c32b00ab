"""The Lua decides what the independent model decides, in every Lua, by the table and by the snapshot.

SLURM_GPU_FUZZ=50000 makes that many examples of each.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.bundle import build_bundle
from slurm_gpu.policy.script import PolicyScript, Verdict

from .model import BundleModel, Request, RuleModel, fitted, violations
from .render import PARTITIONS, compiled, description, record, snapshot
from .strategies import BUNDLES, examples, full_requests, queued, rule_lists

START = 1_000_000
Hours = dict[tuple[str, int | None], float]


def refused_for(verdict: Verdict, log: Path) -> set[str]:
    """`rule:key` of the enforced findings in the last line of decisions.log."""
    rules = log.read_text().splitlines()[-1].split(" rules=")[1].split(" ")[0]
    found = {item.rpartition(":")[0] for item in rules.split(",") if item.endswith(":enforce")}
    assert verdict.accepted == (not found), verdict
    assert not [text for level, text in verdict.log if level == "error"], verdict.log
    return found


@pytest.mark.parametrize("lua", ["5.1", "5.4"])
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rules=rule_lists(hours=False),
    bundles=BUNDLES,
    queue=st.lists(queued(), max_size=8),
    asked=st.lists(full_requests(), min_size=1, max_size=8),
    mark=st.sampled_from([":", "/"]),
    start=st.integers(START, START + 7 * 86400),
)
def test_lua_and_model_agree_by_the_table(
    tmp_path: Path,
    lua: str,
    rules: list[RuleModel],
    bundles: list[BundleModel],
    queue: list[tuple[Request, bool]],
    asked: list[Request],
    mark: str,
    start: int,
) -> None:
    log = tmp_path / "decisions.log"
    log.write_text("")
    second = [start]
    script = PolicyScript(
        build_bundle(compiled(rules, str(log), bundles)), lua=lua, writes=True, now=lambda: second[0]
    )
    if not any(rule.kind for rule in rules):  # then nobody looks at whether there is a script
        queue = [(replace(job, interactive=False), running) for job, running in queue]
    table = [record(10 + number, job, running=running) for number, (job, running) in enumerate(queue)]
    script.set_jobs(table)
    known = [job for job, _ in queue]
    for number, request in enumerate(asked):
        verdict = script.submit(description(request, mark), PARTITIONS)
        wrong = violations(rules, known, request, now=second[0], bundles=bundles)
        assert refused_for(verdict, log) == wrong
        if verdict.accepted:
            admitted = fitted(bundles, request)
            known.append(admitted)
            table.append(record(100 + number, admitted, admin_comment=verdict.desc["admin_comment"]))
        if number % 3 == 2:  # now and then Slurm shows what it has, and time goes on
            second[0] += 1
            script.set_jobs(table)


@pytest.mark.parametrize("lua", ["5.1", "5.3"])
@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rules=rule_lists(kinds=False),
    bundles=BUNDLES,
    queue=st.lists(queued(), max_size=8),
    asked=st.lists(full_requests(), min_size=1, max_size=8),
    used=st.integers(0, 50),
)
def test_lua_and_model_agree_by_the_snapshot(
    tmp_path: Path,
    lua: str,
    rules: list[RuleModel],
    bundles: list[BundleModel],
    queue: list[tuple[Request, bool]],
    asked: list[Request],
    used: int,
) -> None:
    log, file = tmp_path / "decisions.log", tmp_path / "snapshot.txt"
    log.write_text("")
    second = [START]
    hours: Hours = {(rule.id, uid): used for rule in rules for uid in (None, 1001)}
    file.write_text(snapshot(1, START, rules, queue, hours=hours))
    script = PolicyScript(
        build_bundle(compiled(rules, str(log), bundles, snapshot=str(file))),
        lua=lua,
        writes=True,
        now=lambda: second[0],
    )
    script.set_jobs([{"job_id": 1}])  # reading it would fail
    known, tokens = list(queue), []
    for number, request in enumerate(asked):
        verdict = script.submit(description(request), PARTITIONS)
        jobs = [job for job, _ in known]
        wrong = violations(rules, jobs, request, now=second[0], bundles=bundles, used_hours=hours)
        assert refused_for(verdict, log) == wrong
        if verdict.accepted:
            known.append((fitted(bundles, request), False))
            tokens.append(verdict.desc["admin_comment"].split()[1].removeprefix("t="))
        if number % 3 == 2:
            second[0] += 1
            file.write_text(snapshot(number, second[0], rules, known, tokens, hours))


def test_a_pending_job_has_the_memory_that_slurm_gives_by_the_gpu_however_many_cpus() -> None:
    """64 CPUs would come to more by the default per CPU, which stands in the same record."""
    waiting = Request(uid=1001, account="vision", per_job=2, cpus_per_gpu=32)
    rule = RuleModel("share", "user", limits={"memory_total": 3 * 16384})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    script.set_jobs([record(1, waiting)])
    one = replace(waiting, per_job=1, cpus_per_gpu=None)
    assert script.submit(description(one), PARTITIONS).accepted
