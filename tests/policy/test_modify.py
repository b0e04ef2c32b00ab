"""Users cannot enlarge an accepted job past a limit with `scontrol update`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScalarFields

from .compile import compiled
from .model import BundleModel, Request, RuleModel
from .render import PARTITIONS, description, record

ALICE = Request(uid=1001, account="vision", per_node=2, minutes=30)
ROW = record(7, ALICE)
RULES = [
    RuleModel("size", "job", limits={"gpus": 4000, "walltime": 7200}),
    RuleModel("share", "user", limits={"gpus_total": 6000, "jobs_total": 3}),
    RuleModel("course", "user", partitions=frozenset({"long"}), limits={"gpus_total": 1000}),
]
SLURM_USER = 64030


@pytest.fixture(params=LUA_VERSIONS)
def script(request: pytest.FixtureRequest) -> PolicyScript:
    script = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/decisions.log")), lua=request.param)
    script.set_jobs([ROW])
    return script


def accepted(script: PolicyScript, by: int = 1001, row: dict[str, Any] = ROW, **changes: str | int) -> bool:
    return script.modify({**changes}, row, PARTITIONS, by).accepted


def test_an_update_counts_gpus_per_node_times_nodes(script: PolicyScript) -> None:
    assert accepted(script, tres_per_node="gres:gpu:4")
    assert not accepted(script, tres_per_node="gres:gpu:2", min_nodes=3)
    assert not accepted(script, min_nodes=3)
    assert not accepted(script, tres_per_node="gres:gpu:4", min_nodes=4)


def test_a_range_of_nodes_counts_by_its_maximum(script: PolicyScript) -> None:
    assert accepted(script, min_nodes=1, max_nodes=2)
    assert not accepted(script, min_nodes=1, max_nodes=3)
    assert not accepted(script, row=ROW | {"max_nodes": 2}, tres_per_node="gres:gpu:3")


def test_growth_counts_for_the_next_submission(script: PolicyScript) -> None:
    assert accepted(script, tres_per_node="gres:gpu:4")
    next_job = replace(ALICE, per_node=3)
    assert not script.submit(description(next_job), PARTITIONS).accepted


def test_jobs_that_move_into_a_group_count_there_immediately() -> None:
    """Slurm's job table contains the move a second later at the earliest."""
    rules = [RuleModel("share", "user", accounts=frozenset({"vision"}), limits={"gpus_total": 12000})]
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")))
    rows = [record(n, Request(uid=1001, account="nlp", per_node=4)) for n in range(1, 9)]
    script.set_jobs(rows)
    moved = [accepted(script, row=row, account="vision") for row in rows]
    assert moved == [True] * 3 + [False] * 5


def test_totals_count_the_job_itself_only_once(script: PolicyScript) -> None:
    assert accepted(script, tres_per_node="gres:gpu:1")
    assert accepted(script, name="renamed")
    other = record(8, replace(ALICE, per_node=4))
    script.set_jobs([ROW, other])
    assert accepted(script, tres_per_node="gres:gpu:2")
    assert not accepted(script, tres_per_node="gres:gpu:3")


def test_time_and_partition_are_checked_with_the_rest_of_the_job(script: PolicyScript) -> None:
    assert accepted(script, time_limit=120)
    assert not accepted(script, time_limit=121)
    assert not accepted(script, partition="long")


UNSET = 4294967294
SHORT_AND_LONG: list[ScalarFields] = [
    {"name": "gpu", "flag_default": 1, "default_time": UNSET, "max_time": 60},
    {"name": "week", "flag_default": 0, "default_time": UNSET, "max_time": 7 * 1440},
]


def test_a_job_without_a_time_limit_cannot_move_to_a_partition_with_a_longer_one() -> None:
    """Slurm's record of such a job has no time limit before it starts."""
    script = PolicyScript(build_bundle(compiled(RULES, "/nonexistent/decisions.log")))
    row = ROW | {"time_limit": UNSET}
    script.set_jobs([row])

    def moves(row: dict[str, Any], **changes: str | int) -> bool:
        return script.modify({**changes}, row, SHORT_AND_LONG, 1001).accepted

    assert not moves(row, partition="week")
    assert not moves(row, partition="gpu,week")
    assert moves(row, partition="week", time_limit=120)
    assert moves(row, name="renamed")
    assert moves(row | {"partition": "week"}, name="renamed")  # accepted before the limit existed
    assert not moves(row | {"partition": "closed"}, partition="week")


def test_a_job_that_shrinks_cannot_keep_a_time_limit_for_more_gpus() -> None:
    steps = RuleModel("steps", "job", limits={"walltime": ((1000, 3600), (8000, 86400))})
    large = Request(uid=1001, account="vision", per_job=8, minutes=1440)
    assert not changed([steps], large, tres_per_job="gres:gpu:1")
    assert changed([steps], large, tres_per_job="gres:gpu:1", time_limit=60)
    assert changed([steps], replace(large, minutes=2880), name="renamed")


