"""Judge jobs by a policy, in plain Python; the Lua must reach the same decisions.

This model is written from docs/contracts.md and docs/policy.md, not from the Lua, and uses no code of
slurm_gpu.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase
from fractions import Fraction
from types import MappingProxyType

from .model import (
    PARTITIONS,
    SHARDS_PER_GPU,
    BundleModel,
    ChangesModel,
    ExceptionModel,
    GroupModel,
    Limit,
    PolicyModel,
    Request,
    RuleModel,
    TierModel,
)
from .users import MEMBERS


class Outcome(Enum):
    """The result of comparing a job with one limit that applies to it."""

    FITS = "fits"
    OVER = "over"
    UNKNOWN = "cannot be checked"


@dataclass(frozen=True)
class Finding:
    """One limit of a rule or bundle, and the outcome for the job."""

    rule: str
    key: str
    mode: str
    outcome: Outcome
    denies_unknown: bool = False


@dataclass(frozen=True)
class Judgement:
    """All limits that apply to a job, with their outcomes."""

    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> bool:
        return not any(
            (one.mode == "enforce" and one.outcome is Outcome.OVER)
            or (one.mode in ("enforce", "fit") and one.outcome is Outcome.UNKNOWN and one.denies_unknown)
            for one in self.findings
        )

    @property
    def reported(self) -> set[tuple[str, str, str]]:
        """Return (rule, limit, mode or "error") of the limits that the job does not meet."""
        return {
            (one.rule, one.key, "error" if one.outcome is Outcome.UNKNOWN else one.mode)
            for one in self.findings
            if one.outcome is not Outcome.FITS
        }


_NO_AMOUNTS: Mapping[tuple[str, str], float] = MappingProxyType({})
# Limits on the hours of GPUs or CPUs.
HOUR_LIMITS = ("gpu_hours", "cpu_hours", "billing_hours")
# Hours used, by rule, UID or account (None: the whole group) and limit, such as gpu_hours:week, or
# gpu_hours:week_before for the previous week.
Hours = Mapping[tuple[str, int | str | None, str], float]


@dataclass(frozen=True)
class Known:
    """The other jobs, the time, and the hours of GPUs and CPUs used."""

    jobs: Sequence[Request]
    """Running and pending jobs."""
    pending: Sequence[Request]
    """The pending jobs among `jobs`."""
    now_s: int
    hours: Hours | None = None
    """None if no snapshot contains used hours."""


def binds(rule: RuleModel, job: Request, moment: dt.datetime) -> bool:
    """Return whether a rule applies to a job, given the tiers in effect on the day of `moment`."""
    starts = (
        replace(job, qos=qos, partition=partition)
        for qos in job.qos.split(",")
        for partition in job.partitions
    )
    return (rule.kind is None or (rule.kind == "interactive") == job.interactive) and any(
        _holds(rule, start)
        and not _is_over_limit(rule, start)
        and (rule.tier is None or _tier_of(rule, start, moment) == rule.tier)
        for start in starts
    )


def _is_over_limit(rule: RuleModel, job: Request) -> bool:
    """Return whether a job has the options that the rule gives to jobs over its limits."""
    given = rule.over_limit.items()
    return bool(given) and all(getattr(job, option) == value for option, value in given)


def _tier_of(rule: RuleModel, job: Request, moment: dt.datetime) -> int | None:
    """Return the number of the first tier that matches a job."""
    matching = (
        number
        for number, tier in enumerate(rule.tiers)
        if _is_between(tier, moment) and (tier.group is None or _holds(tier.group, job))
    )
    return next(matching, None)


def _holds(group: RuleModel | GroupModel, job: Request) -> bool:
    """Return whether a job that starts in its only QOS and partition is in a group."""
    return (
        (group.users is None or job.uid in group.users)
        and (group.unix_group is None or job.uid in MEMBERS[group.unix_group])
        and (group.accounts is None or any(fnmatchcase(job.account, name) for name in group.accounts))
        and (group.qos is None or any(fnmatchcase(job.qos, name) for name in group.qos))
        and (group.partitions is None or any(fnmatchcase(job.partition, name) for name in group.partitions))
        and all(_holds(other, job) for other in group.all_of)
        and not any(_holds(other, job) for other in group.none_of)
    )


def in_force(
    policy: PolicyModel, rule: RuleModel, job: Request, now_s: int, *, at_any_size: bool = False
) -> bool:
    """Return whether a rule applies to a job that is submitted, or updated, now.

    With `at_any_size`, ignore the minimums in the rule's conditions.
    """
    if not _is_between(rule, policy.local(now_s)):
        return False
    if rule.jobs is not None and not rule.jobs.holds(job, at_any_size=at_any_size):
        return False
    if rule.when is None:
        return True
    if not rule.when.run:
        return rule.when.holds(policy.local(now_s))
    begin_s = max(now_s, job.begin_s or 0)
    return any(rule.when.holds(moment) for moment in policy.moments(begin_s, job.walltime_s))


def _is_between(dated: RuleModel | ExceptionModel | TierModel, moment: dt.datetime) -> bool:
    """Return whether a group, exception or tier applies on the day of `moment`."""
    if dated.from_day is not None and moment.date() < dated.from_day:
        return False
    return dated.until is None or moment.date() <= dated.until


def admitted(policy: PolicyModel, job: Request, *, names_qos: bool = True) -> Request:
    """Return a job, after changes by rules, as the policy admits it: fitted, and in the assigned QOS."""
    job = fitted(policy.bundles, job)
    if names_qos or not policy.owners or job.mgpu == 0:
        return job
    own = next((owner for owner in policy.owners if owner.account == job.account), None)
    if own is not None and job.mgpu <= own.mgpu:
        return replace(job, qos=own.qos)
    return job if job.mgpu <= policy.unowned_mgpu else replace(job, qos="sg-loans")


_NO_CHANGES = ChangesModel()
# In the order of changes.
CHANGEABLE = ("partition", "qos", "constraint", "exclusive", "nodes", "walltime")


@dataclass(frozen=True)
class Changed:
    """A submission as changed by the rules, the options that it did not name itself, and the changes."""

    job: Request
    given: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()

    def names(self, option: str, need: str, *, terse: bool) -> bool | None:
        return True if option in self.given else self.job.names(option, need, terse=terse)


def changed_by_rules(
    policy: PolicyModel,
    job: Request,
    now_s: int,
    known: Known | None,
    earlier: Mapping[tuple[str, str], float] = _NO_AMOUNTS,
    *,
    terse: bool,
) -> Changed:
    """Return a submission after applying the rules that change jobs, in their order.

    Without `known`, no job can be over the limit of a rule.
    """
    moment, found = policy.local(now_s), Changed(job)
    for rule in policy.rules:
        full = fitted(policy.bundles, found.job)
        changes = rule.changes or _NO_CHANGES
        if not (rule.changes or rule.over_limit):
            continue
        if not binds(rule, full, moment) or not in_force(policy, rule, full, now_s):
            continue
        if rule.over_limit:
            outcomes = () if known is None else tuple(_of_rule(rule, full, known, moment, earlier))
            found = _changed_over_limit(found, rule, outcomes)
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
        most = _limits_of(rule, found.job, moment).get("walltime")
        if isinstance(most, tuple):
            most = _of_steps(most, fitted(policy.bundles, found.job))
        if most is not None and not isinstance(most, frozenset) and found.job.walltime_s > most:
            found = _with_change(found, rule, "walltime", int(most))
    return found


def _changed_over_limit(before: Changed, rule: RuleModel, outcomes: Iterable[Finding]) -> Changed:
    """Return the job with the options for jobs over a limit, given its outcomes for the rule's limits."""
    unknown = tuple(one for one in outcomes if one.outcome is Outcome.UNKNOWN)
    over = tuple(one for one in outcomes if one.outcome is Outcome.OVER)
    found = replace(before, findings=(*before.findings, *unknown))
    for option in CHANGEABLE if over else ():
        value = rule.over_limit.get(option)
        if value is None or _has(found.job, option, value):
            continue
        after = _with_change(found, rule, option, value)
        if after is found:  # the job cannot have the option
            mode = "enforce" if rule.mode == "fit" else rule.mode
            return replace(found, findings=(*found.findings, *(replace(one, mode=mode) for one in over)))
        found = after
    return found


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
    return Changed(after, given, findings)


