"""Compute how much of each limit a user's jobs use, as a pure function of policy and use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_gpu.controller.queue.usage import Subject, Usage, UsageTotals
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.policy.language.hour_sums import committed_key, split_type, sum_key
from slurm_gpu.policy.language.job_changes import options_text
from slurm_gpu.policy.language.limits import AT_LEAST, LIMITS, LimitKind, LimitUnit, Scope
from slurm_gpu.policy.language.periods import BEFORE, CALENDAR, this_text
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, RuleInForce
from slurm_gpu.slurm.submission import UserAssociations

_STATE = {Scope.TOTAL: " running + pending", Scope.PENDING: " pending", Scope.RUNNING: " running"}
_UNITS = {
    LimitUnit.GPUS: "GPUs",
    LimitUnit.COUNT: "count",
    LimitUnit.MEMORY: "MiB",
    LimitUnit.WALLTIME: "s",
    LimitUnit.NAMES: "names",
}


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One limit and its use; `kind.measure` determines the unit: mgpu, MiB, seconds, hours or counts."""

    rule: RuleInForce
    kind: LimitKind
    of: str | None
    """The GPU type or the period of the limit, or both, as in `week:a100`; None if it has neither."""
    limit: Any
    """The limit, including `carried`."""
    used: float | None
    """The amount in use; None for limits on single jobs, and if the amount is unknown."""
    exception: Mapping[str, Any] | None = None
    """The exception that sets the limit, if any."""
    is_minimum: bool = False
    account: str | None = None
    """The account whose jobs a rule with `per: account` counts; None for other rules or if unknown."""
    carried: float | None = None
    """The part of the limit carried over from the previous period; None if the rule carries nothing over."""

    @property
    def until_s(self) -> int | None:
        """The end of the exception that sets the limit; None if it has no end."""
        return None if self.exception is None else self.exception.get("until_s")

    @property
    def key(self) -> str:
        """The key of the limit in the compiled policy."""
        key = self.kind.key if self.of is None else f"{self.kind.key}:{self.of}"
        return f"{AT_LEAST}{key}" if self.is_minimum else key

    @property
    def _scope(self) -> Scope:
        return Scope.JOB if self.rule.per == "job" else self.kind.scope

    @property
    def on(self) -> str:
        """The limited resource in words, for example "GPUs (a100) running"."""
        subject = "each job's " if self._scope is Scope.JOB else ""
        what = f"{subject}{'minimum ' if self.is_minimum else ''}{self.kind.what}"
        if self.of is None:
            return f"{what}{_STATE.get(self._scope, '')}"
        if self.kind.scope is not Scope.PERIOD:
            return f"{what} ({self.of}){_STATE.get(self._scope, '')}"
        period, gpu_type = split_type(self.of)
        of_type = "" if gpu_type is None else f" ({gpu_type})"
        return f"{what}{of_type}{' used or committed' if self.rule.hard else ''} {this_text(period)}"

    @property
    def left(self) -> float | None:
        """The amount still available; 0 if the limit is exceeded, None if the use is unknown."""
        return None if self.used is None else max(0.0, self.limit - self.used)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object described in docs/commands.md, with amounts in GPUs instead of mgpu."""
        scale = 1000 if self.kind.measure is LimitUnit.GPUS else 1
        values = {"limit": self.limit, "used": self.used, "left": self.left}
        amounts = {
            k: v / scale if isinstance(v, int | float) and scale != 1 else v for k, v in values.items()
        }
        if isinstance(self.limit, Mapping):
            amounts["limit"] = _listed(self.limit)
        return {
            "rule": self.rule.id,
            "group": self.rule.group.title,
            "per": self.rule.per,
            "account": self.account,
            "on": self.on,
            "key": self.key,
            "unit": _UNITS.get(self.kind.measure, self.kind.what),
            **amounts,
            "carried_over": self.carried,
            "mode": self.rule.mode,
            "over_limit": None if self.rule.over_limit is None else options_text(self.rule.over_limit),
            "why": self.rule.why,
            "until_s": self.until_s,
        }


def quota_of(
    policy: PolicyInForce,
    snapshot: Snapshot,
    user: str,
    uid: int,
    places: UserAssociations,
    now_s: float,
    by_rule: Mapping[str, Usage] | None = None,
) -> list[QuotaLine]:
    """Return all limits that can apply to the user's jobs, in the order of the policy.

    Snapshots have sums over whole groups, so rules that count only some of a group's jobs use `by_rule`.
    Without `by_rule`, the use for these rules is unknown. Limits of a group are left out if the user's
    accounts and QOS allow no jobs in the group.
    """
    lines: list[QuotaLine] = []
    for rule in policy.rules:
        if _may_bind(rule.group, uid, places, now_s):
            usage = (by_rule or {}).get(rule.id) if rule.counts_some_jobs else snapshot.usage
            for subject in _subjects(rule, user, uid, places):
                lines += _lines(rule, usage, snapshot, subject, uid, now_s)
    return lines


def _subjects(rule: RuleInForce, user: str, uid: int, places: UserAssociations) -> Iterator[Subject]:
    """Yield the subject of a rule's sum, or a subject for each account in which the user may have jobs.

    If the user's accounts are unknown, the account of the subject is unknown, too.
    """
    group = rule.group
    if rule.per != "account":
        yield Subject(user if rule.per == "user" else None, group.name)
    elif places.accounts is None:
        yield Subject(None, group.name)
    else:
        for account in sorted(places.accounts or ("",)):
            if group.holds(uid, account, None, None) is not False:
                yield Subject(None, group.name, account)


def _may_bind(group: GroupInForce, uid: int, places: UserAssociations, now_s: float) -> bool:
    accounts, qos = ((None,) if had is None else had or ("",) for had in (places.accounts, places.qos))
    pairs = itertools.product(accounts, qos)
    return group.is_current(now_s) and any(group.holds(uid, *pair, None) is not False for pair in pairs)


def _lines(
    rule: RuleInForce, usage: Usage | None, snapshot: Snapshot, subject: Subject, uid: int, now_s: float
) -> Iterator[QuotaLine]:
    limits, exception = rule.limits_of(uid, now_s), rule.exception_of(uid, now_s)
    is_known = rule.per != "account" or subject.account is not None
    for kind in LIMITS.values():  # display order
        for key, limit in sorted(limits.items()):
            name, _, of = key.removeprefix(AT_LEAST).partition(":")
            if name == kind.key:
                used = _used(rule, kind, of or None, usage, snapshot, subject) if is_known else None
                carried = None
                if rule.carry_over and used is not None and split_type(of)[0] in CALENDAR:
                    before = _hours(snapshot, subject, sum_key(name, of, suffix=BEFORE))
                    if before is None:
                        used = None
                    else:
                        carried = max(0.0, limit - before)
                yield QuotaLine(
                    rule=rule,
                    kind=kind,
                    of=of or None,
                    limit=limit if carried is None else limit + carried,
                    used=used,
                    carried=carried,
                    exception=exception if exception and key in exception["limits"] else None,
                    is_minimum=key.startswith(AT_LEAST),
                    account=subject.account,
                )
    for option, need in rule.options.items():
        kind = LimitKind(f"option:{option}", LimitUnit.NAMES, Scope.JOB, f"option {option}")
        yield QuotaLine(rule, kind, None, {need: True}, None)


def _used(
    rule: RuleInForce,
    kind: LimitKind,
    of: str | None,
    usage: Usage | None,
    snapshot: Snapshot,
    subject: Subject,
) -> float | None:
    if kind.scope is Scope.JOB:
        return None
    if kind.scope is Scope.PERIOD:
        if of is None:
            return None
        keys = (sum_key(kind.key, of), *((committed_key(kind.key, of),) if rule.hard else ()))
        hours = [_hours(snapshot, subject, key) for key in keys]
        return None if None in hours else sum(value for value in hours if value is not None)
    if usage is None:
        return None
    both = usage.of(*subject)
    counted = {
        Scope.TOTAL: (both.running, both.pending),
        Scope.PENDING: (both.pending,),
        Scope.RUNNING: (both.running,),
    }[kind.scope]
    if kind.measure is LimitUnit.GPUS:
        return _gpus(counted, of)
    field = "mib" if kind.measure is LimitUnit.MEMORY else kind.key.partition("_")[0]
    amounts: Iterable[int] = (getattr(use, field) for use in counted)
    return sum(amounts)


def _hours(snapshot: Snapshot, subject: Subject, key: str) -> float | None:
    return snapshot.hours_of(subject.user, subject.group, key, subject.account)


def _gpus(counted: Iterable[UsageTotals], of: str | None) -> int:
    """Return the GPUs in use; GPUs of unknown type count for every type, as in job_submit.lua."""
    total = 0
    for use in counted:
        untyped = max(0, use.mgpu - sum(use.by_type.values()))
        total += use.mgpu if of is None else use.by_type.get(of, 0) + untyped
    return total


def _listed(limit: Mapping[Any, Any]) -> list[Any]:
    """Return the allowed names, or the limit for each number of GPUs."""
    if all(isinstance(key, str) for key in limit):
        return sorted(limit)
    steps = (limit[index] for index in sorted(limit))
    return [{"gpus": step["mgpu"] / 1000, "limit": step["limit"]} for step in steps]
