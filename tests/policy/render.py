"""Render jobs of the model as Slurm does: job descriptions, updates, rows of slurm.jobs, and snapshots."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from slurm_gpu.policy.lua.script import ScalarFields

from .findings import HOUR_LIMITS, Hours
from .matching import binds
from .model import DEFAULT_MIB_PER_CPU, DEFAULT_MIB_PER_GPU, Request, RuleModel
from .model import PARTITIONS as MODEL_PARTITIONS
from .users import ACCOUNTS, NAMES

PARTITIONS: list[ScalarFields] = [
    {
        "name": "gpu",
        "flag_default": 1,
        "default_time": 60,
        "max_time": 4294967295,
        "billing_weights_str": "CPU=1.0,Mem=0.25G,node=0.5,GRES/gpu=2,GRES/gpu:A100=1.5,"
        "GRES/shard=0.75,GRES/mps=0.015625",
    },
    {"name": "long", "flag_default": 0, "default_time": 4294967294, "max_time": 60},
]


def tres(request: Request, mark: str) -> dict[str, str]:
    """Return the TRES fields of a request; `mark` is ":" up to Slurm 23.02, "/" from 23.11 on."""
    kind = f"{request.gpu_type}:" if request.gpu_type else ""
    per_node = []
    if request.per_node is not None:
        per_node.append(f"gres{mark}gpu:{kind or 'a100:'}{request.per_node}")
    if request.shards_per_node is not None:
        per_node.append(f"gres{mark}shard:{request.shards_per_node}")
    if request.mps_per_node is not None:
        per_node.append(f"gres{mark}mps:{request.mps_per_node}")
    fields = {"tres_per_node": ",".join(per_node)} if per_node else {}
    for form in ("job", "task", "socket"):
        count = getattr(request, f"per_{form}")
        if count is not None:
            fields[f"tres_per_{form}"] = f"gres{mark}gpu:{kind}{count}"
    if request.cpus_per_gpu is not None:
        fields["cpus_per_tres"] = f"gres{mark}gpu:{request.cpus_per_gpu}"
    if request.mib_per_gpu is not None:
        fields["mem_per_tres"] = f"gres{mark}gpu:{request.mib_per_gpu}"
    return fields


def description(request: Request, mark: str = "/", *, terse: bool = False) -> dict[str, Any]:
    """Return the description that sbatch or, for an interactive job, salloc sends.

    A `terse` user leaves out options that equal Slurm's defaults.
    """
    desc: dict[str, Any] = tres(request, mark)
    desc |= {"user_id": request.uid, "account": request.account, "partition": request.partition}
    desc |= {"qos": request.qos, "user_name": NAMES.get(request.uid), "name": request.name}
    if terse:
        desc |= {"account": None, "default_account": request.account}
        desc |= {"qos": None, "default_qos": request.qos}
        if request.partition == "gpu":
            desc["partition"] = None
    desc |= {"script": None, "argc": 0} if request.interactive else {"script": "#!/bin/sh"}
    desc["min_cpus"] = request.groups * (1 if request.cpus_per_task is None else request.cpus_per_task)
    counts = "&".join(f"zone{number}*{count}" for number, count in enumerate(request.feature_nodes, 1))
    given = {
        "min_nodes": request.nodes,
        "max_nodes": request.most_nodes,
        "num_tasks": request.n_tasks,
        "ntasks_per_node": request.tasks_per_node,
        "ntasks_per_tres": request.tasks_per_gpu,
        "sockets_per_node": request.sockets,
        "time_limit": request.minutes,
        "cpus_per_task": request.cpus_per_task,
        "pn_min_cpus": request.cpus_per_task,
        "min_mem_per_node": request.mib_per_node,
        "min_mem_per_cpu": request.mib_per_cpu,
        "shared": 0 if request.exclusive else None,
        "begin_time": request.begin_s,
        "req_nodes": None if request.listed_nodes is None else f"m,n[1-{request.listed_nodes - 1}]",
        "features": f"[{counts}]" if counts else request.constraint,
    }
    desc |= {field: value for field, value in given.items() if value is not None}
    if request.array_tasks is not None:
        desc["array_inx"] = f"1-{request.array_tasks}%3" if request.array_tasks > 1 else "7"
    return desc


_UPDATED: Mapping[str, str] = {
    "minutes": "time_limit",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "nodes": "min_nodes",
    "most_nodes": "max_nodes",
    "min_cpus": "min_cpus",
    "mib_per_node": "min_mem_per_node",
    "begin_s": "begin_time",
}


def changes(before: Request, after: Request, mark: str = "/") -> dict[str, Any]:
    """Return the description that `scontrol update` sends to change one request into the other."""
    desc: dict[str, Any] = {}
    for name, field in _UPDATED.items():
        if getattr(before, name) != getattr(after, name):
            desc[field] = getattr(after, name)
    old = tres(before, mark)
    return desc | {field: text for field, text in tres(after, mark).items() if old.get(field) != text}


def record(job_id: int, request: Request, *, running: bool = False, **more: Any) -> dict[str, Any]:
    """Return the row of slurm.jobs; an array that is not yet split is one row."""
    row: dict[str, Any] = {
        "job_id": job_id,
        "name": request.name,
        "job_state": 1 if running else 0,
        "user_id": request.uid,
        "account": request.account,
        "qos": request.qos,
        "partition": request.partition,
        "min_nodes": request.least_nodes,
        "max_nodes": 0 if request.most_nodes is None else request.most_nodes,
        "min_cpus": max(request.tasks * (request.cpus_per_task or 1), request.min_cpus or 0),
        "pn_min_cpus": request.cpus_per_task or 1,
        "time_limit": 60 if request.minutes is None else request.minutes or 4294967295,
        "tres_fmt_req_str": _total(request, request.named_type, least=True),
        "mem_per_tres": f"gpu:{DEFAULT_MIB_PER_GPU}" if request.mgpu and not request.only_parts else None,
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
    """Return the memory fields; Slurm writes its default per CPU if the job names no memory."""
    if request.mib_per_node is not None:
        return {"min_mem_per_node": request.mib_per_node}
    if request.mib_per_cpu is not None:
        return {"min_mem_per_cpu": request.mib_per_cpu}
    return {"min_mem_per_cpu": DEFAULT_MIB_PER_CPU}


def _total(request: Request, gpu_type: str | None, *, least: bool = False) -> str:
    """Return the TRES string of a request.

    With `least`, GPUs per socket and memory count for the fewest nodes of a range, as in Slurm.
    """
    nodes = request.counted_nodes
    shards, mps = (request.shards_per_node or 0) * nodes, (request.mps_per_node or 0) * nodes
    gpus = (request.asked_mgpu - shards * 250 - mps * 10) // 1000
    if least and request.per_socket is not None:
        gpus = gpus * request.least_nodes // nodes
    mib = math.ceil(request.on_fewest_nodes.mib if least else request.mib)
    text = f"cpu={request.cpus},mem={mib}M,node={nodes},billing=4"
    if gpus:
        text += f",gres/gpu={gpus}" + (f",gres/gpu:{gpu_type}={gpus}" if gpu_type else "")
    return text + (f",gres/shard={shards}" if shards else "") + (f",gres/mps={mps}" if mps else "")


# Limits whose sums are in snapshots, and sums of previous periods.
SUMS = (
    *(f"gpu_hours:{period}" for period in ("day", "week", "month", "30d")),
    *(f"cpu_hours:{period}" for period in ("day", "30d")),
    *(f"gpu_hours:{period}_before" for period in ("day", "week", "month")),
    *(f"gpu_hours:{part}" for part in ("week:a100", "week_before:a100", "30d:v100")),
    "cpu_hours:day_before",
    "billing_hours:week",
    "billing_hours:week_before",
)


COMMITTED = (
    *(f"{base}:committed" for base in HOUR_LIMITS),
    *(f"gpu_hours:committed:{gpu_type}" for gpu_type in ("a100", "v100")),
)


def _sum(limit: str) -> str:
    """Return the key of the sum that a limit counts, such as gpu_h_week."""
    return limit.replace("_hours:", "_h_")


def snapshot(
    generation: int,
    as_of: int,
    rules: Iterable[RuleModel],
    jobs: Iterable[tuple[Request, bool]],
    tokens: Iterable[str] = (),
    hours: Hours | None = None,
    zone: str = "UTC",
) -> str:
    """Return the snapshot that slurm-gpuctld writes for these jobs, given as (job, running).

    A token may be followed by the submit time of its job, in seconds.
    """
    moment = dt.datetime.fromtimestamp(as_of, ZoneInfo(zone))
    listed = list(jobs)
    lines = [f"slurm-gpu-snapshot 1 {generation} {as_of}", "groups test"]
    if hours is not None:
        starts = (_sum(limit).removeprefix("gpu_h_") for limit in SUMS)
        lines.append(f"hours {' '.join(f'{start}=1' for start in starts)}")
    for rule in rules:
        for owner in (None, *NAMES, *(ACCOUNTS if rule.per == "account" else ())):
            use: Counter[str] = Counter()
            for job, running in listed:
                if binds(rule, job, moment) and owner in (None, job.uid, job.account):
                    use.update(_use(job, "run" if running else "pend"))
                    if hours is not None and rule.hard:
                        for limit in COMMITTED:
                            use[_sum(limit)] += job.committed_hours(limit)  # type: ignore[assignment]
            for limit in SUMS if hours is not None else ():
                use[_sum(limit)] = (hours or {}).get((rule.id, owner, limit), 0)  # type: ignore[assignment]
            fields = " ".join(f"{key}={value}" for key, value in use.items() if value)
            for name in _group_names(rule):
                key = f"user:{NAMES[owner]}@{name}" if isinstance(owner, int) else f"account:{owner}@{name}"
                lines.append(f"use {f'group:{name}' if owner is None else key} {fields}")
    lines += [f"user {name} {uid}" for uid, name in NAMES.items()]
    lines += [f"seen {token}" for token in tokens]
    return "\n".join([*lines, f"end {generation}", ""])


def _group_names(rule: RuleModel) -> list[str]:
    """Return the names of the groups of a rule; a rule with tiers may have one for each period."""
    if rule.tier is None and not rule.over_limit:
        return [f"group-{rule.id}"]
    starts = {rule.from_day, *(tier.from_day for tier in rule.tiers)}
    starts |= {tier.until + dt.timedelta(days=1) for tier in rule.tiers if tier.until is not None}
    names = (f"rule {rule.id}", *(f"rule {rule.id} from {day}" for day in starts if day is not None))
    return [quote(name, safe="") for name in names]


def _use(job: Request, phase: str) -> dict[str, int]:
    use = {
        f"jobs_{phase}": job.jobs,
        f"mgpu_{phase}": job.mgpu * job.jobs,
        f"cpus_{phase}": job.cpus * job.jobs,
        f"mib_{phase}": math.ceil(job.mib) * job.jobs,
    }
    types = {kind for name in job.partitions for kind in MODEL_PARTITIONS[name].gpu_types}
    kind = job.given_type or job.named_type or (min(types) if len(types) == 1 else None)
    return use | ({f"mgpu_{phase}:{kind}": job.mgpu * job.jobs} if kind else {})