def _agrees(job: Request) -> bool:
    """Return whether the number of nodes fits a job's requests for GPUs per job and per node."""
    if job.per_job is None or job.per_node is None:
        return True
    nodes, rest = divmod(job.per_job, job.per_node)
    return rest == 0 and (job.nodes or 1) <= nodes <= (job.most_nodes or math.inf)


def judge(
    policy: PolicyModel,
    job: Request,
    known: Known,
    *,
    names_qos: bool = True,
    earlier: Mapping[tuple[str, str], float] = _NO_AMOUNTS,
) -> Judgement:
    """Judge a submission; `earlier` contains the amounts of the earlier components of its het job."""
    moment = policy.local(known.now_s)
    asked = changed_by_rules(policy, job, known.now_s, known, earlier, terse=not names_qos)
    job = admitted(policy, asked.job, names_qos=names_qos or "qos" in asked.given)
    rules = [rule for rule in policy.rules if rule.changes is None and not rule.over_limit]
    return Judgement(
        (
            *asked.findings,
            *_of_bundles(policy.bundles, job),
            *(
                _of_option(rule, option, asked.names(option, need, terse=not names_qos))
                for rule in rules
                if binds(rule, job, moment) and in_force(policy, rule, job, known.now_s)
                for option, need in rule.options.items()
            ),
            *(
                finding
                for rule in rules
                if binds(rule, job, moment) and in_force(policy, rule, job, known.now_s)
                for finding in _of_rule(rule, job, known, moment, earlier)
            ),
            *_of_shards(job),
        )
    )


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
        for key, limit in _limits_of(rule, job, moment).items():
            base, _, part = key.partition(":")
            if base == "nodes":
                assert not isinstance(limit, frozenset)
                number = _of_steps(limit, job) if isinstance(limit, tuple) else limit
                most = min(most, max(number, job.counted_nodes))
            elif base in ("gpus", "gpus_total", "gpus_pending", "gpu_hours", "billing_hours"):
                measure = f"gpus:{part}" if part and base not in HOUR_LIMITS else "gpus"
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
        replace(finding, mode="enforce") if finding.mode == "fit" else finding
        for rule in policy.rules
        if rule.changes is None
        if binds(rule, after, moment) and in_force(policy, rule, later, known.now_s)
        for finding in _of_rule(rule, after, known, moment)
        if not applied(rule)
        or _worsens(finding.key, _limits_of(rule, after, moment)[finding.key], before, after)
    ]
    other = after.mgpu < before.mgpu or after.partition != before.partition
    grows = {"cpus": after.cpus > before.cpus, "memory": after.mib > before.mib, "partitions": False}
    taken = [one for one in _of_bundles(policy.bundles, after) if other or grows[one.key]]
    fields = {
        "account": after.account != before.account,
        "mem": after.mib_per_node != before.mib_per_node,
        "partition": after.partition != before.partition,
        "qos": after.qos != before.qos,
        "time": after.minutes != before.minutes,
    }
    resized = [form for form in ("per_job", "per_node") if getattr(after, form) != getattr(before, form)]
    named = [
        _of_option(
            rule,
            option,
            after.names_types(need, resized) if option == "gpu_type" else fields.get(option) or None,
        )
        for rule in policy.rules
        if binds(rule, after, moment) and in_force(policy, rule, later, known.now_s)
        for option, need in rule.options.items()
    ]
    return Judgement((*taken, *found, *named, *_of_shards(after)))