def test_a_job_over_a_lowered_limit_can_change_in_other_ways(script: PolicyScript) -> None:
    large = record(7, replace(ALICE, per_node=16, minutes=1000))
    script.set_jobs([large])
    assert accepted(script, row=large, name="renamed")
    assert accepted(script, row=large, tres_per_node="gres:gpu:12")
    assert not accepted(script, row=large, tres_per_node="gres:gpu:17")


def test_a_running_job_can_be_renamed(script: PolicyScript) -> None:
    running = record(7, replace(ALICE, per_node=None, per_task=2, n_tasks=8), running=True)
    script.set_jobs([running])
    assert accepted(script, row=running, name="renamed")


def test_updates_by_root_slurm_user_and_operators_are_accepted(script: PolicyScript) -> None:
    """Slurm permits updates only by the owner and operators, so any other user is an operator."""
    for uid in (0, SLURM_USER, 1003):
        assert accepted(script, by=uid, tres_per_node="gres:gpu:16")


def test_a_modified_job_is_counted_again(script: PolicyScript) -> None:
    assert accepted(script, by=0, tres_per_node="gres:gpu:5")
    grown = record(7, replace(ALICE, per_node=5))
    script.set_jobs([grown])
    assert not script.submit(description(ALICE), PARTITIONS).accepted
    assert script.submit(description(replace(ALICE, per_node=1)), PARTITIONS).accepted


def test_a_job_reduced_right_after_submission_counts_with_its_new_size(script: PolicyScript) -> None:
    """The script still remembers the job's size at submission."""
    script.set_jobs([])
    four = replace(ALICE, per_node=4)
    comment = script.submit(description(four), PARTITIONS).desc["admin_comment"]
    shown = record(7, four, admin_comment=comment)
    script.set_jobs([shown])
    assert not script.submit(description(replace(ALICE, per_node=3)), PARTITIONS).accepted
    assert accepted(script, row=shown, tres_per_node="gres:gpu:1")
    script.set_jobs([record(7, replace(ALICE, per_node=1), admin_comment=comment)])
    assert script.submit(description(replace(ALICE, per_node=4)), PARTITIONS).accepted


GROWTH = [
    RuleModel("host", "job", limits={"cpus": 16, "memory": 65536, "nodes": 2}),
    RuleModel("gpu", "job", limits={"cpus_per_gpu": 8, "memory_per_gpu": 32768, "gpus:a100": 4000}),
    RuleModel("sum", "user", limits={"cpus_total": 24, "memory_total": 98304}),
    RuleModel("place", "job", limits={"partitions": frozenset({"gpu"})}),
]
SMALL = record(7, Request(uid=1001, account="vision", per_job=1, cpus_per_task=4, mib_per_node=16384))


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({"min_cpus": 8}, True),
        ({"min_cpus": 9}, False),
        ({"pn_min_cpus": 8}, True),
        ({"pn_min_cpus": 9}, False),
        ({"cpus_per_tres": "gres:gpu:9"}, False),
        ({"min_mem_per_node": 32768}, True),
        ({"min_mem_per_node": 32769}, False),
        ({"min_mem_per_node": 0}, False),
        ({"min_mem_per_cpu": 8192}, True),
        ({"min_mem_per_cpu": 8193}, False),
        ({"mem_per_tres": "gres:gpu:40000"}, False),
        ({"min_cpus": 16, "tres_per_job": "gres:gpu:2"}, True),
        ({"min_cpus": 17, "tres_per_job": "gres:gpu:3"}, False),
        ({"min_nodes": 3, "max_nodes": 3}, False),
        ({"tres_per_job": "gres:gpu:a100:5"}, False),
        ({"partition": "long"}, False),
        ({"partition": "gpu,long"}, False),
        ({"name": "renamed"}, True),
    ],
)
def test_cpus_memory_types_and_partitions_are_checked_too(
    changes: dict[str, Any], fits: bool, lua: str
) -> None:
    script = PolicyScript(build_bundle(compiled(GROWTH, "/nonexistent/decisions.log")), lua=lua)
    script.set_jobs([SMALL])
    assert accepted(script, row=SMALL, **changes) is fits


def test_updates_are_checked_against_sums_of_cpus_and_memory() -> None:
    script = PolicyScript(build_bundle(compiled(GROWTH, "/nonexistent/decisions.log")))
    other = record(8, Request(uid=1001, account="vision", per_job=2, cpus_per_task=16, mib_per_node=65536))
    script.set_jobs([SMALL, other])
    assert accepted(script, row=SMALL, min_cpus=8)
    assert not accepted(script, row=SMALL, min_cpus=9, tres_per_job="gres:gpu:2")
    assert accepted(script, row=SMALL, min_mem_per_node=32768)
    assert not accepted(script, row=SMALL, min_mem_per_node=32769, tres_per_job="gres:gpu:2")


def test_updates_cannot_exceed_a_limit_on_running_jobs() -> None:
    rule = RuleModel("turns", "user", limits={"gpus_running": 2000})
    script = PolicyScript(build_bundle(compiled([rule], "/nonexistent/decisions.log")))
    script.set_jobs([SMALL])
    assert accepted(script, row=SMALL, tres_per_job="gres:gpu:2")
    assert not accepted(script, row=SMALL, tres_per_job="gres:gpu:3")
    large = record(8, Request(uid=1001, account="vision", per_job=4))
    script.set_jobs([large])
    assert accepted(script, row=large, tres_per_job="gres:gpu:3")
    assert accepted(script, row=large, name="renamed")


