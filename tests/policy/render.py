"""Requests of the model as Slurm would put them: job descriptions, rows of slurm.jobs, and snapshots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from slurm_gpu.policy.luadata import Plain
from slurm_gpu.policy.script import EMPTY_DESCRIPTION, ScalarFields

from .model import (
    DEFAULT_MIB_PER_CPU,
    DEFAULT_MIB_PER_GPU,
    BundleModel,
    Limit,
    Request,
    RuleModel,
    When,
)
from .model import PARTITIONS as MODEL_PARTITIONS
from .users import UIDS

PARTITIONS: list[ScalarFields] = [
    {"name": "gpu", "flag_default": 1, "default_time": 60, "max_time": 4294967295},
    {"name": "long", "flag_default": 0, "default_time": 4294967294, "max_time": 60},
]
FAR = 2**40
NAMES = {uid: name for name, uid in UIDS.items()}


def tres(request: Request, mark: str) -> dict[str, str]:
    """The request's TRES fields; `mark` is ":" up to Slurm 23.02, "/" from 23.11 on."""
    kind = f"{request.gpu_type}:" if request.gpu_type else ""
    per_node = []
    if request.per_node is not None:
        per_node.append(f"gres{mark}gpu:{kind or 'a100:'}{request.per_node}")
    if request.shards_per_node is not None:
        per_node.append(f"gres{mark}shard:{request.shards_per_node}")
    fields = {"tres_per_node": ",".join(per_node)} if per_node else {}
    if request.per_job is not None:
        fields["tres_per_job"] = f"gres{mark}gpu:{kind}{request.per_job}"
    if request.per_task is not None:
        fields["tres_per_task"] = f"gres{mark}gpu:{kind}{request.per_task}"
    if request.cpus_per_gpu is not None:
        fields["cpus_per_tres"] = f"gres{mark}gpu:{request.cpus_per_gpu}"
    if request.mib_per_gpu is not None:
        fields["mem_per_tres"] = f"gres{mark}gpu:{request.mib_per_gpu}"
    return fields


def description(request: Request, mark: str = "/") -> dict[str, Any]:
    """What sbatch or, for an interactive job, salloc would send."""
    desc: dict[str, Any] = dict(EMPTY_DESCRIPTION) | tres(request, mark)
    desc |= {"user_id": request.uid, "account": request.account, "partition": request.partition}
    desc["user_name"] = NAMES.get(request.uid)
    desc |= {"script": None, "argc": 0} if request.interactive else {"script": "#!/bin/sh"}
    tasks = request.nodes or 1 if request.n_tasks is None else max(request.n_tasks, request.nodes or 1)
    desc["min_cpus"] = tasks * (1 if request.cpus_per_task is None else request.cpus_per_task)
    given = {
        "min_nodes": request.nodes,
        "max_nodes": request.most_nodes,
        "num_tasks": request.n_tasks,
        "time_limit": request.minutes,
        "cpus_per_task": request.cpus_per_task,
        "pn_min_cpus": request.cpus_per_task,
        "min_mem_per_node": request.mib_per_node,
        "min_mem_per_cpu": request.mib_per_cpu,
    }
    desc |= {field: value for field, value in given.items() if value is not None}
    if request.array_tasks is not None:
        desc["array_inx"] = f"1-{request.array_tasks}%3" if request.array_tasks > 1 else "7"
    return desc


def record(job_id: int, request: Request, *, running: bool = False, **more: Any) -> dict[str, Any]:
    """What slurm.jobs would show; an array not yet split is one entry."""
    row: dict[str, Any] = {
        "job_id": job_id,
        "job_state": 1 if running else 0,
        "user_id": request.uid,
        "account": request.account,
        "qos": "normal",
        "partition": request.partition,
        "min_nodes": 1 if request.nodes is None else request.nodes,
        "max_nodes": 0 if request.most_nodes is None else request.most_nodes,
        "min_cpus": request.tasks * (request.cpus_per_task or 1),
        "pn_min_cpus": request.cpus_per_task or 1,
        "time_limit": 60 if request.minutes is None else request.minutes,
        "tres_fmt_req_str": _total(request, request.named_type),
        "mem_per_tres": f"gpu:{DEFAULT_MIB_PER_GPU}" if request.mgpu and not request.only_shards else None,
        **tres(request, ":"),
        **_memory(request),
    }
    if running:
        row["tres_fmt_alloc_str"] = _total(request, request.given_type or request.named_type)
    if request.array_tasks is not None:
        row["array_task_cnt"] = request.array_tasks
    if request.interactive and "admin_comment" not in more:
        row["admin_comment"] = "slurm-gpu/1 t=before k=i"
    return row | more


def _memory(request: Request) -> dict[str, int]:
    """Slurm writes its default per CPU where nothing is said."""
    if request.mib_per_node is not None:
        return {"min_mem_per_node": request.mib_per_node}
    if request.mib_per_cpu is not None:
        return {"min_mem_per_cpu": request.mib_per_cpu}
    return {"min_mem_per_cpu": DEFAULT_MIB_PER_CPU}