def _of_option(rule: RuleModel, option: str, named: bool | None) -> Finding:
    fits = named is None or named == (rule.options[option] == "required")
    return Finding(rule.id, f"option:{option}", rule.mode, Outcome.FITS if fits else Outcome.OVER)


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
        for key, limit in _limits_of(rule, job, moment).items()
        if not (isinstance(limit, tuple) and _of_steps(limit, job) == math.inf)
        and (amount := _added(rule, key, job)) is not None
    }


def _added(rule: RuleModel, key: str, job: Request) -> float | None:
    """Return the amount that a component adds to a limit on its het job; None for limits on components."""
    base, _, part = key.partition(":")
    if base in RUNNING_SUMS:
        return _of_running(key, job)
    if base in HOUR_LIMITS and part:
        return None if rule.hard else job.hours(base)  # the sum of a hard rule has it already
    if base in ("gpus", "cpus", "memory"):
        return job.measure(key)
    return _OF_ONE_JOB[base](job) if base in ("nodes", "tasks", *HOUR_LIMITS) else None


def _of_rule(
    rule: RuleModel,
    job: Request,
    known: Known,
    moment: dt.datetime,
    earlier: Mapping[tuple[str, str], float] = _NO_AMOUNTS,
) -> Iterator[Finding]:
    owner = owner_of(rule, job)

    def counted_among(jobs: Sequence[Request]) -> list[Request]:
        return [
            one
            for one in jobs
            if owner_of(rule, one) == owner and binds(rule, one, moment)
            if rule.jobs is None or rule.jobs.holds(one)
        ]

    counted = counted_among(known.jobs)
    for key, limit in _limits_of(rule, job, moment).items():
        used, carried = None, 0.0
        base, _, period = key.partition(":")
        if base in HOUR_LIMITS and period and rule.carry_over and not period[0].isdigit():
            assert isinstance(limit, int | float)
            before = 0.0 if known.hours is None else known.hours.get((rule.id, owner, f"{key}_before"), 0.0)
            carried = max(0.0, limit - before)  # the most, if unknown
        if base in HOUR_LIMITS and known.hours is not None:
            used = known.hours.get((rule.id, owner, key), 0.0)
            if rule.hard:
                used += sum(other.committed_hours(base) for other in counted)
        budget = limit + carried if carried else limit  # type: ignore[operator]
        others = counted_among(known.pending) if base in PENDING_SUMS else counted
        outcome = _outcome(key, budget, job, others, used, earlier.get((rule.id, key), 0))
        if outcome is not None:
            yield Finding(rule.id, key, rule.mode, outcome, rule.on_error == "deny")


