"""Predict the decision of the installed job_submit.lua on a job, by running the same file in Lua."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.policy.lua.script import INFINITE, NO_VAL, PolicyScript, ScalarFields, ScriptDecision
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.submission import Partition, UserDefaults

_STATES = {"PENDING": 0, "RUNNING": 1, "SUSPENDED": 2}
_ENDED = 3


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict on a job that was not submitted."""

    verdict: ScriptDecision
    notes: tuple[str, ...]


def explain(
    script: str,
    request: SbatchRequest,
    user: tuple[int, str],
    defaults: UserDefaults,
    jobs: Iterable[QueuedJob],
    partitions: Sequence[Partition],
    gpu_types: Collection[str] = (),
) -> Explanation:
    """Run the script for the request of `user` (uid, name) against the current queue.

    `gpu_types` are the GPU types of the cluster in lower case; if empty, types are not checked.
    """
    policy = PolicyScript(script, considers=True)
    policy.set_jobs(job_record(job) for job in jobs)
    desc = request.description(*user, gpu_types) | {
        "default_account": defaults.account,
        "default_qos": defaults.qos,
    }
    verdict = policy.submit(desc, [partition_record(partition) for partition in partitions])
    broken = [text for level, text in verdict.log if level == "error"]
    return Explanation(verdict, tuple(broken))


def job_record(job: QueuedJob) -> Mapping[str, Any]:
    """Return a job in the form in which the script reads it from slurm.jobs."""
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
        # Slurm's total is for the minimum number of nodes. With a range, the script counts per node instead.
        "tres_per_node": None if job.most_nodes is None else job.tres_per_node or None,
        "tres_fmt_req_str": _tres(job.tres_requested),
        "tres_fmt_alloc_str": _tres(job.tres_allocated) if job.state != "PENDING" else None,
        "admin_comment": job.admin_comment,
        "submit_time": job.submit_s,
    }


def partition_record(partition: Partition) -> ScalarFields:
    """Return a partition in the form in which the script reads it from its part_list."""

    def minutes(seconds: int | None, otherwise: int) -> int:
        return otherwise if seconds is None else seconds // 60

    return {
        "name": partition.name,
        "flag_default": int(partition.is_default),
        "default_time": minutes(partition.default_time_s, NO_VAL),
        "max_share": 0 if partition.whole_nodes else 1,
        "max_time": minutes(partition.max_time_s, INFINITE),
    }


def _tres(amounts: Mapping[str, float]) -> str | None:
    """Return TRES in the format in which Slurm prints them, with memory in MiB."""
    shown = (
        f"{name}={amount:.0f}{'M' if name == 'mem' else ''}"
        for name, amount in amounts.items()
        if "/" in name or name in ("cpu", "mem")
    )
    return ",".join(shown) or None
