"""Compare jobs of the model with the limits of rules."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

from .findings import HOUR_LIMITS, Finding, Known, Outcome
from .matching import binds, is_between
from .model import PARTITIONS, SHARDS_PER_GPU, Limit, Request, RuleModel

NO_AMOUNTS: Mapping[tuple[str, str], float] = MappingProxyType({})


def of_option(rule: RuleModel, option: str, named: bool | None) -> Finding:
    fits = named is None or named == (rule.options[option] == "required")
    return Finding(rule.id, f"option:{option}", rule.mode, Outcome.FITS if fits else Outcome.OVER)


def added_amount(rule: RuleModel, key: str, job: Request) -> float | None:
    """Return the amount that a component adds to a limit on its het job; None for limits on components."""
    base, _, part = key.partition(":")
    if base in RUNNING_SUMS:
        return _of_running(key, job)
    if base in HOUR_LIMITS and part:
        return None if rule.hard else job.hours(key)  # the sum of a hard rule already includes it
    if base in ("gpus", "cpus", "memory"):
        return job.measure(key)
    return _OF_ONE_JOB[base](job) if base in ("nodes", "tasks", *HOUR_LIMITS) else None


def of_rule(
    rule: RuleModel,
    job: Request,
    known: Known,
    moment: dt.datetime,
    earlier: Mapping[tuple[str, str], float] = NO_AMOUNTS,
) -> Iterator[Finding]:
    owner = owner_of(rule, job)

    pending = set(map(id, known.pending))

    def counted_among(jobs: Sequence[Request]) -> list[Request]:
        return [
            one
            for one in jobs
            if owner_of(rule, one) == owner and binds(rule, one, moment)
            if rule.jobs is None or rule.jobs.holds(one, has_started=id(one) not in pending)
        ]

    counted = counted_among(known.jobs)
    for key, limit in limits_of(rule, job, moment).items():
        used, carried = None, 0.0
        base, *parts = key.split(":")
        if base in HOUR_LIMITS and parts and rule.carry_over and not parts[0][0].isdigit():
            assert isinstance(limit, int | float)
            of_previous = ":".join((base, f"{parts[0]}_before", *parts[1:]))
            before = 0.0 if known.hours is None else known.hours.get((rule.id, owner, of_previous), 0.0)
            carried = max(0.0, limit - before)  # the most, if unknown
        if base in HOUR_LIMITS and known.hours is not None:
            used = known.hours.get((rule.id, owner, key), 0.0)
            if rule.hard:
                used += sum(other.committed_hours(key) for other in counted)
        budget = limit + carried if carried else limit  # type: ignore[operator]
        others = counted_among(known.pending) if base in PENDING_SUMS else counted
        outcome = _outcome(key, budget, job, others, used, earlier.get((rule.id, key), 0))
        if outcome is not None:
            yield Finding(rule.id, key, rule.mode, outcome, rule.on_error == "deny")


def owner_of(rule: RuleModel, job: Request) -> int | str | None:
    """Return the user or account whose jobs a rule counts together with a job; None if it counts all."""
    owners: dict[str, int | str] = {"user": job.uid, "account": job.account}
    return owners.get(rule.per)


def limits_of(rule: RuleModel, job: Request, moment: dt.datetime) -> dict[str, Limit]:
    limits = dict(rule.limits)
    exception = rule.exceptions.get(job.uid)
    if exception is not None and is_between(exception, moment):
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
        limit = of_steps(limit, job)
        if limit == math.inf:
            return None
    if base in RUNNING_SUMS:
        needs = _of_running(key, job)
        return None if needs is None else compare(needs and needs + earlier, limit)  # type: ignore[arg-type]
    if isinstance(limit, frozenset):
        return _of_names(base, limit, job)
    if base in SUMS:
        measure = SUMS[base] + (f":{part}" if part else "")
        added = job.measure(measure) * job.jobs
        if added == 0:
            return Outcome.FITS
        return compare(sum(other.measure(measure) * other.jobs for other in counted) + added, limit)
    if base in HOUR_LIMITS and part:
        if job.hours(key) == 0:
            return Outcome.FITS
        outcome = compare((used_hours or 0) + earlier + job.hours(key), limit)
        # A job that alone exceeds the budget is refused, regardless of the hours used.
        return Outcome.UNKNOWN if used_hours is None and outcome is Outcome.FITS else outcome
    asked = _OF_ONE_JOB[base](job) if base in _OF_ONE_JOB else job.measure(key)
    if asked is None:
        return None
    if base == "cpus_per_gpu":  # a part of a GPU may have a whole CPU
        return compare(asked, math.ceil(Fraction(limit) * job.mgpu / 1000))
    if base == "memory_per_gpu":
        return compare(asked, Fraction(limit) * job.mgpu / 1000)
    return compare(asked and asked + earlier, limit)


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


def of_steps(steps: tuple[tuple[int, int], ...], job: Request, absent: float = math.inf) -> float:
    """Return the limit for the job's number of GPUs, or `absent` if there is none."""
    return next((number for mgpu, number in reversed(steps) if job.mgpu >= mgpu), absent)


def _of_minimum(key: str, limit: Limit, job: Request) -> Outcome | None:
    minimum = of_steps(limit, job, -math.inf) if isinstance(limit, tuple) else limit
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


def compare(asked: float, limit: float | Fraction) -> Outcome:
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


def worsens(key: str, limit: Limit, before: Request, after: Request) -> bool:
    """Return whether an update increases the amount of one limit, or decreases that of one minimum."""
    base, _, of_least = key.partition(":")
    if base != "at_least":
        return _grows(key, limit, before, after)
    minimums = (
        [of_steps(limit, job, -math.inf) for job in (before, after)] if isinstance(limit, tuple) else [0, 0]
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
    if isinstance(limit, tuple) and of_steps(limit, after) < of_steps(limit, before):
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
        return after.hours(key) > before.hours(key)
    if base in RUNNING_SUMS:
        sizes = [_of_running(key, job) or 0 for job in (before, after)]
    elif base in _OF_ONE_JOB:
        sizes = [_OF_ONE_JOB[base](job) or 0 for job in (before, after)]
    else:
        measure = SUMS.get(base, base) + (f":{part}" if part else "")
        sizes = [job.measure(measure) * job.jobs for job in (before, after)]
    return sizes[1] > sizes[0]


def of_shards(job: Request) -> Iterator[Finding]:
    if (job.shards_per_node or 0) > SHARDS_PER_GPU:
        yield Finding("one-gpu", "shards", "enforce", Outcome.OVER)