def owner_of(rule: RuleModel, job: Request) -> int | str | None:
    """Return the user or account whose jobs a rule counts together with a job; None if it counts all."""
    owners: dict[str, int | str] = {"user": job.uid, "account": job.account}
    return owners.get(rule.per)


def _limits_of(rule: RuleModel, job: Request, moment: dt.datetime) -> dict[str, Limit]:
    limits = dict(rule.limits)
    exception = rule.exceptions.get(job.uid)
    if exception is not None and _is_between(exception, moment):
        limits |= {key: value for key, value in exception.limits.items() if key in limits}
    return limits


def _outcome(
    key: str,
    limit: Limit,
    job: Request,
    counted: Sequence[Request],
    used_hours: float | None,
    earlier: float = 0,
) -> Outcome | None:
    """Return the outcome of one limit for a job; None if the limit does not apply to the job."""
    base, _, part = key.partition(":")
    if base == "at_least":
        return _of_minimum(part, limit, job)
    if isinstance(limit, tuple):
        limit = _of_steps(limit, job)
        if limit == math.inf:
            return None
    if base in RUNNING_SUMS:
        needs = _of_running(key, job)
        return None if needs is None else _compare(needs and needs + earlier, limit)  # type: ignore[arg-type]
    if isinstance(limit, frozenset):
        return _of_names(base, limit, job)
    if base in SUMS:
        measure = SUMS[base] + (f":{part}" if part else "")
        added = job.measure(measure) * job.jobs
        if added == 0:
            return Outcome.FITS
        return _compare(sum(other.measure(measure) * other.jobs for other in counted) + added, limit)
    if base in HOUR_LIMITS and part:
        if job.hours(base) == 0:
            return Outcome.FITS
        outcome = _compare((used_hours or 0) + earlier + job.hours(base), limit)
        # A job that alone exceeds the budget is refused, regardless of the hours used.
        return Outcome.UNKNOWN if used_hours is None and outcome is Outcome.FITS else outcome
    asked = _OF_ONE_JOB[base](job) if base in _OF_ONE_JOB else job.measure(key)
    if asked is None:
        return None
    if base == "cpus_per_gpu":  # a part of a GPU may have a whole CPU
        return _compare(asked, math.ceil(Fraction(limit) * job.mgpu / 1000))
    if base == "memory_per_gpu":
        return _compare(asked, Fraction(limit) * job.mgpu / 1000)
    return _compare(asked and asked + earlier, limit)


