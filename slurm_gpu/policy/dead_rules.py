"""Find valid but probably unintended settings, such as rules that have no effect or refuse every job."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator

from slurm_gpu.config.yaml_source import Location, YamlSource
from slurm_gpu.errors import InputError
from slurm_gpu.policy.dead_parts import Doubt, idle_parts
from slurm_gpu.policy.language.coverage import (
    binds_whenever,
    covered_limits,
    is_within,
    least_exceeds,
    wider_keys,
)
from slurm_gpu.policy.language.limit_text import flat_text
from slurm_gpu.policy.language.limits import (
    AT_LEAST,
    LimitKind,
    LimitUnit,
    LimitValue,
    flat_amounts,
    flat_limits,
    set_limits,
    steps_of,
)
from slurm_gpu.policy.language.membership import is_among
from slurm_gpu.policy.language.model import (
    Bundle,
    Group,
    JobTime,
    Mode,
    Need,
    Policy,
    PolicyRule,
    RuleException,
)
from slurm_gpu.policy.language.names import ResolvedNames
from slurm_gpu.policy.language.tiers import whole_rules, written_groups
from slurm_gpu.policy.native.unenforced import unenforced_limits
from slurm_gpu.text.units import format_duration, format_gpus

_LEAST_GRACE_S = 1800


def find_doubts(policy: Policy, names: ResolvedNames, source: YamlSource, today: dt.date) -> list[InputError]:
    """Return an error for each doubtful setting, in the order of the file.

    `today` is the day in the site's time zone.
    """
    found = [
        *_ended(policy, today),
        *_never(policy),
        *_empty_groups(policy, names),
        *idle_parts(policy),
        *_needless_exceptions(policy),
        *_needless_limits(policy),
        *_needless_minimums(policy),
        *_unenforced_limits(policy, names, today),
        *_odd_steps(policy),
        *_impossible_amounts(policy),
        *_opposite_options(policy),
        *_closed_ways(policy),
        *_hidden_bundles(policy),
        *_uncounted_shares(policy),
        *_idle_sharing(policy),
        *_hasty_ends(policy),
        *_only_observing(policy, source),
    ]
    # Several parts of a rule can produce the same message.
    errors = [
        source.error(_written(location, source), message, key=True)
        for location, message in dict.fromkeys(found)
    ]
    return sorted(errors, key=lambda error: (error.line, error.column))


def _written(location: Location, source: YamlSource) -> Location:
    """Return the location of an amount in the file: under `exactly:` if the file sets it there."""
    exact = tuple("exactly" if part in ("limits", "at_least") else part for part in location)
    return exact if exact in source.key_positions else location


def _ended(policy: Policy, today: dt.date) -> Iterator[Doubt]:
    for group in written_groups(policy).values():
        if group.days[1] < today:
            message = f"group {group.name} expired on {group.until}: its rules do not apply to any job"
            yield ("groups", group.name, "until"), message
    for exception in policy.exceptions:
        if exception.days[1] < today:
            message = (
                f"the exception for {exception.whom} from rule {exception.rule} expired on {exception.until}"
            )
            yield (*exception.location, "until"), message


def _never(policy: Policy) -> Iterator[Doubt]:
    """Find rules that never apply because their hours are not on the days of their group."""
    for rule in whole_rules(policy):
        group, when = policy.groups.get(rule.group, Group("")), rule.when
        first, last = group.days
        if when is None or when.at is JobTime.RUN or (last - first).days >= 7:
            continue
        days = {(first + dt.timedelta(n)).weekday() for n in range((last - first).days + 1)}
        if days.isdisjoint(
            when.days | ({(day + 1) % 7 for day in when.days} if when.to_min > 1440 else set())
        ):
            message = f"rule {rule.id} never applies: its hours are not on the days of group {group.name}:"
            yield (*rule.location, "when"), f"{message} {group.days_text()}"


def _empty_groups(policy: Policy, names: ResolvedNames) -> Iterator[Doubt]:
    for group in written_groups(policy).values():
        for index, name in enumerate(group.none_of):
            if is_within(policy, group.name, name):
                message = f"group {group.name} is empty: all of its jobs are in group {name}"
                yield ("groups", group.name, "not", index), message
        if group.unix_groups is None or not set(group.unix_groups) <= names.members.keys():
            continue
        members = {uid for unix_group in group.unix_groups for uid in names.members[unix_group]}
        users = names.uids_of(group.users or ())
        unix_groups = ", ".join(group.unix_groups)
        if not members:
            message = f"UNIX group {unix_groups} has no members, so group {group.name} is empty"
            yield ("groups", group.name), message
        elif users and not members & users:
            message = f"group {group.name} is empty: no user of the group is in UNIX group {unix_groups}"
            yield ("groups", group.name), message


def _needless_exceptions(policy: Policy) -> Iterator[Doubt]:
    rules = {rule.id: rule for rule in whole_rules(policy)}
    for exception in policy.exceptions:
        rule = rules[exception.rule]
        group = policy.groups.get(rule.group, Group(""))
        if exception.user and group.users is not None and not is_among(exception.user, group.users):
            message = f"rule {rule.id} does not apply to {exception.user}, who is not in group {group.name}"
            yield (*exception.location, "user"), message
        first, last = zip(group.days, exception.days, strict=True)
        if exception.user and max(first) > min(last):
            message = f"the exception for {exception.user} never applies: group {group.name} has other days"
            yield exception.location, message
        limits = [flat_amounts(part) for part in rule.tiers or (rule,)]
        for key, value in flat_amounts(exception).items():
            if all(part[key] == value for part in limits if key in part):
                message = (
                    f"rule {rule.id} has the same limit, so the exception for {exception.whom} has no effect"
                )
                yield _place(exception, key), message


def _needless_limits(policy: Policy) -> Iterator[Doubt]:
    for covered in covered_limits(policy):
        tighter = flat_text(covered.by.limits, covered.by_key)
        by = "this rule" if covered.by is covered.rule else f"rule {covered.by.id}"
        message = (
            f"{covered.key} of rule {covered.rule.id} has no effect: {by} already allows {tighter} "
            f"per {covered.by.per}"
        )
        yield _place(covered.rule, covered.key), message


def _needless_minimums(policy: Policy) -> Iterator[Doubt]:
    for rule in policy.rules:
        limits = flat_limits(rule.limits)
        for key, value in flat_limits(rule.at_least).items():
            if value == 0 and limits.get(key) != 0:
                yield (
                    _place(rule, f"{AT_LEAST}{key}"),
                    f"a minimum of 0 has no effect: {key} of rule {rule.id}",
                )


def _unenforced_limits(policy: Policy, names: ResolvedNames, today: dt.date) -> Iterator[Doubt]:
    for rule, key, why in unenforced_limits(policy, names, today):
        yield (*rule.location, "limits", key), f"nothing enforces {key} of rule {rule.id}: {why}"


def _uncounted_shares(policy: Policy) -> Iterator[Doubt]:
    """Find limits on running GPUs; Slurm does not count jobs that share a GPU toward them."""
    if policy.colocation is None:
        return
    rules = sorted({rule.id for rule in policy.rules if rule.limits.gpus_running is not None})
    if rules:
        message = f"Slurm does not count jobs that share a GPU toward gpus_running of rule {', '.join(rules)}"
        yield ("colocation",), message
    if policy.owners:
        yield ("colocation",), "Slurm does not count jobs that share a GPU toward the GPUs of owners"


def _idle_sharing(policy: Policy) -> Iterator[Doubt]:
    """Find settings that prevent jobs from sharing GPUs."""
    colocation = policy.colocation
    if colocation is None:
        return
    if colocation.slowdown is not None and colocation.slowdown <= 1:
        message = (
            "with slowdown: 1, almost no job shares a GPU, since nearly every job slows others down; "
            "use a larger value such as 1.10"
        )
        yield ("colocation", "slowdown"), message
    if colocation.max_gpu_fraction <= 0:
        message = "with max_gpu_fraction: 0, no job shares a GPU, since every job needs part of one"
        yield ("colocation", "max_gpu_fraction"), message
    for index, name in enumerate(colocation.allowed_groups or ()):
        if name in colocation.required_groups:
            message = f"group {name} is also in required_groups; remove it from allowed_groups"
            yield ("colocation", "allowed_groups", index), message


def _hasty_ends(policy: Policy) -> Iterator[Doubt]:
    """Find idle warnings that leave users too little time to act."""
    cancel_idle = policy.cancel_idle
    if cancel_idle is None:
        return
    left_s = cancel_idle.after_s - cancel_idle.warn_s[-1]
    if left_s < _LEAST_GRACE_S:
        message = (
            f"after: the last warning is sent only {format_duration(left_s)} before the job ends; allow at "
            f"least {format_duration(_LEAST_GRACE_S)}"
        )
        yield ("cancel_idle", "after"), message
    for index, name in enumerate(cancel_idle.groups or ()):
        if name in cancel_idle.exempt:
            yield ("cancel_idle", "for", index), f"group {name} is also in exempt: its jobs are never ended"


def _only_observing(policy: Policy, source: YamlSource) -> Iterator[Doubt]:
    """Find sections that only observe although the rules of the file are enforced."""
    if policy.mode is not Mode.ENFORCE:
        return
    places = [("bundles", name) for name in policy.bundles]
    for place in (*places, ("colocation",), ("cancel_idle",)):
        table = source.value
        for part in place:
            table = table.get(part, {"mode": None})
        if "mode" not in table:
            message = (
                f"{'.'.join(place)} only observes: mode: enforce at the top of the file applies to rules; "
                "write mode: enforce here too, or mode: observe"
            )
            yield place, message


def _odd_steps(policy: Policy) -> Iterator[Doubt]:
    for rule in policy.rules:
        most = None if rule.limits.gpus is None else rule.limits.gpus.all_mgpu
        for section, kind, value in _with_steps(rule):
            place, steps = (*rule.location, section, kind.key), steps_of(value)
            for before, step in itertools.pairwise(steps):
                if kind.measure is LimitUnit.WALLTIME and section == "limits" and step.limit > before.limit:
                    shorter, longer = format_duration(before.limit), format_duration(step.limit)
                    message = (
                        f"walltime increases from {shorter} to {longer} at {format_gpus(step.from_mgpu)}; "
                        "usually it decreases with the number of GPUs"
                    )
                    yield place, message
            for step in steps:
                if most is not None and step.from_mgpu > most:
                    message = (
                        f"the {kind.key} from {format_gpus(step.from_mgpu)} on never applies: "
                        f"the rule allows at most {format_gpus(most)}"
                    )
                    yield place, message


def _with_steps(rule: PolicyRule) -> Iterator[tuple[str, LimitKind, LimitValue]]:
    """Yield the section, kind and value of each limit and minimum; yield exact amounts as limits only."""
    for kind, value in set_limits(rule.limits):
        yield "limits", kind, value
    for kind, value in set_limits(rule.at_least):
        if kind.of(rule.limits) != value:
            yield "at_least", kind, value


def _impossible_amounts(policy: Policy) -> Iterator[Doubt]:
    """Find minimums above a limit that applies to the same jobs."""
    enforced = [
        (rule, flat_limits(rule.at_least), flat_limits(rule.limits))
        for rule in policy.rules
        if rule.mode is Mode.ENFORCE
    ]
    for (rule, minimums, _), (other, _, limits) in itertools.product(enforced, repeat=2):
        pairs = [(key, wider) for key in minimums for wider in wider_keys(key) if wider in limits]
        if not pairs or not (binds_whenever(policy, other, rule) or binds_whenever(policy, rule, other)):
            continue
        for key, wider in pairs:
            mgpu = least_exceeds(minimums[key], limits[wider])
            if mgpu is None:
                continue
            by_gpus = isinstance(minimums[key], list) or isinstance(limits[wider], list)
            jobs = f"job with {format_gpus(mgpu)}" if by_gpus else "job"
            most = "its maximum" if other is rule else f"the maximum of {wider} in rule {other.id}"
            message = f"no {jobs} satisfies both the minimum of {key} in rule {rule.id} and {most}"
            yield _place(rule, f"{AT_LEAST}{key}"), message


def _opposite_options(policy: Policy) -> Iterator[Doubt]:
    """Find options that one rule requires and another forbids."""
    enforced = [rule for rule in policy.rules if rule.options and rule.mode is Mode.ENFORCE]
    for rule, other in itertools.permutations(enforced, 2):
        for option, need in rule.options.items():
            if (need, other.options.get(option)) == (Need.REQUIRED, Need.FORBIDDEN) and (
                binds_whenever(policy, other, rule) or binds_whenever(policy, rule, other)
            ):
                message = f"no job satisfies both rules: rule {other.id} forbids {option}"
                yield (*rule.location, "options", option), message


def _closed_ways(policy: Policy) -> Iterator[Doubt]:
    """Find rules that together allow no partition, no GPU type or no QOS."""
    enforced = [rule for rule in policy.rules if rule.mode is Mode.ENFORCE]
    for rule, key in itertools.product(enforced, ("partitions", "qos")):
        allowed, of_group = getattr(rule.limits, key), getattr(policy.groups[rule.group], key)
        if (
            allowed
            and of_group
            and not any(is_among(name, {*of_group, *map(str.lower, of_group)}) for name in allowed)
        ):
            message = (
                f"rule {rule.id} refuses every job: group {rule.group} contains only jobs in "
                f"{', '.join(of_group)}, but the rule allows only {', '.join(allowed)}"
            )
            yield (*rule.location, "limits", key), message
    for key, what in (("partitions", "partition"), ("gpu_types", "GPU type"), ("qos", "QOS")):
        pairs = itertools.combinations(
            [rule for rule in enforced if getattr(rule.limits, key) is not None], 2
        )
        for rule, other in pairs:
            first, second = getattr(rule.limits, key), getattr(other.limits, key)
            if set(first).isdisjoint(second) and (
                binds_whenever(policy, other, rule) or binds_whenever(policy, rule, other)
            ):
                message = f"no {what} satisfies both rules: rule {rule.id} allows only {', '.join(first)}"
                yield (*other.location, "limits", key), message


def _hidden_bundles(policy: Policy) -> Iterator[Doubt]:
    for earlier, bundle in itertools.combinations(policy.bundles.values(), 2):
        if _takes_all(earlier, bundle):
            message = (
                f"bundle {bundle.name} never applies: bundle {earlier.name} comes first and matches all of "
                "its jobs"
            )
            yield ("bundles", bundle.name), message


def _takes_all(earlier: Bundle, bundle: Bundle) -> bool:
    if (earlier.mgpu > 0) != (bundle.mgpu > 0):
        return False
    pairs = ((earlier.partitions, bundle.partitions), (earlier.gpu_types, bundle.gpu_types))
    return all(
        earlier_names is None or (names is not None and set(names) <= set(earlier_names))
        for earlier_names, names in pairs
    )


def _place(holder: PolicyRule | RuleException, key: str) -> Location:
    section = "at_least" if key.startswith(AT_LEAST) else "limits"
    return (*holder.location, section, *key.removeprefix(AT_LEAST).split(":"))
