"""Check a job that is not submitted yet against the active policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_gpu.cli.policy.limit_amount import limit_amount
from slurm_gpu.cli.policy.usage import ActivePolicy, PolicyAbsentError, read_active, read_use
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.reporting.quota import QuotaLine, quota_of
from slurm_gpu.policy.explain.explain import Explanation, explain
from slurm_gpu.policy.explain.sbatch import SbatchRequest
from slurm_gpu.policy.language.limits import Scope
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.gpu_count import known_gpu_types
from slurm_gpu.slurm.submission import Partition, UserAssociations, UserDefaults


def judge_by_policy(
    site: CommandSite,
    active: ActivePolicy,
    request: SbatchRequest,
    submitter: tuple[int, str],
    defaults: UserDefaults,
    partitions: Sequence[Partition],
    nodes: Sequence[SlurmNode],
) -> Explanation:
    """Return the decision of job_submit.lua about a job, with the caveats as the last notes."""
    found = explain(
        active.bundle,
        request,
        submitter,
        defaults,
        site.slurm.jobs(),
        partitions,
        known_gpu_types(nodes),
        active.settings,
    )
    assumed = None if defaults.from_slurmdbd else _assumed(submitter[1], defaults)
    return replace(found, notes=(*found.notes, *active.caveats(submitter[0], assumed)))


def _assumed(user: str, defaults: UserDefaults) -> str:
    account = "no default account" if defaults.account is None else f"account {defaults.account}"
    return f"the job was checked for {user} with {account}, and with QOS normal unless --qos names a QOS"


def used_up(
    site: CommandSite,
    submitter: tuple[int, str],
    account: str,
    qos: str,
    partition: str,
    amounts: Mapping[str, float | None],
) -> Iterator[str]:
    """Yield a sentence for each limit on running jobs that would keep an accepted job waiting.

    Yield nothing if the active policy has no rules, as after a rollback of the first apply, or if this host
    has no active policy.

    `amounts` maps the key of each limit to the amount that the job requests, in the unit of the limit (mgpu,
    MiB or a count); None means that the amount is unknown.
    """
    try:
        active = read_active(site)
    except PolicyAbsentError:
        return
    if not active.policy.rules:
        return
    snapshot, by_rule = read_use(site, active)
    places = UserAssociations(accounts=frozenset({account.lower()}), qos=frozenset({qos.lower()}))
    for line in quota_of(active.policy, snapshot, submitter[1], submitter[0], places, site.wall(), by_rule):
        wanted = amounts.get(line.kind.key)
        if (
            line.kind.scope is Scope.RUNNING
            and line.of is None  # the GPU type is unknown until the job starts
            and line.rule.mode == "enforce"
            and line.left is not None
            and wanted
            and wanted > line.left
            and line.rule.group.matches(submitter[0], account, qos, partition)
        ):
            yield _limit_text(line, submitter[1])


def _limit_text(line: QuotaLine, user: str) -> str:
    whose = {"user": f"{user}'s jobs", "account": f"the jobs of account {line.account}"}
    jobs = whose.get(line.rule.per, f"the jobs of group {line.rule.group.name}")
    used, limit = (limit_amount(line.kind, value) for value in (line.used, line.limit))
    return (
        f"rule {line.rule.id}: {jobs} use {used} of {limit} {line.kind.what}, "
        "so this job waits until some of them end, even if GPUs are free"
    )
