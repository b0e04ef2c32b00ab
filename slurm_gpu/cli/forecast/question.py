"""Build the query to /v1/forecast for a job that is not submitted yet, or find out why it cannot start."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.cli.policy.judgement import judge_by_policy, used_up
from slurm_gpu.cli.policy.slurm_refusal import read_cluster
from slurm_gpu.cli.policy.usage import read_active
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.cli.users import uid_and_name
from slurm_gpu.errors import OutsideError, UsageError
from slurm_gpu.policy.explain.gpu_options import requested_gpus
from slurm_gpu.policy.explain.requested_amounts import requested_amounts, set_number
from slurm_gpu.policy.explain.sbatch import parse_command
from slurm_gpu.policy.explain.slurm_refusals import refusals_of_slurm, waits_of_slurm
from slurm_gpu.policy.lua.script import ScriptDecision
from slurm_gpu.slurm.gpu_count import known_gpu_types
from slurm_gpu.slurm.submission import read_partitions, read_user_defaults

_RUNNING_AMOUNTS = {"cpus": "cores", "memory": "memory_mib", "nodes": "nodes"}
REFUSED = "the policy would refuse this job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuestion:
    """The parameters of a query to /v1/forecast, or the reason why the job would never start."""

    parameters: Mapping[str, str | float | None]
    never: str
    """"" if the job can start."""
    policy: ScriptDecision | None
    """None if this host does not have the active policy."""
    used_up: Sequence[str]
    """Limits of the policy that keep the job waiting, even if GPUs are free."""
    notes: Sequence[str]
    """Reasons why the answer may be incomplete or wrong."""

    def policy_json(self) -> dict[str, Any] | None:
        """Return the policy's verdict with the keys in docs/commands.md."""
        if self.policy is None:
            return None
        messages = list(self.policy.messages)
        return {"accepted": self.policy.accepted, "messages": messages, "used_up": list(self.used_up)}


def asked(site: CommandSite, words: Sequence[str]) -> ForecastQuestion:
    """Parse a command, and fill in the defaults of Slurm and the policy.

    Raise UsageError if the command is invalid, and OutsideError if Slurm does not answer.
    """
    stdin = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin
    request = parse_command(list(words), os.environ, stdin)
    submitter = uid_and_name(None)
    partitions, settings = read_partitions(site.run), site.slurm.settings()
    nodes = site.slurm.nodes()
    description = request.description(*submitter, known_gpu_types(nodes))
    defaults = read_user_defaults(submitter[1], request.options.get("account"), site.run)
    default = next((item.name for item in partitions if item.is_default), "")
    partition = str(description.get("partition") or default).partition(",")[0]
    limits = {item.name: item.default_time_s or item.max_time_s for item in partitions}
    if partition not in limits:
        raise UsageError(
            f"Slurm has no partition {partition!r}; its partitions are {', '.join(sorted(limits))}"
        )
    try:
        answer = judge_by_policy(site, read_active(site), request, submitter, defaults, partitions, nodes)
        policy_verdict, notes, request = answer.verdict, list(answer.notes), answer.request
        description = request.description(*submitter, known_gpu_types(nodes))
        partition = str(description.get("partition") or default).partition(",")[0]
    except OutsideError as error:
        policy_verdict, notes = None, [f"the policy was not checked: {error}"]
    qos = None if policy_verdict is None else policy_verdict.desc.get("qos")
    cluster = read_cluster(site, settings, nodes, partitions, request, submitter[1], defaults, qos)
    never = ""
    if policy_verdict is not None and not policy_verdict.accepted:
        never = REFUSED
    elif refusals := refusals_of_slurm(request, description, cluster):
        never = f"Slurm would refuse this job: {'; '.join(refusals)}"
    elif waits := waits_of_slurm(request, description, cluster):
        never = f"Slurm would currently let this job wait indefinitely: {'; '.join(waits)}"
    job = description if policy_verdict is None else policy_verdict.desc
    account = str(job.get("account") or defaults.account or "")
    amounts = requested_amounts(job)
    minutes = set_number(job, "time_limit")
    if (begin_s := set_number(job, "begin_time") or 0) > site.wall():
        begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(begin_s))
        notes.append(f"the forecast assumes that the job may start now, but --begin is {begin}")
    full: Sequence[str] = ()
    if policy_verdict is not None and not never:
        requested = {f"{name}_running": amounts[amount] for name, amount in _RUNNING_AMOUNTS.items()}
        requested |= {"jobs_running": 1, "gpus_running": requested_gpus(job) * 1000}
        full = tuple(
            used_up(site, submitter, account, str(qos or defaults.qos or "normal"), partition, requested)
        )
    return ForecastQuestion(
        parameters={
            "partition": partition,
            "account": account,
            **amounts,
            "time_limit_s": limits.get(partition) if minutes is None else minutes * 60,
        },
        never=never,
        policy=policy_verdict,
        used_up=full,
        notes=notes,
    )
