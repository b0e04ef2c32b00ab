"""Requests of the model as Slurm would put them: job descriptions and rows of slurm.jobs."""

from __future__ import annotations

from typing import Any

from slurm_gpu.policy.luadata import Plain
from slurm_gpu.policy.script import EMPTY_DESCRIPTION, ScalarFields

from .model import Request, RuleModel

PARTITIONS: list[ScalarFields] = [
    {"name": "gpu", "flag_default": 1, "default_time": 60, "max_time": 4294967295},
    {"name": "long", "flag_default": 0, "default_time": 4294967294, "max_time": 60},
]
FAR = 2**40


def tres(request: Request, mark: str) -> dict[str, str]:
    """The request's TRES fields; `mark` is ":" up to Slurm 23.02, "/" from 23.11 on."""
    per_node = []
    if request.per_node is not None:
        per_node.append(f"gres{mark}gpu:a100:{request.per_node}")
    if request.shards_per_node is not None:
        per_node.append(f"gres{mark}shard:{request.shards_per_node}")
    fields = {"tres_per_node": ",".join(per_node)} if per_node else {}
    if request.per_job is not None:
        fields["tres_per_job"] = f"gres{mark}gpu:{request.per_job}"
    if request.per_task is not None:
        fields["tres_per_task"] = f"gres{mark}gpu:{request.per_task}"
    return fields


def description(request: Request, mark: str = "/") -> dict[str, Any]:
    """What sbatch would send."""
    desc: dict[str, Any] = dict(EMPTY_DESCRIPTION) | tres(request, mark)
    desc |= {"user_id": request.uid, "account": request.account, "partition": request.partition}
    desc["script"] = "#!/bin/sh"
    if request.nodes is not None:
        desc["min_nodes"] = request.nodes
    if request.most_nodes is not None:
        desc["max_nodes"] = request.most_nodes
    if request.n_tasks is not None:
        desc["num_tasks"] = request.n_tasks
    if request.minutes is not None:
        desc["time_limit"] = request.minutes
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
        "time_limit": 60 if request.minutes is None else request.minutes,
        "tres_fmt_req_str": f"cpu=4,mem=4G,node=1,billing=4{_total(request)}",
        **tres(request, ":"),
    }
    if running:
        row["tres_fmt_alloc_str"] = row["tres_fmt_req_str"]
    if request.array_tasks is not None:
        row["array_task_cnt"] = request.array_tasks
    return row | more


def _total(request: Request) -> str:
    shards = (request.shards_per_node or 0) * max(request.nodes or 1, request.most_nodes or 1)
    gpus = (request.mgpu - shards * 250) // 1000
    return (f",gres/gpu={gpus},gres/gpu:a100={gpus}" if gpus else "") + (
        f",gres/shard={shards}" if shards else ""
    )


def compiled(rules: list[RuleModel], log: str, **more: Plain) -> dict[str, Plain]:
    """The table that compile_policy would make of these rules, one group per rule."""
    groups: list[Plain] = [
        {
            "name": f"group-{rule.id}",
            "uids": None if rule.users is None else dict.fromkeys(sorted(rule.users), True),
            "accounts": None if rule.accounts is None else dict.fromkeys(sorted(rule.accounts), True),
            "partitions": None if rule.partitions is None else dict.fromkeys(sorted(rule.partitions), True),
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
            "limits": dict(rule.limits),
            "exceptions": {
                uid: {"until_s": FAR, "limits": dict(limits)} for uid, limits in rule.exceptions.items()
            },
        }
        for number, rule in enumerate(rules, 1)
    ]
    return {
        "groups": groups,
        "rules": table,
        "contact": "gpu-help",
        "slurm_user_uid": 64030,
        "shards_per_gpu": 4,
        "shards_span_gpus": False,
        "decisions_log": log,
        "decisions_log_bytes": 2**20,
        **more,
    }