def _of_running(key: str, job: Request) -> float | None:
    """Return the amount of one running array task that counts; None if Slurm does not count its GPUs."""
    base, _, gpu_type = key.partition(":")
    if base != "gpus_running":
        return {
            "jobs_running": 1,
            "cpus_running": job.cpus,
            "memory_running": job.mib,
            "nodes_running": job.counted_nodes,
        }[base]
    if gpu_type:  # Slurm counts only named types
        return job.asked_mgpu if job.named_type == gpu_type else 0
    return None if job.only_parts else job.mgpu


def _of_steps(steps: tuple[tuple[int, int], ...], job: Request, absent: float = math.inf) -> float:
    """Return the limit for the job's number of GPUs, or `absent` if there is none."""
    return next((number for mgpu, number in reversed(steps) if job.mgpu >= mgpu), absent)


def _of_minimum(key: str, limit: Limit, job: Request) -> Outcome | None:
    minimum = _of_steps(limit, job, -math.inf) if isinstance(limit, tuple) else limit
    asked, per = _for_minimum(key, job)
    if asked is None or minimum == -math.inf:
        return None
    assert isinstance(minimum, int | float)
    bound = minimum if per is None else Fraction(minimum) * per
    if key == "cpus_per_gpu":
        bound = math.ceil(bound)
    return Outcome.FITS if asked >= bound else Outcome.OVER


def _for_minimum(key: str, job: Request) -> tuple[float | None, Fraction | None]:
    """Return the job's amount on its fewest nodes (or None), and the GPUs by which to divide it (or None)."""
    least = job.on_fewest_nodes
    if key == "gpus_per_node":
        return job.each_mgpu / 1000, None
    if key.endswith("_per_gpu") and least.mgpu == 0:
        return None, None
    asked = _OF_ONE_JOB[key](least) if key in _OF_ONE_JOB else least.measure(key)
    return asked, Fraction(least.mgpu, 1000) if key.endswith("_per_gpu") else None


# Limits on sums over running and pending jobs, or over pending jobs alone: limit → name for `measure`.
SUMS: Mapping[str, str] = {
    "gpus_total": "gpus",
    "jobs_total": "jobs",
    "cpus_total": "cpus",
    "memory_total": "memory",
    "gpus_pending": "gpus",
    "jobs_pending": "jobs",
}
# The limits in SUMS that count pending jobs alone.
PENDING_SUMS = frozenset({"gpus_pending", "jobs_pending"})

# Limits on sums over running jobs: a job that alone exceeds them is refused; any other job may wait.
RUNNING_SUMS = frozenset({"gpus_running", "jobs_running", "cpus_running", "memory_running", "nodes_running"})

