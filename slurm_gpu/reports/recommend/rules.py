"""Convert the running limits of a policy to counters of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from slurm_gpu.policy.lua.installed import LendingInForce, PolicyInForce, RuleInForce
from slurm_gpu.reports.recommend.past import PastRun, RecordedPast
from slurm_gpu.simulate.jobs import Jobs
from slurm_gpu.simulate.limits import LimitCounter, Resource
from slurm_gpu.simulate.preemption import Preemption

# Running limits, by their keys in policy.yaml.
RESOURCES: Mapping[str, Resource] = {
    "gpus_running": Resource.MGPU,
    "jobs_running": Resource.JOBS,
    "cpus_running": Resource.CPUS,
    "memory_running": Resource.MEMORY_MIB,
    "nodes_running": Resource.NODES,
}
# A priority above the priorities of all jobs, except jobs that are already running when the model begins.
_FIRST = 1.0
_NORMAL = "normal"


class RuleLimit(NamedTuple):
    """One limit of one rule."""

    rule: str
    key: str


class _Place(NamedTuple):
    """The scope of a counter: rule, UID or account (None for all jobs), and GPU type ("" for all types)."""

    rule: str
    owner: int | str | None
    gpu_type: str


@dataclass(frozen=True)
class CountedJobs:
    """The counters of each job, which do not depend on the values of the limits."""

    places: tuple[_Place, ...]
    of_job: tuple[tuple[int, ...], ...]
    lending: tuple[LimitCounter, ...] = ()
    """Counters for lending, which precede the counters of `places`."""


def modelled_rules(
    policy: PolicyInForce, unenforced_limits: Iterable[RuleLimit], now_s: float
) -> tuple[PolicyInForce, tuple[str, ...]]:
    """Return the policy with only its running limits, and remarks on the limits that are left out.

    Limits in `unenforced_limits` are left out, and so are rules that apply only at certain times or to some
    jobs of their group.
    """
    unenforced = frozenset(unenforced_limits)
    rules, remarks = [], []
    current = {rule.id for rule in policy.rules if rule.group.is_current(now_s)}
    for rule in policy.rules:
        if rule.id in current and not rule.group.is_current(now_s):
            continue  # the same tier in another period
        limits = {key: value for key, value in rule.limits.items() if key.split(":")[0] in RESOURCES}
        if not limits:
            continue
        if rule.counts_some_jobs or rule.when is not None or not rule.group.is_current(now_s):
            remarks.append(
                f"rule {rule.id} is not modelled: it applies only to some jobs or at certain times"
            )
            continue
        kept = {
            key: value
            for key, value in limits.items()
            if RuleLimit(rule.id, key.split(":")[0]) not in unenforced
        }
        if kept:
            rules.append(replace(rule, limits=kept))
        remarks += [
            f"{key} of rule {rule.id} is not modelled: it is not enforced"
            for key in limits
            if key not in kept
        ]
    return replace(policy, rules=tuple(rules)), tuple(remarks)


def count_by(policy: PolicyInForce, runs: Sequence[PastRun]) -> CountedJobs:
    """Return the counters of each run."""
    lending = () if policy.lending is None else _lending_counters(policy.lending)
    own = {} if policy.lending is None else {owner.qos: i for i, owner in enumerate(policy.lending.owners, 1)}
    loans = frozenset() if policy.lending is None else _loans(policy.lending)
    places: dict[_Place, int] = {}
    of_job = []
    for run in runs:
        mine: list[int] = []
        if lending and run.n_gpus and run.qos.lower() not in loans:
            mine.append(own.get(run.qos.lower(), 0))
        for rule in policy.rules:
            if rule.group.matches(run.uid, run.account, run.qos, run.partition):
                mine += [
                    places.setdefault(place, len(lending) + len(places)) for place in _places_of(rule, run)
                ]
        of_job.append(tuple(mine))
    return CountedJobs(tuple(places), tuple(of_job), lending)


def counters(policy: PolicyInForce, counted: CountedJobs, at_s: float) -> tuple[LimitCounter, ...]:
    """Return the counters with the limits of this policy, including its exceptions at `at_s`."""
    rules = {rule.id: rule for rule in policy.rules}
    return (*counted.lending, *(_counter(rules[place.rule], place, at_s) for place in counted.places))


def with_limit(policy: PolicyInForce, limit: RuleLimit, value: int) -> PolicyInForce:
    """Return the policy with another value for one limit, in the unit of the compiled policy."""
    rules = tuple(
        replace(rule, limits={**rule.limits, limit.key: value}) if rule.id == limit.rule else rule
        for rule in policy.rules
    )
    return replace(policy, rules=rules)


def jobs_under(policy: PolicyInForce, past: RecordedPast, counted: CountedJobs) -> Jobs:
    """Return the recorded jobs with their counters. Urgent jobs precede all other pending jobs."""
    return Jobs.of(
        replace(
            job,
            counters=mine,
            priority=max(job.priority, _FIRST) if job.qos == policy.urgent_qos else job.priority,
        )
        for job, mine in zip(past.jobs, counted.of_job, strict=True)
    )


def preemption_of(policy: PolicyInForce) -> Preemption:
    """Return which other QOS each QOS can preempt.

    The owners' QOS and `normal` requeue loans. The urgent QOS also preempts other QOS.
    """
    lending = policy.lending
    loans = frozenset() if lending is None else _loans(lending)
    of = {} if lending is None else dict.fromkeys((*(one.qos for one in lending.owners), _NORMAL), loans)
    if policy.urgent_qos is not None:
        of[policy.urgent_qos] = loans | policy.urgent_preempts
    return Preemption(of)


def _places_of(rule: RuleInForce, run: PastRun) -> list[_Place]:
    owners: dict[str, int | str] = {"user": run.uid, "account": run.account}
    owner = owners.get(rule.per)
    found = []
    if any(":" not in key for key in rule.limits):
        found.append(_Place(rule.id, owner, ""))
    if run.gpu_type is not None:
        gpu_type = run.gpu_type.lower()
        if f"gpus_running:{gpu_type}" in rule.limits:
            found.append(_Place(rule.id, owner, gpu_type))
    return found


def _counter(rule: RuleInForce, place: _Place, at_s: float) -> LimitCounter:
    limits = rule.limits_of(place.owner, at_s) if isinstance(place.owner, int) else rule.limits
    if place.gpu_type:
        caps = {Resource.MGPU: limits[f"gpus_running:{place.gpu_type}"]}
    else:
        caps = {
            RESOURCES[key]: value for key, value in limits.items() if key in RESOURCES and key in rule.limits
        }
    return LimitCounter(f"{rule.id}:{place.owner}:{place.gpu_type}", caps)


def _lending_counters(lending: LendingInForce) -> tuple[LimitCounter, ...]:
    unowned = LimitCounter("unowned", {Resource.MGPU: lending.unowned_mgpu})
    return (unowned, *(LimitCounter(f"own:{one.name}", {Resource.MGPU: one.mgpu}) for one in lending.owners))


def _loans(lending: LendingInForce) -> frozenset[str]:
    return frozenset(owner.lend_in for owner in lending.owners)
