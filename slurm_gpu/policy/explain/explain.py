"""Predict the decision of the installed job_submit.lua on a job, by running the same file in Lua."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScalarFields, ScriptDecision, linked_lua
from slurm_gpu.slurm.client import QueuedJob, SlurmSettings
from slurm_gpu.slurm.job_desc import INFINITE, NEWEST, NO_VAL, read_version, tres_notation
from slurm_gpu.slurm.submission import Partition, UserDefaults

_STATES = {"PENDING": 0, "RUNNING": 1, "SUSPENDED": 2}
_ENDED = 3
# Field of a partition → its name in the output of scontrol.
_PARTITION_TEXTS = {
    "allow_accounts": "AllowAccounts",
    "allow_alloc_nodes": "AllocNodes",
    "allow_groups": "AllowGroups",
    "allow_qos": "AllowQos",
    "alternate": "Alternate",
    "billing_weights_str": "TRESBillingWeights",
    "deny_accounts": "DenyAccounts",
    "deny_qos": "DenyQos",
    "nodes": "Nodes",
    "qos": "QoS",
}
_PARTITION_NUMBERS = {
    "max_cpus_per_node": "MaxCPUsPerNode",
    "max_cpus_per_socket": "MaxCPUsPerSocket",
    "max_nodes": "MaxNodes",
    "min_nodes": "MinNodes",
    "priority_job_factor": "PriorityJobFactor",
    "priority_tier": "PriorityTier",
    "total_cpus": "TotalCPUs",
    "total_nodes": "TotalNodes",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict on a job that was not submitted."""

    verdict: ScriptDecision
    notes: tuple[str, ...]
    # The request with the options that rules set.
    request: SbatchRequest


def explain(
    script: str,
    request: SbatchRequest,
    user: tuple[int, str],
    defaults: UserDefaults,
    jobs: Iterable[QueuedJob],
    partitions: Sequence[Partition],
    gpu_types: Collection[str] = (),
    settings: SlurmSettings | None = None,
) -> Explanation:
    """Run the script for the request of `user` (uid, name) against the current queue.

    With `settings`, the script receives the fields that this version of slurmctld passes. The script runs in
    the Lua version of slurmctld's plugin if this host has the plugin, otherwise in the newest version in
    which the script does not fail. `gpu_types` are the GPU types of the cluster in lower case; if empty,
    types are not checked.
    """
    version = NEWEST if settings is None else read_version(settings.version)
    desc = request.description(*user, gpu_types) | {
        "default_account": defaults.account,
        "default_qos": defaults.qos,
    }
    if request.script is None and version < (23, 2):
        desc["argc"] = 1 if request.command == "srun" else 0
        desc["argv"] = dict(enumerate(request.words[: desc["argc"]])) or None
    records = [job_record(job) for job in jobs]
    linked = linked_lua(settings)
    answers: list[Explanation] = []
    for lua in (linked,) if linked else reversed(LUA_VERSIONS):
        policy = PolicyScript(script, lua=lua, considers=True, settings=settings)
        policy.set_jobs(records)
        verdict = policy.submit(
            tres_notation(desc, version), [partition_record(partition) for partition in partitions]
        )
        broken = [text for level, text in verdict.log if level == "error"]
        made = request.with_options(change.option for change in verdict.changes if change.is_made)
        answers.append(Explanation(verdict, (*policy.not_here, *broken), made))
        if not any(text.startswith("slurm-gpu: ") for text in broken):
            break
    return answers[-1]


def job_record(job: QueuedJob) -> Mapping[str, Any]:
    """Return a job as the script reads it from slurm.jobs."""
    return {
        "job_id": job.job_id,
        "user_id": job.uid,
        "account": job.account,
        "qos": job.qos,
        "partition": job.partition,
        "job_state": _STATES.get(job.state, _ENDED),
        "array_task_cnt": job.n_tasks if job.n_tasks > 1 else None,
        "min_nodes": job.n_nodes,
        "max_nodes": job.most_nodes,
        # Slurm's total is for the minimum number of nodes. If a job requests a range of nodes, the script
        # counts per node instead.
        "tres_per_node": None if job.most_nodes is None else job.tres_per_node or None,
        "tres_fmt_req_str": _tres(job.tres_requested),
        "tres_fmt_alloc_str": _tres(job.tres_allocated) if job.state != "PENDING" else None,
        "admin_comment": job.admin_comment,
        "submit_time": job.submit_s,
        "name": job.name,
        "user_name": job.user,
        "nodes": ",".join(job.nodes) or None,
        "total_nodes": job.n_nodes,
        "time_limit": INFINITE if job.time_limit_s is None else job.time_limit_s // 60,
        "start_time": job.start_s,
        "end_time": job.end_s,
        "restart_cnt": job.restarts,
        "features": job.features or None,
        "array_job_id": job.array_job_id,
        "het_job_id": job.het_job_id,
        "het_job_offset": job.het_offset,
    }


def partition_record(partition: Partition) -> ScalarFields:
    """Return a partition as the script reads it from its part_list."""

    def minutes(seconds: int | None, otherwise: int) -> int:
        return otherwise if seconds is None else seconds // 60

    raw = partition.raw

    def text(name: str) -> str | None:
        value = raw.get(name, "")
        return None if value.upper() in ("", "ALL", "NONE", "N/A", "(NULL)") else value

    def number(name: str) -> int | None:
        value = raw.get(name, "")
        return int(value) if value.isdigit() else INFINITE if value == "UNLIMITED" else None

    return {
        "name": partition.name,
        "flag_default": int(partition.is_default),
        "flags": int(partition.is_default),
        "default_time": minutes(partition.default_time_s, NO_VAL),
        "max_share": 0 if partition.whole_nodes else _share(raw.get("OverSubscribe", "")),
        "max_time": minutes(partition.max_time_s, INFINITE),
        "state_up": {"DOWN": 1, "DRAIN": 2, "INACTIVE": 0}.get(partition.state),
        "def_mem_per_cpu": partition.default_memory_per_cpu_mib,
        "def_mem_per_node": partition.default_memory_per_node_mib,
        "max_mem_per_cpu": number("MaxMemPerCPU"),
        "max_mem_per_node": partition.max_memory_per_node_mib,
        **{field: text(name) for field, name in _PARTITION_TEXTS.items()},
        **{field: number(name) for field, name in _PARTITION_NUMBERS.items()},
    }


def _share(text: str) -> int:
    """Return the value of max_share for OverSubscribe=NO, YES:4 or FORCE:4."""
    name, _, jobs = text.partition(":")
    return int(jobs or 4) | (0x8000 if name == "FORCE" else 0) if name in ("YES", "FORCE") else 1


def _tres(amounts: Mapping[str, float]) -> str | None:
    """Return TRES as Slurm prints them, with memory in MiB."""
    shown = (
        f"{name}={amount:.0f}{'M' if name == 'mem' else ''}"
        for name, amount in amounts.items()
        if "/" in name or name in ("cpu", "mem")
    )
    return ",".join(shown) or None