def test_all_memory_of_a_node_counts_although_the_record_shows_the_default_per_gpu() -> None:
    """Slurm writes its defaults into the record of a job with --mem=0, too."""
    table = compiled(GROWTH, "/nonexistent/decisions.log")
    script = PolicyScript(build_bundle(table | {"default_mib": {"per_gpu": 98304, "per_cpu": 1024}}))
    whole = record(9, Request(uid=1001, account="vision", per_job=1, cpus_per_task=4, mib_per_node=0))
    defaults = {"mem_per_tres": "gpu:98304", "tres_fmt_req_str": "cpu=4,mem=90G,node=1,gres/gpu=1"}
    script.set_jobs([whole | defaults])
    small = Request(uid=1001, account="vision", per_job=1, cpus_per_task=4, mib_per_node=4096)
    assert script.submit(description(small), PARTITIONS).accepted
    assert not script.submit(description(replace(small, mib_per_node=16384)), PARTITIONS).accepted


def test_a_job_over_lowered_limits_can_be_reduced_or_renamed() -> None:
    script = PolicyScript(build_bundle(compiled(GROWTH, "/nonexistent/decisions.log")))
    large = record(
        9, Request(uid=1001, account="vision", per_job=1, nodes=4, cpus_per_task=40, mib_per_node=90000)
    )
    script.set_jobs([large])
    assert accepted(script, row=large, name="renamed")
    assert accepted(script, row=large, min_nodes=3, max_nodes=3, min_cpus=30, pn_min_cpus=10)
    assert not accepted(script, row=large, min_cpus=200)


def changed(rules: list[RuleModel], before: Request, **changes: Any) -> bool:
    """Return whether an update of alice's only job is accepted."""
    script = PolicyScript(build_bundle(compiled(rules, "/nonexistent/decisions.log")))
    row = record(7, before)
    script.set_jobs([row])
    return accepted(script, row=row, **changes)


def test_untyped_gpus_cannot_move_to_a_partition_with_a_limited_type() -> None:
    few = RuleModel("few", "user", limits={"gpus_total:v100": 1000})
    untyped = Request(uid=1001, account="vision", per_job=2)
    assert not changed([few], untyped, partition="gpu,long")
    assert changed([few], replace(untyped, gpu_type="a100"), partition="gpu,long")


def test_a_job_that_moves_under_another_rule_needs_an_allowed_type() -> None:
    nlp = RuleModel("nlp", "job", accounts=frozenset({"nlp"}), limits={"gpu_types": frozenset({"v100"})})
    assert not changed([nlp], Request(uid=1001, account="vision", per_job=1), account="nlp")


def test_a_job_keeps_a_qos_that_is_no_longer_allowed() -> None:
    solo = RuleModel("solo", "job", limits={"qos": frozenset({"solo"})})
    job = Request(uid=1001, account="vision", qos="long")
    assert changed([solo], job, name="renamed", qos="long")
    assert not changed([solo], job, qos="normal")
    assert changed([solo], job, qos="solo")


def test_with_all_memory_of_each_node_more_nodes_are_more_memory() -> None:
    memory = RuleModel("memory", "job", limits={"memory": 150_000})
    whole = Request(uid=1001, account="vision", per_job=1, nodes=1, mib_per_node=0)
    assert not changed([memory], whole, min_nodes=2, max_nodes=2)
    assert changed([memory], whole, name="renamed")


def test_limits_on_arrays_do_not_apply_to_other_jobs() -> None:
    none = RuleModel("arrays", "job", accounts=frozenset({"nlp"}), limits={"array_tasks": 0})
    assert changed([none], Request(uid=1001, account="vision"), account="nlp")
    assert not changed([none], Request(uid=1001, account="vision", array_tasks=1), account="nlp")


def test_an_enforced_bundle_limits_updates_that_request_more() -> None:
    train = BundleModel("train", 1000, cpus=8, mib=65536, mode="enforce")
    table = compiled([], "/nonexistent/decisions.log", [train])
    script = PolicyScript(build_bundle(table))
    two = record(7, Request(uid=1001, account="vision", per_job=2, cpus_per_task=16, mib_per_node=65536))
    large = record(8, Request(uid=1001, account="vision", per_job=1, cpus_per_task=32, mib_per_node=65536))
    script.set_jobs([two, large])
    assert accepted(script, row=two, min_mem_per_node=131072)
    assert not accepted(script, row=two, min_cpus=17)
    assert not accepted(script, row=two, min_mem_per_node=131073)
    assert not accepted(script, row=two, tres_per_job="gres:gpu:1")  # the CPUs are for two GPUs
    # A job that was accepted before the bundle existed may continue.
    assert accepted(script, row=large, time_limit=90)
    assert accepted(script, row=large, min_mem_per_node=4096)
    assert not accepted(script, row=large, min_cpus=33)