_OF_ONE_JOB: Mapping[str, Callable[[Request], float | None]] = {
    "gpus_per_node": lambda job: job.node_mgpu / 1000,
    "gpu_hours": lambda job: replace(job, array_tasks=None).hours("gpu_hours"),
    "cpu_hours": lambda job: replace(job, array_tasks=None).hours("cpu_hours"),
    "billing_hours": lambda job: replace(job, array_tasks=None).hours("billing_hours"),
    "nodes": lambda job: job.counted_nodes,
    "tasks": lambda job: job.tasks,
    "walltime": lambda job: job.walltime_s,
    "array_tasks": lambda job: job.array_tasks,
    "cpus_per_gpu": lambda job: job.cpus if job.mgpu else None,
    "memory_per_gpu": lambda job: job.mib if job.mgpu else None,
}


def _compare(asked: float, limit: float | Fraction) -> Outcome:
    return Outcome.OVER if asked > limit else Outcome.FITS


def _of_names(key: str, allowed: frozenset[str], job: Request) -> Outcome | None:
    if key == "partitions":
        return Outcome.FITS if allowed.issuperset(job.partitions) else Outcome.OVER
    if key == "qos":
        return Outcome.FITS if allowed.issuperset(job.qos.split(",")) else Outcome.OVER
    if job.mgpu == 0:
        return None
    if job.named_type is not None:
        return Outcome.FITS if job.named_type in allowed else Outcome.OVER
    every = frozenset[str]().union(*(PARTITIONS[name].gpu_types for name in job.partitions))
    return Outcome.FITS if every <= allowed else Outcome.OVER


def _worsens(key: str, limit: Limit, before: Request, after: Request) -> bool:
    """Return whether an update increases the amount of one limit, or decreases that of one minimum."""
    base, _, of_least = key.partition(":")
    if base != "at_least":
        return _grows(key, limit, before, after)
    minimums = (
        [_of_steps(limit, job, -math.inf) for job in (before, after)] if isinstance(limit, tuple) else [0, 0]
    )
    # A record has the CPUs of all nodes that the job may get, and with --mem=0 also their memory.
    recorded = replace(before, min_cpus=before.asked_cpus)
    (was, was_per), (now, now_per) = (_for_minimum(of_least, job) for job in (recorded, after))
    if was is None or now is None or minimums[1] > minimums[0]:
        return True
    if before.mib_per_node == 0 and of_least.startswith("memory"):
        was = before.mib
    if was_per is None or now_per is None:
        return now < was
    return Fraction(now) / now_per < Fraction(was) / was_per


def _grows(key: str, limit: Limit, before: Request, after: Request) -> bool:
    """Return whether an update increases the amount that one limit bounds, or lowers the limit itself."""
    base, _, part = key.partition(":")
    if base == "partitions":
        return before.partition != after.partition
    if base == "qos":
        return before.qos != after.qos
    if base == "gpu_types":
        moved = (before.named_type, before.partition) != (after.named_type, after.partition)
        return moved or after.mgpu > before.mgpu
    if isinstance(limit, tuple) and _of_steps(limit, after) < _of_steps(limit, before):
        return True
    if base == "walltime":
        return after.walltime_s > before.walltime_s or after.mgpu > before.mgpu
    if base in ("cpus_per_gpu", "memory_per_gpu"):
        measure = "cpus" if base == "cpus_per_gpu" else "memory"
        if before.mgpu == 0:
            return True
        each = [Fraction(job.measure(measure)) / job.mgpu for job in (before, after)]
        return each[1] > each[0]
    if base in HOUR_LIMITS and part:
        return after.hours(base) > before.hours(base)
    if base in RUNNING_SUMS:
        sizes = [_of_running(key, job) or 0 for job in (before, after)]
    elif base in _OF_ONE_JOB:
        sizes = [_OF_ONE_JOB[base](job) or 0 for job in (before, after)]
    else:
        measure = SUMS.get(base, base) + (f":{part}" if part else "")
        sizes = [job.measure(measure) * job.jobs for job in (before, after)]
    return sizes[1] > sizes[0]


