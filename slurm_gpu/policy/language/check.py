"""Check policy.yaml and report all mistakes at once, each with its position, the value and a remedy.

The model declares the valid single values. This module checks values that depend on each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.decoder import Decoder
from slurm_gpu.config.yaml_source import Location, YamlSource, read_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.language.adjustments import Moved, read_moves, with_moves
from slurm_gpu.policy.language.amounts import RuleLimits
from slurm_gpu.policy.language.check_adjust import check_adjust
from slurm_gpu.policy.language.check_changes import (
    CHANGES,
    check_changes,
    check_no_circles,
    check_not_urgent,
)
from slurm_gpu.policy.language.hour_sums import UNITS
from slurm_gpu.policy.language.limits import AT_LEAST, LIMITS, LimitUnit, flat_amounts, with_exact
from slurm_gpu.policy.language.membership import has_wildcard
from slurm_gpu.policy.language.model import (
    URGENT,
    Bundle,
    CancelIdle,
    Colocation,
    Dated,
    Goal,
    GpuOwner,
    Group,
    Mode,
    Per,
    Policy,
    PolicyRule,
    RuleException,
    Urgent,
)
from slurm_gpu.policy.language.periods import CALENDAR
from slurm_gpu.policy.language.tiers import expanded
from slurm_gpu.policy.language.value_types import MOST_MEMORY_PER_GPU_MIB
from slurm_gpu.text.units import format_duration, format_memory_mib

# Next to the site file: /etc/slurm-gpu/policy.yaml.
FILE_NAME = "policy.yaml"
# Slurm's default QOS, for jobs that name no QOS.
_ORDINARY = "normal"
# Default slowdown of goal: considerate.
_SLOWDOWN = 1.10
# Words that probably mean settings, although a GPU type could have such a name.
_NOT_GPU_TYPES = {"min", "max", "from", "at_least", "exactly", *LIMITS}
# The tables of amounts in a rule or exception; the last two apply only to single jobs.
_AMOUNTS = ("limits", "at_least", "exactly")
# slurm_gpu.alerts observes a job for four minutes before it judges the job.
_LEAST_WARN_S = 300


def load_policy(path: Path) -> tuple[Policy, YamlSource]:
    """Read and check a policy, and apply the limits that `policy adjust` moved.

    Raise InputError or InvalidFileError naming every mistake.
    """
    moved, source = load_moved(path)
    return moved.policy, source


def load_moved(path: Path) -> tuple[Moved, YamlSource]:
    """Read and check a policy as `load_policy` does, and return it together with its moves."""
    source = read_yaml(path)
    return with_moves(check_policy(source), read_moves(path)), source


def check_policy(source: YamlSource) -> Policy:
    """Convert a parsed policy.yaml to a Policy; raise InvalidFileError listing every mistake in it."""
    if source.value is None:
        message = "the file is empty; it should begin with version: 1, then groups and rules"
        raise InvalidFileError([source.error((), message)])
    return _Check(source).policy()


class _Check(Decoder):
    def policy(self) -> Policy:
        policy = self.read(Policy)
        rules = tuple(self.rule(rule, policy) for rule in policy.rules)
        exceptions = tuple(map(with_exact, policy.exceptions))
        self.unique_ids(rules)
        for name, bundle in policy.bundles.items():
            self.bundle(("bundles", name), bundle)
        for group in policy.groups.values():
            self.group(group, policy.groups)
        self.exceptions(exceptions, rules, policy.groups)
        owners = tuple(self.owner(owner, policy) for owner in policy.owners)
        self.one_owner_each(owners)
        policy = replace(policy, rules=rules, exceptions=exceptions, owners=owners)
        if not self.failed:
            check_no_circles(self, policy)
        if policy.colocation is not None:
            policy = replace(policy, colocation=self.colocation(policy.colocation, policy.groups))
        if policy.cancel_idle is not None:
            self.cancel_idle(policy.cancel_idle, policy.groups)
        if policy.urgent is not None:
            self.urgent(policy.urgent, policy)
            check_not_urgent(self, rules, policy.urgent.qos)
            policy = self.with_urgent(policy.urgent, policy)
        self.finish()
        return expanded(policy)

    def known_groups(self, at: Location, names: Sequence[str] | None, groups: Mapping[str, Group]) -> None:
        for index, name in enumerate(names or ()):
            if name not in groups:
                hint = did_you_mean(name, groups)
                self.fail((*at, index), f"{at[-1]}: {shown(name)} is not a group; {hint}")

    def group(self, group: Group, groups: Mapping[str, Group]) -> None:
        at: Location = ("groups", group.name)
        self.days(at, group)
        for key, names in (("in", group.all_of), ("not", group.none_of)):
            self.known_groups((*at, key), names, groups)
            for index, name in enumerate(names or ()):
                if name in groups and groups[name].days_json():
                    message = (
                        f"{key}: group {name} has from or until; only a group that a rule names can have days"
                    )
                    self.fail((*at, key, index), message)
        if _is_circular(group.name, groups):
            self.fail(at, f"group {group.name} is defined by itself (in: or not:)", key=True)

    def managed_qos(self, at: Location, key: str, name: str | None, policy: Policy) -> None:
        if name and not any(fnmatchcase(name, pattern.lower()) for pattern in policy.manages.qos or ()):
            self.fail_once(
                (*at, key) if self.has(*at, key) else at,
                f"{key}: {name} is not under manages: qos, so `policy apply` cannot create it",
            )

    def rule(self, rule: PolicyRule, policy: Policy) -> PolicyRule:
        at = rule.location
        self.group_of(at, rule.group, policy.groups)
        if not self.has(*at, "tiers"):
            if not self.has(*at, "for") and isinstance(self.at(*at), dict):
                self.fail(at, f"{self.name_of(at)} lacks for; write for: a text")
            self.lacks(at, (*_AMOUNTS, "options", *CHANGES))
        for key in (*_AMOUNTS, "options") if self.has(*at, "tiers") else ():
            if self.has(*at, key):
                message = f"{key}: this rule has tiers; write it in a tier"
                self.fail_once((*at, key), message, key=True)
        self.amounts(at)
        self.tiers(rule, policy)
        if rule.per is not None:
            self.limits_per(at, rule.per)
        places = (at, *(tier.location for tier in rule.tiers or ()))
        if rule.hard and not any(self.periods((*one, "limits", key)) for one in places for key in UNITS):
            message = "hard: only limits on hours by period can be hard, such as gpu_hours: {month: 500}"
            self.fail_once((*at, "hard"), message, key=True)
        elif rule.hard and any(self.periods((*one, "limits", "billing_hours")) for one in places):
            message = (
                "hard: Slurm does not report what pending jobs will be billed, so billing_hours cannot be "
                "hard; write them in another rule"
            )
            self.fail_once((*at, "hard"), message, key=True)
        if rule.carry_over:
            self.carry_over(at, places)
        if self.has(*at, "when", "at") and not any(self.has(*at, "when", key) for key in ("days", "hours")):
            message = "at: without days or hours, the rule would apply at any time; add days or hours"
            self.fail_once((*at, "when", "at"), message)
        if not self.has(*at, "mode"):
            rule = replace(rule, mode=policy.mode)
        if not self.has(*at, "on_error"):
            rule = replace(rule, on_error=policy.on_error)
        check_changes(self, rule)
        rule = with_exact(replace(rule, tiers=tuple(map(with_exact, rule.tiers or ()))))
        return check_adjust(self, rule) if self.has(*at, "adjust") else rule

    def carry_over(self, at: Location, places: Sequence[Location]) -> None:
        """Check that these tables of limits limit hours by period, and only by calendar periods."""
        budgets = [(*one, "limits", key) for one in places for key in UNITS]
        periods = [(*one, period) for one in budgets for period in self.periods(one)]
        if not periods:
            message = (
                "carry_over: only limits on hours by period can carry over, such as gpu_hours: {month: 500}"
            )
            self.fail_once((*at, "carry_over"), message, key=True)
        for place in periods:
            if place[-1] not in CALENDAR:
                message = (
                    f"{place[-1]}: a rolling window has no previous period from which hours carry over; "
                    f"write {', '.join(CALENDAR[:-1])} or {CALENDAR[-1]}, or leave carry_over out"
                )
                self.fail_once(place, message, key=True)

    def periods(self, at: Location) -> Sequence[str]:
        """Return the periods of a limit on hours; none if the limit is one number."""
        table = self.at(*at)
        return list(map(str, table)) if isinstance(table, dict) else []

    def lacks(self, at: Location, known: Sequence[str]) -> None:
        """Check that a rule or exception sets an amount."""
        table = self.at(*at)
        if isinstance(table, dict) and table.keys().isdisjoint(known):
            self.fail(at, f"{self.name_of(at)} lacks {', '.join(known[:-1])} or {known[-1]}")

    def amounts(self, at: Location) -> None:
        """Check that a rule, tier or exception sets no amount twice."""
        for section in ("at_least", "exactly"):
            if isinstance(self.at(*at, section, "gpus"), dict):
                message = "gpus: write one number for all types, such as 1, and limit gpu_types"
                self.fail((*at, section, "gpus"), message, key=True)
        exact = self.at(*at, "exactly")
        for key in exact if isinstance(exact, dict) else ():
            for section in ("limits", "at_least"):
                if self.has(*at, section, key):
                    message = f"{key}: {section}: already sets it; write it once"
                    self.fail((*at, "exactly", key), message, key=True)

    def place(self, at: Location, key: str) -> Location:
        """Return the location of an amount by its key in flat_amounts."""
        parts = key.removeprefix(AT_LEAST).split(":")
        section = "at_least" if key.startswith(AT_LEAST) else "limits"
        return (*at, section if self.has(*at, section, parts[0]) else "exactly", *parts)

    def group_of(self, at: Location, name: str | None, groups: Mapping[str, Group]) -> None:
        if name and name not in groups:
            self.fail_once((*at, "for"), f"for: {shown(name)} is not a group; {did_you_mean(name, groups)}")

    def tiers(self, rule: PolicyRule, policy: Policy) -> None:
        seen: set[str | None] = set()
        for tier in rule.tiers or ():
            at = tier.location
            self.group_of(at, tier.group, policy.groups)
            self.amounts(at)
            if None in seen:
                self.fail(at, "tiers: this tier never applies: the tier without for: must be the last")
            elif tier.group is not None and tier.group in seen:
                self.fail(at, f"tiers: there is an earlier tier for {tier.group}")
            if tier.group is not None or not self.has(*at, "for"):
                seen.add(tier.group)
            if rule.per is not None:
                self.limits_per(at, rule.per)
        keys = (*_AMOUNTS, "options")
        if rule.tiers and not any(self.has(*tier.location, key) for tier in rule.tiers for key in keys):
            self.fail_once((*rule.location, "tiers"), "tiers: no tier has limits", key=True)

    def limits_per(self, at: Location, per: Per) -> None:
        for section in ("at_least", "exactly", "options", *CHANGES):
            if per is not Per.JOB and self.has(*at, section):
                hint = "write it in a rule with per: job"
                self.fail(
                    (*at, section), f"{section!r} is not allowed in a rule with per: {per}; {hint}", key=True
                )
        limits = self.at(*at, "limits")
        for key in limits if isinstance(limits, dict) else ():
            if key in LIMITS and LIMITS[key].measure is LimitUnit.GPUS and isinstance(limits[key], dict):
                self.gpu_types((*at, "limits", key), limits[key])
            for period in self.periods((*at, "limits", key)) if key in UNITS else ():
                if isinstance(by_type := self.at(*at, "limits", key, period), dict):
                    self.gpu_types((*at, "limits", key, period), by_type)
            if key in UNITS and isinstance(limits[key], dict) == (per is Per.JOB):
                written = "one number, such as 8" if per is Per.JOB else "a table, such as {week: 500}"
                self.fail_once(
                    (*at, "limits", key), f"{key}: in a rule with per: {per}, write {written}", key=True
                )
            if key in UNITS and per is not Per.JOB and self.has(*at, "jobs"):
                message = f"{key}: hours are counted only for whole groups; leave jobs: out"
                self.fail_once((*at, "limits", key), message, key=True)
            if key not in LIMITS or LIMITS[key].allowed_per(per):
                continue
            where = "per: job" if LIMITS[key].allowed_per(Per.JOB) else "per: user, account or group"
            message = f"{key!r} is not allowed in a rule with per: {per}; write it in a rule with {where}"
            sums = [name for name in (f"{key}_total", f"{key}_running") if name in LIMITS]
            if sums:
                message += f"; the limit over all jobs of the {per} is {' or '.join(sums)}"
            self.fail((*at, "limits", key), message, key=True)

    def gpu_types(self, at: Location, by_type: Mapping[object, object]) -> None:
        for name in map(str, by_type):
            if name.lower() in _NOT_GPU_TYPES:
                hint = f"{at[-1]} is a maximum: write {at[-1]}: 8, or {at[-1]}: {{a100: 8}}"
                if at[-1] == "gpus":
                    hint += "; for a minimum, write at_least: {gpus: 1} in the rule"
                if name.lower() in LIMITS:
                    hint = "write this limit directly under limits:"
                self.fail((*at, name), f"{at[-1]}: {name!r} is not a GPU type; {hint}", key=True)

    def unique_ids(self, rules: Sequence[PolicyRule]) -> None:
        seen: set[str] = set()
        for rule in rules:
            if rule.id and rule.id in seen:
                message = f"id: {rule.id!r} is the id of an earlier rule; ids must be unique"
                self.fail((*rule.location, "id"), message)
            seen.add(rule.id)

    def bundle(self, at: Location, bundle: Bundle) -> None:
        if not any(self.has(*at, key) for key in ("cpus", "memory", "partitions")):
            self.fail_once(at, f"bundle {bundle.name} sets nothing; add cpus, memory or partitions")
        if bundle.gpu_types is not None and bundle.mgpu == 0:
            message = "a bundle with gpus: 0 cannot have gpu_types; leave them out"
            self.fail((*at, "gpu_types"), message, key=True)
        place, mib = (*at, "memory"), bundle.memory_mib
        if mib == 0:
            self.fail(place, "memory: 0 allows no job; write more, or leave it out")
        elif mib and bundle.mgpu and (per_gpu := mib * 1000 / bundle.mgpu) > MOST_MEMORY_PER_GPU_MIB:
            what = f"{format_memory_mib(mib)} is {format_memory_mib(per_gpu)} for each GPU"
            self.fail(place, f"memory: {what}, more than any node has")

    def days(self, at: Location, dated: Dated) -> None:
        first, last = dated.days
        if first > last:
            self.fail((*at, "from"), f"from: {first} is after until: {last}", key=True)

    def exceptions(
        self, exceptions: Sequence[RuleException], rules: Sequence[PolicyRule], groups: Mapping[str, Group]
    ) -> None:
        by_id = {rule.id: rule for rule in rules if rule.id}
        seen: set[tuple[str, str]] = set()
        for exception in exceptions:
            at = exception.location
            if self.has(*at, "user") == self.has(*at, "group"):
                self.fail(at, f"{self.name_of(at)} needs either user: or group:")
                continue
            if exception.group and exception.group not in groups:
                hint = did_you_mean(exception.group, groups)
                self.fail((*at, "group"), f"group: {shown(exception.group)} is not a group; {hint}")
            pair = (exception.rule, exception.whom)
            if all(pair) and pair in seen:
                message = f"{exception.whom} already has an exception to rule {exception.rule}"
                self.fail(exception.location, message)
            seen.add(pair)
            self.days(exception.location, exception)
            self.lacks(exception.location, _AMOUNTS)
            self.amounts(exception.location)
            self.exception(exception, by_id)

    def exception(self, exception: RuleException, by_id: Mapping[str, PolicyRule]) -> None:
        at, rule = exception.location, by_id.get(exception.rule)
        place = (*at, "rule")
        if rule is None:
            if exception.rule is not None:
                hint = did_you_mean(exception.rule, by_id)
                self.fail(place, f"rule: {shown(exception.rule)} is not a rule; {hint}")
        elif rule.per is Per.GROUP:
            self.fail(
                place,
                f"rule: {rule.id!r} counts the whole group together, so {exception.whom} cannot have an "
                "exception; raise the rule's limit, or write tiers or another rule",
            )
        elif rule.per is Per.ACCOUNT and exception.user is not None:
            self.fail(
                place,
                f"rule: {rule.id!r} counts all jobs of an account together, so a user cannot have an "
                "exception; write group: and a group of accounts",
            )
        elif rule.tiers and exception.group is not None:
            self.fail(place, f"rule: {rule.id!r} has tiers; add a tier for group {exception.group} to it")
        elif rule.per is not None and exception.limits is not None:
            self.limits_per(at, rule.per)
            if any(self.has_failed((*rule.location, name)) for name in (*_AMOUNTS, "tiers")):
                return
            known = {key for part in rule.with_limits for key in flat_amounts(part)}
            for key in flat_amounts(exception).keys() - known:
                message = (
                    f"{key!r}: rule {rule.id} does not set this limit, so an exception cannot replace it"
                )
                self.fail_once(self.place(at, key), message, key=True)

    def owner(self, owner: GpuOwner, policy: Policy) -> GpuOwner:
        at, group = owner.location, policy.groups.get(owner.group)
        if group is None:
            hint = did_you_mean(owner.group, policy.groups)
            self.fail(at, f"owner {shown(owner.group)} is not a group; {hint}", key=True)
        elif (
            replace(group, accounts=None) != Group(group.name)
            or group.accounts is None
            or any(map(has_wildcard, group.accounts))
        ):
            self.fail(
                at,
                f"owner {owner.group}: a group that owns GPUs must be defined by accounts only, without "
                f"wildcards, such as {owner.group}: {{accounts: [{owner.group}]}}",
                key=True,
            )
        if owner.lend_in == _ORDINARY:
            self.fail(
                (*at, "lend_in"),
                f"lend_in: jobs without --qos run in {_ORDINARY} and would all be preempted; "
                "name another QOS, such as sg-scavenger",
            )
        if owner.qos in {other.lend_in for other in policy.owners} | {_ORDINARY}:
            self.fail_once(
                (*at, "qos") if self.has(*at, "qos") else at,
                f"{owner.qos} cannot be the QOS of {owner.group}'s own jobs, since other jobs run in it; "
                "set qos: to another one",
            )
        self.managed_qos(at, "qos", owner.qos, policy)
        self.managed_qos(at, "lend_in", owner.lend_in, policy)
        accounts = () if group is None else group.accounts or ()
        return replace(owner, accounts=tuple(account.lower() for account in accounts))

    def one_owner_each(self, owners: Sequence[GpuOwner]) -> None:
        of_account: dict[str, GpuOwner] = {}
        of_qos: dict[str, GpuOwner] = {}
        for owner in owners:
            for account in owner.accounts:
                if (first := of_account.setdefault(account, owner)) is not owner:
                    message = f"account {account} already belongs to owner {first.group}"
                    self.fail(owner.location, message, key=True)
            if (first := of_qos.setdefault(owner.qos, owner)) is not owner:
                self.fail(owner.location, f"qos {owner.qos} already belongs to owner {first.group}", key=True)

    def colocation(self, colocation: Colocation, groups: Mapping[str, Group]) -> Colocation:
        at: Location = ("colocation",)
        self.known_groups((*at, "allowed_groups"), colocation.allowed_groups, groups)
        self.known_groups((*at, "required_groups"), colocation.required_groups, groups)
        planner, slowdown = colocation.planner, colocation.slowdown
        if colocation.goal is Goal.CONSIDERATE:
            slowdown = _SLOWDOWN if slowdown is None else slowdown
        elif self.has(*at, "slowdown"):
            message = "slowdown: it applies only with goal: considerate; add this goal, or leave slowdown out"
            self.fail_once((*at, "slowdown"), message)
        if planner in LEARNED_PLANNERS and not self.has(*at, "model"):
            self.fail(
                (*at, "planner"),
                f"planner: {planner} requires model:, a file that `slurm-gpu colocation train --planner "
                f"{planner}` writes",
            )
        elif planner not in LEARNED_PLANNERS and self.has(*at, "model"):
            message = f"model: planner {planner} does not use a model; leave it out"
            self.fail_once((*at, "model"), message)
        return replace(colocation, slowdown=slowdown)

    def cancel_idle(self, idle: CancelIdle, groups: Mapping[str, Group]) -> None:
        at: Location = ("cancel_idle",)
        self.known_groups((*at, "for"), idle.groups, groups)
        self.known_groups((*at, "exempt"), idle.exempt, groups)
        times = idle.warn_s or ()
        for index, (before, later) in enumerate(itertools.pairwise((_LEAST_WARN_S - 1, *times))):
            text = format_duration(later)
            if index == 0 and later <= before:
                least = format_duration(_LEAST_WARN_S)
                message = f"warn: {text} is too early: jobs are not checked before {least}"
                self.fail((*at, "warn", 0), message)
            elif later <= before:
                message = f"warn: {text} must be later than the previous warning, {format_duration(before)}"
                self.fail((*at, "warn", index), message)
        if times and idle.after_s is not None and idle.after_s <= times[-1]:
            self.fail(
                (*at, "after"),
                f"after: {format_duration(idle.after_s)} must be later than the last warning, "
                f"{format_duration(times[-1])}; no job is ended without a warning",
            )

    def urgent(self, urgent: Urgent, policy: Policy) -> None:
        at: Location = ("urgent",)
        self.known_groups((*at, "for"), urgent.groups, policy.groups)
        for index, name in enumerate(urgent.groups or ()):
            group, place = policy.groups.get(name), (*at, "for", index)
            if group is None:
                continue
            if group.qos is not None or group.partitions is not None or group.all_of or group.none_of:
                self.fail(
                    place,
                    f"for: group {name} has qos, partitions, in or not; define it by users, unix_groups or "
                    "accounts only",
                )
            elif group.users is group.unix_groups is group.accounts is None:
                message = f"for: group {name} matches every user; add users, unix_groups or accounts to it"
                self.fail(place, message)
        if urgent.qos == _ORDINARY:
            message = f"qos: jobs without --qos run in {_ORDINARY} and would all be urgent"
            self.fail((*at, "qos"), message)
        else:
            self.managed_qos(at, "qos", urgent.qos, policy)
        if urgent.qos in urgent.preempts:
            message = f"preempts: urgent jobs of {urgent.qos} cannot preempt one another"
            self.fail((*at, "preempts"), message)

    def with_urgent(self, urgent: Urgent, policy: Policy) -> Policy:
        """Return the policy with the group and the rule that limit how many urgent jobs run at once."""
        if URGENT in policy.groups:
            message = f"group {URGENT} is reserved for `urgent:`; choose another name"
            self.fail(("groups", URGENT), message, key=True)
        for rule in policy.rules:
            if rule.id == URGENT:
                message = f"id: {URGENT!r} is the id of `urgent:`; choose another id"
                self.fail((*rule.location, "id"), message)
        limits = RuleLimits(jobs_running=urgent.jobs_running)
        rule = PolicyRule(
            URGENT, URGENT, Per.GROUP, urgent.why, limits, mode=Mode.ENFORCE, location=("urgent",)
        )
        group = Group(URGENT, qos=(urgent.qos,))
        return replace(policy, groups={**policy.groups, URGENT: group}, rules=(*policy.rules, rule))


def _is_circular(name: str, groups: Mapping[str, Group]) -> bool:
    """Return whether a group is defined by itself, directly or through other groups."""
    reached, left = set[str](), [name]
    while left:
        group = groups.get(left.pop())
        others = set() if group is None else {*(group.all_of or ()), *(group.none_of or ())}
        left += others - reached
        reached |= others
    return name in reached
