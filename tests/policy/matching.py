"""Decide which rules of the model apply to a job."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from fnmatch import fnmatchcase

from .model import ExceptionModel, GroupModel, PolicyModel, Request, RuleModel, TierModel
from .users import MEMBERS


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
    """Return whether a job has the options that the rule, or one after it, gives to jobs over a limit."""
    return any(
        options and all(getattr(job, option) == value for option, value in options.items())
        for options in (rule.over_limit, *rule.moved_on)
    )


def _tier_of(rule: RuleModel, job: Request, moment: dt.datetime) -> int | None:
    """Return the number of the first tier that matches a job."""
    matching = (
        number
        for number, tier in enumerate(rule.tiers)
        if is_between(tier, moment) and (tier.group is None or _holds(tier.group, job))
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
    if not is_between(rule, policy.local(now_s)):
        return False
    if rule.jobs is not None and not rule.jobs.holds(job, at_any_size=at_any_size):
        return False
    if rule.when is None:
        return True
    if not rule.when.run:
        return rule.when.holds(policy.local(now_s))
    begin_s = max(now_s, job.begin_s or 0)
    return any(rule.when.holds(moment) for moment in policy.moments(begin_s, job.walltime_s))


def is_between(dated: RuleModel | ExceptionModel | TierModel, moment: dt.datetime) -> bool:
    """Return whether a group, exception or tier applies on the day of `moment`."""
    if dated.from_day is not None and moment.date() < dated.from_day:
        return False
    return dated.until is None or moment.date() <= dated.until
