"""Apply the rules of the model that change jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .findings import Finding, Known, Outcome
from .matching import binds, in_force
from .model import PARTITIONS, ChangesModel, PolicyModel, Request, RuleModel
from .modelled_bundles import admitted, fitted
from .modelled_limits import NO_AMOUNTS, limits_of, of_rule, of_steps

_NO_CHANGES = ChangesModel()


# In the order in which they are changed.
CHANGEABLE = ("qos", "partition", "constraint", "exclusive", "nodes", "walltime")


@dataclass(frozen=True)
class Changed:
    """A submission as changed by the rules, the options that it did not name itself, and the changes."""

    job: Request
    given: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    listed: frozenset[str] = frozenset()
    """Rules in other modes than fit whose options for jobs over a limit the job could have."""

    def names(self, option: str, need: str, *, terse: bool) -> bool | None:
        return True if option in self.given else self.job.names(option, need, terse=terse)


def changed_by_rules(
    policy: PolicyModel,
    job: Request,
    now_s: int,
    known: Known | None,
    earlier: Mapping[tuple[str, str], float] = NO_AMOUNTS,
    *,
    terse: bool,
) -> Changed:
    """Return a submission after applying the rules that change jobs, in their order.

    Without `known`, no job can be over the limit of a rule.
    """
    moment, found = policy.local(now_s), Changed(job)
    for rule in policy.rules:
        full = fitted(policy.bundles, found.job)
        if rule.over_limit:  # lending assigns a QOS first
            full = admitted(policy, found.job, names_qos=not terse or "qos" in found.given)
        elif rule.changes is None:
            continue
        changes = rule.changes or _NO_CHANGES
        if not binds(rule, full, moment) or not in_force(policy, rule, full, now_s):
            continue
        if rule.over_limit:
            outcomes = () if known is None else of_rule(rule, full, known, moment, earlier)
            if any(one.outcome is Outcome.OVER for one in outcomes):
                found = _changed_over_limit(found, rule, full.qos)
            continue
        for option in CHANGEABLE:
            if option in changes.always and not _has(found.job, option, changes.always[option]):
                found = _with_change(found, rule, option, changes.always[option])
            if option not in changes.by_default or option in found.given:
                continue
            default = changes.by_default[option]
            if option == "walltime":
                default = int(min(float(default), _longest_s(found.job.partitions)))
            if not _names_value(found.job, option, terse=terse) and not _has(found.job, option, default):
                found = _with_change(found, rule, option, default)
        most = limits_of(rule, found.job, moment).get("walltime")
        if isinstance(most, tuple):
            most = of_steps(most, fitted(policy.bundles, found.job))
        if most is not None and not isinstance(most, frozenset) and found.job.walltime_s > most:
            found = _with_change(found, rule, "walltime", int(most))
    return found


def _changed_over_limit(before: Changed, rule: RuleModel, qos: str) -> Changed:
    """Return the job, now in this QOS, with the options for jobs over a limit if it can have them all."""
    found = before
    for option in CHANGEABLE:
        value = rule.over_limit.get(option)
        if value is None or (value == qos if option == "qos" else _has(found.job, option, value)):
            continue
        after = _with_change(found, rule, option, value)
        if after is found:
            return before
        found = after
    return found if rule.mode == "fit" else replace(found, listed=before.listed | {rule.id})


def _longest_s(partitions: Iterable[str]) -> float:
    return max(PARTITIONS[name].max_s for name in partitions)


def _names_value(job: Request, option: str, *, terse: bool) -> bool:
    if option == "walltime":
        return job.minutes is not None
    if option == "nodes":
        named = ((job.nodes or 1) > 1, job.most_nodes, job.listed_nodes, job.feature_nodes)
        return any(named)
    return bool(job.names(option, "required", terse=terse))


def _has(job: Request, option: str, value: str | int) -> bool:
    if option == "nodes":
        return job.nodes == job.most_nodes == value
    if option == "walltime":
        return job.walltime_s == value
    if option == "exclusive":
        return job.exclusive
    if option == "constraint":
        return _satisfies(job.constraint or "", str(value))
    return bool(getattr(job, option) == value)


def _satisfies(own: str, wanted: str) -> bool:
    """Return whether each node that satisfies a constraint certainly satisfies another one."""
    if "(" in own:
        return False
    if "|" in own:
        return set(own.split("|")) == set(wanted.split("|")) and "&" not in wanted
    features = set(own.split("&"))
    return any(features.issuperset(one.split("&")) for one in wanted.split("|"))


def _with_change(before: Changed, rule: RuleModel, option: str, value: str | int) -> Changed:
    """Return the job with an option added if the job can have it; only rules in mode fit change the job."""
    job = before.job
    own: dict[str, str | int | bool | None] = {option: value}
    if option == "partition":
        partitions = set(str(value).split(","))
        if not PARTITIONS.keys() >= partitions:
            return before
        if job.minutes is not None and job.walltime_s > _longest_s(partitions):
            return before
    if option == "walltime":
        own = {"minutes": int(value) // 60}
    elif option == "exclusive":
        own = {option: True}
    elif option == "constraint":
        parts = [one for one in (job.constraint, str(value)) if one]
        alternatives = [one for one in parts if "|" in one]
        if job.feature_nodes or "(" in (job.constraint or "") or len(alternatives) > 1:
            return before  # Slurm might reject or misread both together
        is_list = bool(alternatives) and len(parts) > 1
        own = {
            option: "&".join(f"({one})" if "|" in one else one for one in parts)
            if is_list
            else "&".join(parts)
        }
    elif option == "nodes":
        count = int(value)
        if max(job.listed_nodes or 0, sum(job.feature_nodes)) > count:
            return before
        tasks = None if job.n_tasks is None else max(job.n_tasks, count)
        each = job.cpus_per_task or 1
        groups = count * (job.tasks_per_node or 1) if tasks is None else tasks
        cpus = max(job.groups * each, job.min_cpus or 0, groups * each)
        own = {"nodes": count, "most_nodes": count, "n_tasks": tasks, "min_cpus": cpus}
        if tasks is not None and job.tasks_per_node and tasks > count * job.tasks_per_node:
            return before
        if _agrees(job) and not _agrees(replace(job, nodes=count, most_nodes=count, n_tasks=tasks)):
            return before
    findings = (*before.findings, Finding(rule.id, f"set:{option}", rule.mode, Outcome.OVER))
    if rule.mode != "fit":
        return replace(before, findings=findings)
    after = replace(job, **own)  # type: ignore[arg-type]
    given = before.given | {"time" if option == "walltime" else option}
    return replace(before, job=after, given=given, findings=findings)


def _agrees(job: Request) -> bool:
    """Return whether the number of nodes fits a job's requests for GPUs per job and per node."""
    if job.per_job is None or job.per_node is None:
        return True
    nodes, rest = divmod(job.per_job, job.per_node)
    return rest == 0 and (job.nodes or 1) <= nodes <= (job.most_nodes or math.inf)