def _total(request: Request, gpu_type: str | None) -> str:
    shards = (request.shards_per_node or 0) * request.counted_nodes
    gpus = (request.mgpu - shards * 250) // 1000
    text = f"cpu={request.cpus},mem={math.ceil(request.mib)}M,node={request.counted_nodes},billing=4"
    if gpus:
        text += f",gres/gpu={gpus}" + (f",gres/gpu:{gpu_type}={gpus}" if gpu_type else "")
    return text + (f",gres/shard={shards}" if shards else "")


def snapshot(
    generation: int,
    as_of: int,
    rules: Iterable[RuleModel],
    jobs: Iterable[tuple[Request, bool]],
    tokens: Iterable[str] = (),
    hours: Mapping[tuple[str, int | None], float] | None = None,
) -> str:
    """What slurm-gpuctld would write of these (job, running); `hours` as in the model, of the week.

    A token may be followed by the second in which its job was put in.
    """
    listed = list(jobs)
    lines = [f"slurm-gpu-snapshot 1 {generation} {as_of}", "groups test"]
    if hours is not None:
        lines.append("hours 1 1 1")
    for rule in rules:
        for uid in (None, *NAMES):
            use: Counter[str] = Counter()
            for job, running in listed:
                if rule.binds(job) and uid in (None, job.uid):
                    use.update(_use(job, "run" if running else "pend"))
            if hours is not None:
                use["gpu_h_week"] = hours.get((rule.id, uid), 0)  # type: ignore[assignment]
            fields = " ".join(f"{key}={value}" for key, value in use.items() if value)
            key = f"group:group-{rule.id}" if uid is None else f"user:{NAMES[uid]}@group-{rule.id}"
            lines.append(f"use {key} {fields}")
    lines += [f"user {name} {uid}" for uid, name in NAMES.items()]
    lines += [f"seen {token}" for token in tokens]
    return "\n".join([*lines, f"end {generation}", ""])


def _use(job: Request, phase: str) -> dict[str, int]:
    use = {
        f"jobs_{phase}": job.jobs,
        f"mgpu_{phase}": job.mgpu * job.jobs,
        f"cpus_{phase}": job.cpus * job.jobs,
        f"mib_{phase}": math.ceil(job.mib) * job.jobs,
    }
    types = {kind for name in job.partition.split(",") for kind in MODEL_PARTITIONS[name].gpu_types}
    kind = job.given_type or job.named_type or (min(types) if len(types) == 1 else None)
    return use | ({f"mgpu_{phase}:{kind}": job.mgpu * job.jobs} if kind else {})


def compiled(
    rules: list[RuleModel], log: str, bundles: Iterable[BundleModel] = (), **more: Plain
) -> dict[str, Plain]:
    """The table that compile_policy would make of these rules, one group per rule."""
    groups: list[Plain] = [
        {
            "name": f"group-{rule.id}",
            "uids": None if rule.users is None else dict.fromkeys(sorted(rule.users), True),
            "accounts": _names(rule.accounts),
            "partitions": _names(rule.partitions),
        }
        for rule in rules
    ]
    table: list[Plain] = [
        {
            "id": rule.id,
            "group": number,
            "per": rule.per,
            "why": f"Reason of {rule.id}.",
            "mode": rule.mode,
            "on_error": "allow",
            "kind": rule.kind,
            "when": None if rule.when is None else _when(rule.when),
            "limits": _limits(rule.limits),
            "exceptions": {
                uid: {"until_s": FAR, "limits": _limits(limits)} for uid, limits in rule.exceptions.items()
            },
        }
        for number, rule in enumerate(rules, 1)
    ]
    return {
        "groups": groups,
        "groups_id": "test",
        "rules": table,
        "bundles": [
            {
                "name": bundle.name,
                "mgpu": bundle.mgpu,
                "cpus": bundle.cpus,
                "mib": bundle.mib,
                "partitions": _names(bundle.partitions),
                "gpu_types": _names(bundle.gpu_types),
                "mode": bundle.mode,
                "why": f"Reason of {bundle.name}.",
            }
            for bundle in bundles
        ],
        "contact": "gpu-help",
        "slurm_user_uid": 64030,
        "shards_per_gpu": 4,
        "shards_span_gpus": False,
        "partition_cpus": {name: part.cpus for name, part in MODEL_PARTITIONS.items()},
        "partition_mib": {name: part.mib for name, part in MODEL_PARTITIONS.items()},
        "partition_gpu_types": {name: _names(part.gpu_types) for name, part in MODEL_PARTITIONS.items()},
        "default_mib": {"per_gpu": DEFAULT_MIB_PER_GPU, "per_cpu": DEFAULT_MIB_PER_CPU},
        "decisions_log": log,
        "decisions_log_bytes": 2**20,
        **more,
    }


def _names(names: frozenset[str] | None) -> dict[str, Plain] | None:
    return None if names is None else dict.fromkeys(sorted(names), True)


def _when(when: When) -> dict[str, Plain]:
    days: list[Plain] = [day in when.days for day in range(7)]
    return {"days": days, "from_min": when.from_min, "to_min": when.to_min}


def _limits(limits: Mapping[str, Limit]) -> dict[str, Plain]:
    def plain(value: Limit) -> Plain:
        if isinstance(value, frozenset):
            return _names(value)
        if isinstance(value, tuple):
            return [{"mgpu": mgpu, "s": seconds} for mgpu, seconds in value]
        return value

    return {key: plain(value) for key, value in limits.items()}