def _of_shards(job: Request) -> Iterator[Finding]:
    if (job.shards_per_node or 0) > SHARDS_PER_GPU:
        yield Finding("one-gpu", "shards", "enforce", Outcome.OVER)


def _suits(bundle: BundleModel, job: Request) -> bool:
    if (bundle.mgpu > 0) != (job.mgpu > 0):
        return False
    if bundle.partitions is not None and bundle.partitions.isdisjoint(job.partitions):
        return False
    if bundle.gpu_types is None or job.mgpu == 0:
        return True
    if job.named_type is not None:
        return job.named_type in bundle.gpu_types
    return any(bundle.gpu_types & PARTITIONS[name].gpu_types for name in job.partitions)


def _units(bundle: BundleModel, job: Request) -> Fraction:
    return Fraction(job.mgpu, bundle.mgpu) if bundle.mgpu else Fraction(1)


def _bundle_of(bundles: Sequence[BundleModel], job: Request) -> BundleModel | None:
    return next((bundle for bundle in bundles if _suits(bundle, job)), None)


def fitted(bundles: Sequence[BundleModel], job: Request) -> Request:
    """Return the job after its bundle has filled in the options that the job does not name."""
    bundle = _bundle_of(bundles, job)
    if bundle is None or bundle.mode != "fit" or job.mgpu == 0:
        return job
    units, gpus, full = _units(bundle, job), Fraction(job.mgpu, 1000), job
    # GPUs that come with whole nodes are not requested, so nothing can be requested per GPU.
    by_gpu = not job.only_parts and job.asked_mgpu == job.mgpu
    says_nothing = job.cpus_per_task is None and job.cpus_per_gpu is None and not job.exclusive
    if bundle.cpus is not None and says_nothing:
        cpus = math.ceil(bundle.cpus * units)
        if cpus > job.asked_cpus:
            if by_gpu and cpus >= gpus:
                full = replace(full, cpus_per_gpu=math.floor(cpus / gpus))
            elif job.tasks == 1 and job.counted_nodes == 1:
                full = replace(full, cpus_per_task=cpus)
    if bundle.mib is not None and job.mib_per_node is job.mib_per_cpu is job.mib_per_gpu is None:
        mib = bundle.mib * units
        if by_gpu and mib >= gpus:
            full = replace(full, mib_per_gpu=math.floor(mib / gpus))
        elif not by_gpu and mib >= job.counted_nodes:
            full = replace(full, mib_per_node=math.floor(mib / job.counted_nodes))
    return full


def _of_bundles(bundles: Sequence[BundleModel], job: Request) -> Iterator[Finding]:
    for_cpus = [one for one in bundles if one.mgpu == 0 == job.mgpu]
    if for_cpus and not all(
        any(one.partitions is None or name in one.partitions for one in for_cpus) for name in job.partitions
    ):
        yield Finding(f"bundle.{for_cpus[0].name}", "partitions", _mode(for_cpus[0]), Outcome.OVER)
    bundle = _bundle_of(bundles, job)
    if bundle is None:
        return
    name, units = f"bundle.{bundle.name}", _units(bundle, job)
    if bundle.cpus is not None:
        yield Finding(name, "cpus", _mode(bundle), _compare(job.cpus, math.ceil(bundle.cpus * units)))
    if bundle.mib is not None:
        yield Finding(name, "memory", _mode(bundle), _compare(job.mib, bundle.mib * units))


def _mode(bundle: BundleModel) -> str:
    """Return the mode of a bundle; in mode "fit", a job that exceeds the bundle only gets advice."""
    return "advise" if bundle.mode == "fit" else bundle.mode
