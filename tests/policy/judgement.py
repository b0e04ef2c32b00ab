"""Judge jobs by a policy, in plain Python; the Lua must reach the same decisions.

This model is written from docs/contracts.md and docs/policy.md, not from the Lua, and uses no code of
slurm_gpu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from .findings import HOUR_LIMITS, Finding, Judgement, Known
from .matching import binds, in_force
from .model import PolicyModel, Request, RuleModel
from .modelled_bundles import admitted, of_bundles
from .modelled_changes import changed_by_rules
from .modelled_limits import (
    NO_AMOUNTS,
    added_amount,
    limits_of,
    of_option,
    of_rule,
    of_shards,
    of_steps,
    worsens,
)


def judge(
    policy: PolicyModel,
    job: Request,
    known: Known,
    *,
    names_qos: bool = True,
    earlier: Mapping[tuple[str, str], float] = NO_AMOUNTS,
) -> Judgement:
    """Judge a submission; `earlier` contains the amounts of the earlier components of its het job."""
    moment = policy.local(known.now_s)
    asked = changed_by_rules(policy, job, known.now_s, known, earlier, terse=not names_qos)
    job = admitted(policy, asked.job, names_qos=names_qos or "qos" in asked.given)
    rules = [rule for rule in policy.rules if rule.changes is None and rule.id not in asked.listed]
    return Judgement(
        (
            *asked.findings,
            *of_bundles(policy.bundles, job),
            *(
                of_option(rule, option, asked.names(option, need, terse=not names_qos))
                for rule in rules
                if binds(rule, job, moment) and in_force(policy, rule, job, known.now_s)
                for option, need in rule.options.items()
            ),
            *(
                _refusing(finding)
                for rule in rules
                if binds(rule, job, moment) and in_force(policy, rule, job, known.now_s)
                for finding in of_rule(rule, job, known, moment, earlier)
            ),
            *of_shards(job),
        )
    )


def _refusing(finding: Finding) -> Finding:
    """Return a finding of a rule that could not change the job: in mode fit, the rule refuses it."""
    return replace(finding, mode="enforce") if finding.mode == "fit" else finding


def _in_update(before: Request, after: Request) -> Request:
    """Return an updated job as the script reads it: without --begin, which its record lacks."""
    return after if after.begin_s != before.begin_s else replace(after, begin_s=None)


def capped(policy: PolicyModel, job: Request, now_s: int, *, before: Request | None = None) -> Request:
    """Return an admitted job with the script's maximum number of nodes, if the job leaves it to Slurm.

    `before` is the job before an update.
    """
    if job.most_nodes:
        return job
    run = job if before is None else _in_update(before, job)
    moment, possible = policy.local(now_s), max(job.groups, job.n_tasks or 1)
    wide = replace(job, most_nodes=possible) if possible > job.counted_nodes else job
    only_per_job = job.per_job and not (job.per_node or job.per_task or job.per_socket or job.exclusive)
    counted = max(job.counted_nodes, job.per_job or 0) if only_per_job else job.counted_nodes
    most = math.inf
    for rule in policy.rules:
        if rule.mode not in ("enforce", "fit") or not binds(rule, job, moment):
            continue
        if not in_force(policy, rule, run, now_s):
            if rule.jobs is not None and in_force(policy, rule, run, now_s, at_any_size=True):
                at_least = rule.jobs.at_least
                if job.counted_nodes < at_least.get("nodes", 0):
                    most = min(most, max(at_least["nodes"] - 1, job.counted_nodes))
                if job.mgpu < at_least.get("gpus", 0) <= wide.mgpu and None not in job.needed_nodes:
                    most = min(most, counted)
            continue
        for key, limit in limits_of(rule, job, moment).items():
            base, _, part = key.partition(":")
            if base == "nodes":
                assert not isinstance(limit, frozenset)
                number = of_steps(limit, job) if isinstance(limit, tuple) else limit
                most = min(most, max(number, job.counted_nodes))
            elif base in ("gpus", "gpus_total", "gpus_pending", "gpu_hours", "billing_hours"):
                gpu_type = part.partition(":")[2] if base in HOUR_LIMITS else part
                measure = f"gpus:{gpu_type}" if gpu_type else "gpus"
                allowed = limit if base == "gpus" else job.measure(measure)
                if wide.measure(measure) > allowed and None not in job.needed_nodes:  # type: ignore[operator]
                    most = min(most, counted)
    every = max(possible, job.mgpu / 1000) if job.per_job else possible
    return replace(job, most_nodes=int(most)) if most < every else job


def judge_change(policy: PolicyModel, before: Request, after: Request, known: Known) -> Judgement:
    """Judge an update by the job's owner; `known` contains the other jobs.

    Check only limits whose amount the update increases, minimums whose amount it decreases, and rules
    that apply only after the update. A record has no --begin: the run begins now, or at the StartTime
    of the update.
    """
    moment = policy.local(known.now_s)
    starts = after.begin_s != before.begin_s
    earlier, later = replace(before, begin_s=None), _in_update(before, after)

    def applied(rule: RuleModel) -> bool:
        moves = rule.per == "account" and after.account != before.account
        if moves or not binds(rule, before, moment):
            return False
        if rule.jobs is not None and not rule.jobs.holds(before):
            return False
        if rule.when is None or not rule.when.run:
            return True
        return not starts and in_force(policy, rule, earlier, known.now_s)

    found = [
        _refusing(finding)
        for rule in policy.rules
        if rule.changes is None
        if binds(rule, after, moment) and in_force(policy, rule, later, known.now_s)
        for finding in of_rule(rule, after, known, moment)
        if not applied(rule)
        or worsens(finding.key, limits_of(rule, after, moment)[finding.key], before, after)
    ]
    other = after.mgpu < before.mgpu or after.partition != before.partition
    grows = {"cpus": after.cpus > before.cpus, "memory": after.mib > before.mib, "partitions": False}
    taken = [one for one in of_bundles(policy.bundles, after) if other or grows[one.key]]
    fields = {
        "account": after.account != before.account,
        "mem": after.mib_per_node != before.mib_per_node,
        "partition": after.partition != before.partition,
        "qos": after.qos != before.qos,
        "time": after.minutes != before.minutes,
    }
    resized = [form for form in ("per_job", "per_node") if getattr(after, form) != getattr(before, form)]
    named = [
        of_option(
            rule,
            option,
            after.names_types(need, resized) if option == "gpu_type" else fields.get(option) or None,
        )
        for rule in policy.rules
        if binds(rule, after, moment) and in_force(policy, rule, later, known.now_s)
        for option, need in rule.options.items()
    ]
    return Judgement((*taken, *found, *named, *of_shards(after)))


def accepts_blind(policy: PolicyModel, job: Request, now_s: int) -> bool:
    """Return whether a job is accepted if neither a snapshot nor the queue can be read."""
    return not any(
        binds(rule, job, policy.local(now_s))
        and in_force(policy, rule, job, now_s)
        and rule.mode in ("enforce", "fit")
        and rule.on_error == "deny"
        for rule in policy.rules
    )


def amounts_of_component(policy: PolicyModel, job: Request, now_s: int) -> dict[tuple[str, str], float]:
    """Return the amounts that an admitted component adds to its het job, by rule and limit."""
    moment = policy.local(now_s)
    return {
        (rule.id, key): amount
        for rule in policy.rules
        if binds(rule, job, moment) and in_force(policy, rule, job, now_s)
        for key, limit in limits_of(rule, job, moment).items()
        if not (isinstance(limit, tuple) and of_steps(limit, job) == math.inf)
        and (amount := added_amount(rule, key, job)) is not None
    }
