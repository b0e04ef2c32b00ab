"""Jobs that leave the number of nodes to Slurm get no more GPUs than were counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.lua.bundle import NodeResources, SiteFacts, build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings
from slurm_gpu.slurm.job_desc import NO_VAL, UPDATE

from .compile import compiled
from .model import Limit, Request, RuleModel
from .render import PARTITIONS, description, record

NODE = {"n": 4, "gpus": 4, "cpus": 32, "cores": 32, "sockets": 2, "mib": 100_000}
TWO = {"gpus": 2000}


@dataclass(frozen=True)
class Site:
    """A policy and the nodes of partition gpu."""

    limits: dict[str, Limit] = field(default_factory=lambda: dict(TWO))
    mode: str = "enforce"
    nodes: tuple[dict[str, Any], ...] = (NODE,)
    lua: str = "5.1"
    per: str = "job"

    def script(self, **facts: Any) -> PolicyScript:
        rule = RuleModel("size", self.per, mode=self.mode, limits=self.limits)
        facts = {"partition_nodes": {"gpu": list(self.nodes)}} | facts
        return PolicyScript(
            build_bundle(compiled([rule], "/nonexistent/decisions.log", **facts)), lua=self.lua
        )

    def submit(self, **fields: Any) -> ScriptDecision:
        """Submit a job as a client of libslurm that sets only these fields."""
        desc = {**UPDATE, "user_id": 1001, "user_name": "alice", "script": "#!/bin/sh"}
        return self.script().submit(desc | fields, PARTITIONS)

    def most(self, **fields: Any) -> int | None:
        """Return max_nodes of an accepted job."""
        return most_of(self.submit(**fields))


def most_of(verdict: ScriptDecision) -> int | None:
    assert verdict.accepted, verdict.messages
    assert not [text for level, text in verdict.log if level == "error"]
    most = verdict.desc.get("max_nodes")
    return None if most in (None, NO_VAL) else int(most)


def gpu(count: int) -> str:
    return f"gres:gpu:{count}"


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({"tres_per_node": gpu(2), "num_tasks": 64}, 4),
        ({"tres_per_node": gpu(2), "min_cpus": 64}, 4),
        ({"tres_per_node": gpu(1), "num_tasks": 3, "cpus_per_task": 20}, 3),
        ({"tres_per_node": gpu(1), "num_tasks": 96}, 3),
        ({"tres_per_node": gpu(1), "num_tasks": 8, "ntasks_per_core": 1, "cpus_per_task": 16}, 4),
        ({"tres_per_node": gpu(1), "num_tasks": 6, "ntasks_per_socket": 1}, 3),
        ({"tres_per_node": gpu(1), "num_tasks": 64, "min_mem_per_cpu": 6000}, 4),
        ({"tres_per_socket": gpu(1), "sockets_per_node": 2, "num_tasks": 64}, 4),
        ({"tres_per_job": gpu(2), "features": "[zone1*1&zone2*2]"}, 3),
        ({"tres_per_job": gpu(2), "num_tasks": 96}, 3),
        ({"tres_per_task": gpu(1), "ntasks_per_node": 1, "min_cpus": 3}, 3),
        ({"ntasks_per_tres": 1, "min_cpus": 3}, 3),
        ({"ntasks_per_tres": 1, "req_nodes": "n[1-3]"}, 3),
        ({"ntasks_per_tres": 1, "features": "[zone1*1&zone2*2]"}, 3),
        ({"shared": 0, "num_tasks": 33, "min_nodes": 1}, 8),
    ],
)
def test_nodes_and_tasks_that_slurm_adds_are_counted(fields: dict[str, Any], gpus: int, lua: str) -> None:
    more = {"partition_gpus": {"gpu": 4}}
    desc = {**UPDATE, "user_id": 1001, "user_name": "alice", "script": "#!/bin/sh", **fields}
    verdict = Site(lua=lua).script(**more).submit(desc, PARTITIONS)
    assert not verdict.accepted
    assert f"requested {gpus}." in verdict.messages[1]
    enough = Site({"gpus": gpus * 1000}, lua=lua).script(**more).submit(desc, PARTITIONS)
    assert enough.accepted, enough.messages


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"tres_per_node": gpu(1), "num_tasks": 64}, 2),
        ({"tres_per_node": gpu(1), "num_tasks": 4}, 1),
        ({"tres_per_node": gpu(1), "min_cpus": 64}, 2),
        ({"tres_per_node": gpu(2), "bitflags": 0x100}, 1),
        ({"tres_per_job": gpu(2), "num_tasks": 64}, 2),
        ({"tres_per_job": gpu(2), "bitflags": 0x100}, 2),
        ({"tres_per_task": gpu(1), "bitflags": 0x100}, 1),
        ({"ntasks_per_tres": 1, "bitflags": 0x100}, 1),
        # Slurm cannot use more nodes than the limit allows.
        ({"tres_per_node": gpu(2)}, None),
        ({"tres_per_node": gpu(1), "num_tasks": 2}, None),
        ({"tres_per_node": gpu(1), "bitflags": 0x200}, None),
        ({"tres_per_job": gpu(2), "num_tasks": 2}, None),
        ({"tres_per_task": gpu(1), "num_tasks": 2}, None),
        ({"num_tasks": 64}, None),
        # The user chose the number of nodes.
        ({"tres_per_node": gpu(1), "num_tasks": 64, "max_nodes": 2}, 2),
    ],
)
def test_accepted_jobs_get_no_more_nodes_than_counted(
    fields: dict[str, Any], most: int | None, lua: str
) -> None:
    assert Site(lua=lua).most(**fields) == most


@pytest.mark.parametrize(
    ("limits", "per", "fields", "most"),
    [
        ({"gpus_total": 64000}, "user", {"tres_per_node": gpu(1), "num_tasks": 4}, 1),
        ({"gpus_total:a100": 64000}, "user", {"tres_per_node": gpu(1), "num_tasks": 4}, 1),
        ({"gpus_total": 64000}, "user", {"tres_per_job": gpu(2), "num_tasks": 4}, 2),
        ({"gpu_hours": 1000}, "job", {"tres_per_node": gpu(1), "num_tasks": 4}, 1),
        ({"gpus_running": 64000}, "user", {"tres_per_node": gpu(1), "num_tasks": 4}, None),
        ({"walltime": 86400}, "job", {"tres_per_node": gpu(1), "num_tasks": 4}, None),
        ({"nodes": 3}, "job", {"num_tasks": 64}, 3),
        ({"nodes": 1}, "job", {"tres_per_job": gpu(6)}, 1),
        ({"nodes": 2}, "job", {"tres_per_job": gpu(2)}, None),
        ({"nodes": 3, "gpus": 8000}, "job", {"tres_per_node": gpu(4), "num_tasks": 4}, 1),
        ({"nodes": ((0, 1), (4000, 3))}, "job", {"tres_per_job": gpu(6)}, 3),
    ],
)
def test_only_limits_that_more_nodes_can_exceed_matter(
    limits: dict[str, Limit], per: str, fields: dict[str, Any], most: int | None
) -> None:
    assert Site(limits, per=per).most(**fields) == most


def test_a_limit_on_nodes_counts_those_that_tasks_need() -> None:
    assert not Site({"nodes": 1}).submit(num_tasks=64).accepted
    assert not Site({"nodes": 1}).submit(num_tasks=2, cpus_per_task=20).accepted
    assert Site({"nodes": 2}).submit(num_tasks=64).accepted


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_rules_that_are_not_enforced_leave_jobs_unchanged(mode: str) -> None:
    assert Site(mode=mode).most(tres_per_node=gpu(2), num_tasks=64) is None


def test_sbatch_options_count_alike() -> None:
    def submit(*words: str) -> ScriptDecision:
        desc = parse_command([*words, "--wrap=true"], {}).description(1001, "alice")
        return Site().script().submit(desc, PARTITIONS)

    assert not submit("-n64", "--gres=gpu:2").accepted
    assert most_of(submit("-n64", "--gres=gpu:1")) == 2
    assert most_of(submit("-c8", "--gres=gpu:2")) is None
    assert most_of(submit("--overcommit", "-n64", "--gres=gpu:2")) == 1
    assert submit("-n64", "--gres=gpu:2").messages[2] == "  Try: sbatch --nodes=1 --ntasks=32 ..."


LARGE = {**NODE, "n": 1, "cpus": 128, "cores": 64}


def test_the_largest_nodes_count_as_far_as_there_are_enough() -> None:
    mixed = Site({"gpus": 8000}, nodes=(NODE, LARGE))
    assert mixed.most(tres_per_node=gpu(1), num_tasks=128) == 1
    assert mixed.most(tres_per_node=gpu(1), num_tasks=129) == 2
    assert mixed.most(tres_per_node=gpu(1), num_tasks=192) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"features": "small"},
        {"exc_nodes": "large"},
        {"reservation": "class"},
        {"tres_per_node": "gres:gpu:a100:1"},
        {"num_tasks": 1000},
        {"partition": "unknown"},
        {"min_mem_per_node": 200_000},
    ],
)
def test_jobs_that_may_need_more_nodes_than_counted_are_not_restricted(fields: dict[str, Any]) -> None:
    mixed = Site({"gpus": 20000}, nodes=(NODE, LARGE))
    assert mixed.most(**({"tres_per_node": gpu(1), "num_tasks": 100} | fields)) is None


def test_nodes_without_the_gpus_of_the_job_do_not_count() -> None:
    cpus_only = {**NODE, "gpus": 0, "cpus": 256, "cores": 256}
    site = Site({"gpus": 8000, "nodes": 4}, nodes=(NODE, cpus_only))
    assert site.most(tres_per_node=gpu(1), num_tasks=64) == 2
    assert site.most(num_tasks=256) == 4
    assert not Site({"nodes": 1}, nodes=(NODE, cpus_only)).submit(num_tasks=300).accepted


def test_each_partition_counts_with_its_limit_of_cpus() -> None:
    def most(**part: int) -> int | None:
        desc = {**UPDATE, "user_id": 1001, "tres_per_node": gpu(1), "num_tasks": 32}
        desc |= {"partition": "gpu,long", "user_name": "alice"}
        facts = {"partition_nodes": {"gpu": [NODE], "long": [{**NODE, "cpus": 16}]}}
        parts = [part | dict(PARTITIONS[0]), PARTITIONS[1]]
        return most_of(Site({"gpus": 4000}).script(**facts).submit(desc, parts))

    assert most() == 2
    assert most(max_cpus_per_node=8) == 4


def test_tasks_of_cores_with_several_threads() -> None:
    threads = Site(nodes=({**NODE, "cpus": 64},))
    assert threads.most(tres_per_node=gpu(1), num_tasks=64) == 1
    assert threads.most(tres_per_node=gpu(1), num_tasks=64, threads_per_core=1) == 2
    assert threads.most(tres_per_node=gpu(1), num_tasks=64, ntasks_per_core=1) == 2
    unknown = Site(nodes=({**NODE, "cores": None, "cpus": 64},))
    assert unknown.most(tres_per_node=gpu(1), num_tasks=64, ntasks_per_core=1) is None
    one = Site().script(tasks_per_core=1, partition_nodes={"gpu": [{**NODE, "cpus": 64}]})
    job = description(Request(uid=1001, account="vision", per_node=1, n_tasks=64))
    assert most_of(one.submit(job, PARTITIONS)) == 2


def test_equal_jobs_are_restricted_alike() -> None:
    script = Site().script()
    job = description(Request(uid=1001, account="vision", per_node=1, n_tasks=4))
    assert [most_of(script.submit(job, PARTITIONS)) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_updates_count_and_restrict_nodes_too(lua: str) -> None:
    script = Site(lua=lua).script()
    row = record(7, Request(uid=1001, account="vision", per_node=1))
    script.set_jobs([row])

    def change(row: dict[str, Any], **changes: Any) -> ScriptDecision:
        return script.modify(changes, row, PARTITIONS, 1001)

    assert not change(row, min_cpus=96).accepted
    assert not change(row, num_tasks=96).accepted
    assert most_of(change(row, min_cpus=64)) == 2
    assert most_of(change(row, time_limit=30)) is None
    pending = record(7, Request(uid=1001, account="vision", per_node=1, n_tasks=4))
    assert most_of(change(pending, time_limit=30)) == 1
    running = record(7, Request(uid=1001, account="vision", per_node=1, n_tasks=4), running=True)
    assert most_of(change(running, time_limit=30)) is None


def test_restricted_jobs_count_alike_in_the_queue() -> None:
    rule = RuleModel("share", "user", limits={"gpus_total": 4000, "memory_total": 10**6})
    script = PolicyScript(
        build_bundle(compiled([rule], "/nonexistent/decisions.log")), now=lambda: 1_800_000_000
    )
    job = Request(uid=1001, account="vision", per_job=2, n_tasks=8, mib_per_node=50_000)
    verdict = script.submit(description(job), PARTITIONS)
    assert most_of(verdict) == 2
    shown = record(1, replace(job, most_nodes=2), admin_comment=verdict.desc["admin_comment"])
    for rows in ([], [shown]):
        script.set_jobs(rows)
        other = description(Request(uid=1001, account="vision", per_job=3))
        assert "used 2" in script.submit(other, PARTITIONS).messages[1]


def test_the_facts_are_those_of_the_nodes() -> None:
    node = SlurmNode(
        name="n1",
        address="n1",
        state="idle",
        reason=None,
        cpus=64,
        cpus_allocated=0,
        memory_mib=1000,
        memory_allocated_mib=0,
        gpus={"a100": 2},
        gpus_allocated={},
        shards=0,
        shards_allocated=0,
        features=[],
        partitions=["gpu"],
        cpus_effective=60,
        sockets=2,
        cores=32,
    )
    nodes = [node, replace(node, name="n2"), replace(node, name="n3", gpus={})]
    raw = {"SelectTypeParameters": "CR_CORE_MEMORY,CR_ONE_TASK_PER_CORE"}
    settings = SlurmSettings(
        cluster="lab", version="24.11.5", slurm_user="slurm", slurm_user_uid=64030, conf_path="", raw=raw
    )
    facts = SiteFacts.of(settings, nodes, Path("/run"), "UTC")
    both = [NodeResources(2, 60, 32, 2, 1000), NodeResources(0, 60, 32, 2, 1000)]
    assert facts.partition_nodes == {"gpu": {both[0]: 2, both[1]: 1}}
    assert facts.tasks_per_core == 1
    plain = SiteFacts.of(
        replace(settings, raw={"SelectTypeParameters": "CR_CORE"}), nodes, Path("/run"), "UTC"
    )
    assert {kind.mib for kind in plain.partition_nodes["gpu"]} == {None}
    assert plain.tasks_per_core is None


def test_minimums_count_the_nodes_that_a_job_names() -> None:
    limits: dict[str, Limit] = {"nodes": 3, "at_least:nodes": 2}
    fields = {"tres_per_node": gpu(1), "num_tasks": 64}
    refused = Site(limits).submit(**fields)
    assert refused.messages[1:3] == (
        "  nodes in one job: at least 2, requested 1.",
        "  Try: sbatch --nodes=2 ...",
    )
    assert Site(limits).most(**fields, min_nodes=2) == 3
    assert Site(limits | {"gpus": 8000}).most(**fields, min_nodes=2) == 2
    assert Site(limits).most(**fields, min_nodes=2, max_nodes=2) == 2
    alone: dict[str, Limit] = {"at_least:nodes": 2}
    assert Site(alone).most(**fields, min_nodes=2) is None
