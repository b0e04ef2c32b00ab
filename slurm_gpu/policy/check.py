"""Checks policy.yaml: every mistake in one go, each with its place, the value, and what is allowed."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.model import (
    Group,
    Limits,
    Manages,
    Mode,
    OnError,
    Per,
    Policy,
    Rule,
    RuleException,
)
from slurm_gpu.units import format_duration, parse_duration
from slurm_gpu.yamlcheck import YamlCheck, did_you_mean
from slurm_gpu.yamlsource import Location, YamlSource, read_yaml

FILE_NAME = "policy.yaml"
"""It lies beside the site file: /etc/slurm-gpu/policy.yaml."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_TOP = ("version", "contact", "manages", "on_error", "groups", "rules", "exceptions")
_CONDITIONS = ("users", "unix_groups", "accounts", "qos", "partitions")
_RULE = ("id", "for", "per", "why", "limits", "mode", "on_error")
_EXCEPTION = ("rule", "user", "limits", "until", "why", "granted_by")
_LIMITS = ("gpus", "gpus_total", "jobs_total", "walltime")

# In the format, and not enforced by this version: said, never silently passed over.
_LATER_TOP = ("bundles", "owners")
_LATER_RULE = ("when", "adjust")
_LATER_LIMITS = {
    "gpus_running": "a job may wait, so a limit on running GPUs cannot refuse it; use gpus_total, "
    "or MaxTRESPerUser=gres/gpu=N on the QOS",
    "jobs_running": "a job may wait, so a limit on running jobs cannot refuse it; use jobs_total, "
    "or MaxJobsPerUser=N on the QOS",
    "cpus_running": "use MaxTRESPerUser=cpu=N on the QOS",
    "cpus_per_gpu": "leave it out for now",
    "memory_per_gpu": "leave it out for now",
}
_PER_JOB = ("gpus", "walltime")

_E = TypeVar("_E", bound=StrEnum)


def load_policy(path: Path) -> tuple[Policy, YamlSource]:
    """Read and check a policy; raises InputError or InvalidFileError naming every mistake."""
    source = read_yaml(path)
    return check_policy(source), source


def check_policy(source: YamlSource) -> Policy:
    """Turn a parsed policy.yaml into a Policy; raises InvalidFileError with every mistake in it."""
    return _Check(source).policy()


class _Check(YamlCheck):
    def policy(self) -> Policy:
        if self.source.value is None:
            raise InvalidFileError(
                [
                    self.source.error(
                        (), "the file is empty; it should begin with version: 1, then groups and rules"
                    )
                ]
            )
        top = self.table((), self.source.value, _TOP, _LATER_TOP)
        if top.get("version") != 1 or isinstance(top.get("version"), bool):
            if "version" in top:
                self.fail(("version",), f"version: {top['version']!r} must be 1")
            else:
                self.fail((), "version is missing; the first line should be version: 1")
        contact = self.text(("contact",), top["contact"]) if "contact" in top else None
        on_error = self.choice(("on_error",), top.get("on_error", OnError.ALLOW), OnError)
        groups = self.groups(top.get("groups", {}))
        rules = self.rules(top.get("rules", []), groups, on_error)
        policy = Policy(
            contact=contact,
            manages=self.manages(top["manages"]) if "manages" in top else Manages(),
            on_error=on_error,
            groups=groups,
            rules=rules,
            exceptions=self.exceptions(top.get("exceptions", []), rules),
        )
        self.finish()
        return policy

    def table(
        self, location: Location, value: Any, known: Collection[str], later: Collection[str] = ()
    ) -> dict[str, Any]:
        """A mapping with these keys, of which those that come later are refused by name."""
        if isinstance(value, dict):
            for key in value.keys() & set(later):
                self.fail(
                    (*location, key),
                    f"{key!r} belongs to the policy format, but this version does not enforce it yet; "
                    "take it out (or comment it out) until it does",
                    key=True,
                )
            value = {key: item for key, item in value.items() if key not in later}
        return self.mapping(location, value, known, _name(location) or "the policy")

    def text(self, location: Location, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self.fail(location, f"{_name(location)}: {value!r} must be a text; put it in quotes")
        elif _CONTROL.search(value):
            self.fail(location, f"{_name(location)}: {value!r} holds a control character")
        else:
            return " ".join(value.split())
        return ""

    def choice(self, location: Location, value: Any, kind: type[_E]) -> _E:
        allowed = [str(member) for member in kind]
        if value in allowed:
            return kind(value)
        hint = did_you_mean(value, allowed)
        self.fail(location, f"{_name(location)}: {value!r} is not possible; {hint}")
        return next(iter(kind))

    def names(self, location: Location, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            self.fail(location, f"{_name(location)}: {value!r} must be a list of names, such as [alice, bob]")
            return ()
        names = []
        for index, item in enumerate(value):
            if isinstance(item, str) and item.strip() and not _CONTROL.search(item):
                names.append(item)
            else:
                self.fail((*location, index), f"{_name(location)}: {item!r} must be a name; put it in quotes")
        return tuple(names)

    def date(self, location: Location, value: Any) -> dt.date:
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            return value
        shown = self.source.texts.get(location, repr(value))
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d?-\d\d?", value):
            self.fail(
                location, f"{_name(location)}: {shown} is not in the calendar; write a day as 2026-12-31"
            )
        else:
            self.fail(location, f"{_name(location)}: {value!r} must be a day written as 2026-12-31")
        return dt.date.max

    def manages(self, value: Any) -> Manages:
        table = self.table(("manages",), value, ("qos", "accounts"))
        return Manages(**{key: self.names(("manages", key), item) for key, item in table.items()})

    def groups(self, value: Any) -> dict[str, Group]:
        if not isinstance(value, dict):
            self.fail(("groups",), f"groups must hold `name: {{…}}` lines, not {value!r}")
            return {}
        return {str(name): self.group(name, item) for name, item in value.items()}

    def group(self, name: Any, value: Any) -> Group:
        location: Location = ("groups", name if isinstance(name, str | int) else str(name))
        if not isinstance(name, str) or not _ID.fullmatch(name):
            self.fail(
                location, f"{name!r} cannot name a group; use letters, digits, _ . - (up to 40)", key=True
            )
        if value is None:
            self.fail(
                location,
                f"group {name} is empty; give conditions such as {{accounts: [vision]}}, "
                "or {} for every job",
                key=True,
            )
            return Group(str(name))
        table = self.table(location, value, (*_CONDITIONS, "until"))
        conditions = {key: self.names((*location, key), table[key]) for key in _CONDITIONS if key in table}
        until = self.date((*location, "until"), table["until"]) if "until" in table else None
        return Group(str(name), **conditions, until=until)

    def rules(self, value: Any, groups: Mapping[str, Group], on_error: OnError) -> tuple[Rule, ...]:
        if not isinstance(value, list):
            self.fail(("rules",), f"rules must be a list, each rule beginning with `- id: …`, not {value!r}")
            return ()
        rules = [self.rule(("rules", index), item, groups, on_error) for index, item in enumerate(value)]
        seen: set[str] = set()
        for index, rule in enumerate(rules):
            if rule.id and rule.id in seen:
                self.fail(("rules", index, "id"), f"id: {rule.id!r} is the id of an earlier rule; ids differ")
            seen.add(rule.id)
        return tuple(rules)

    def rule(self, location: Location, value: Any, groups: Mapping[str, Group], on_error: OnError) -> Rule:
        table = self.table(location, value, _RULE, _LATER_RULE)
        self.require(location, value, ("id", "for", "per", "why", "limits"))
        rule_id = ""
        if "id" in table:
            rule_id = table["id"]
            if not isinstance(rule_id, str) or not _ID.fullmatch(rule_id):
                self.fail(
                    (*location, "id"),
                    f"id: {rule_id!r} must be letters, digits, _ . - (up to 40), such as grad-share",
                )
                rule_id = ""
        group = ""
        if "for" in table:
            group = table["for"]
            if not isinstance(group, str) or group not in groups:
                self.fail((*location, "for"), f"for: {group!r} is not a group; {did_you_mean(group, groups)}")
                group = ""
        per = self.choice((*location, "per"), table.get("per", "job"), Per)
        known_per = per if table.get("per") == per else None
        return Rule(
            id=rule_id,
            group=group,
            per=per,
            why=self.text((*location, "why"), table["why"]) if "why" in table else "",
            limits=self.limits((*location, "limits"), table["limits"], known_per)
            if "limits" in table
            else Limits(),
            mode=self.choice((*location, "mode"), table.get("mode", Mode.ENFORCE), Mode),
            on_error=self.choice((*location, "on_error"), table.get("on_error", on_error), OnError),
        )

    def require(self, location: Location, value: Any, keys: tuple[str, ...]) -> None:
        if not isinstance(value, dict):
            return
        missing = [key for key in keys if key not in value]
        if missing:
            self.fail(location, f"{_name(location)} lacks {', '.join(missing)}")

    def limits(self, location: Location, value: Any, per: Per | None) -> Limits:
        table = value if isinstance(value, dict) else {}
        for key in table:
            if key in _LATER_LIMITS:
                self.fail(
                    (*location, key),
                    f"{key!r} belongs to the policy format, but this version does not enforce it: "
                    f"{_LATER_LIMITS[key]}",
                    key=True,
                )
        table = self.table(location, value, (*_LIMITS, *_LATER_LIMITS))
        if isinstance(value, dict) and not value:
            self.fail(location, f"limits is empty; allowed: {', '.join(_LIMITS)}")
        for key in table:
            if per is not None and key in _LIMITS and (key in _PER_JOB) != (per is Per.JOB):
                where = "per: job" if key in _PER_JOB else "per: user or per: group"
                self.fail(
                    (*location, key),
                    f"{key!r} cannot stand in a rule with per: {per}; write it in a rule with {where}",
                    key=True,
                )
        return Limits(
            gpus_mgpu=self.gpus((*location, "gpus"), table.get("gpus")),
            gpus_total_mgpu=self.gpus((*location, "gpus_total"), table.get("gpus_total")),
            jobs_total=self.count((*location, "jobs_total"), table.get("jobs_total")),
            walltime_s=self.walltime((*location, "walltime"), table.get("walltime")),
        )

    def gpus(self, location: Location, value: Any) -> int | None:
        if value is None and location not in self.source.positions:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
            self.fail(
                location, f"{location[-1]}: {value!r} must be a number of GPUs from 0 up, such as 8 or 0.5"
            )
            return None
        if abs(value * 1000 - round(value * 1000)) > 1e-6:
            self.fail(location, f"{location[-1]}: {value!r} must have at most three decimals, such as 0.125")
            return None
        return round(value * 1000)

    def count(self, location: Location, value: Any) -> int | None:
        if value is None and location not in self.source.positions:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
            self.fail(location, f"{location[-1]}: {value!r} must be a whole number from 0 up, such as 200")
            return None
        return value

    def walltime(self, location: Location, value: Any) -> int | None:
        if value is None and location not in self.source.positions:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = self.source.texts.get(location, str(value))
            if re.fullmatch(r"\d+(:\d\d){1,2}", text):
                hours, minutes, *rest = text.split(":")
                clock = f'"{hours}:{minutes}:{rest[0] if rest else "00"}"'
                examples = clock if clock.count(":00") < 2 else f"{hours}h or {clock}"
                told = f"to YAML that is the number {value}; write {examples}"
            else:
                examples = f"{value}h or {value}d" if value < 1000 else f"{format_duration(value)}"
                told = f'it has no unit; write {examples}, or a Slurm time in quotes, such as "7-00:00:00"'
            self.fail(location, f"walltime: {text}: {told}")
            return None
        try:
            seconds = parse_duration(value)
        except (ValueError, AttributeError, TypeError):
            self.fail(
                location, f'walltime: {value!r} is not a duration; write one such as 4h, 7d or "7-00:00:00"'
            )
            return None
        if seconds < 60 or seconds % 60:
            self.fail(location, f"walltime: {value!r} must be whole minutes, as Slurm counts, such as 4h")
            return None
        return int(seconds)

    def exceptions(self, value: Any, rules: tuple[Rule, ...]) -> tuple[RuleException, ...]:
        if not isinstance(value, list):
            self.fail(("exceptions",), f"exceptions must be a list, not {value!r}")
            return ()
        exceptions = [self.exception(("exceptions", i), item, rules) for i, item in enumerate(value)]
        seen: set[tuple[str, str]] = set()
        for exception in exceptions:
            pair = (exception.rule, exception.user)
            if pair in seen and all(pair):
                self.fail(
                    exception.location, f"{exception.user} already has an exception to {exception.rule}"
                )
            seen.add(pair)
        return tuple(exceptions)

    def exception(self, location: Location, value: Any, rules: tuple[Rule, ...]) -> RuleException:
        table = self.table(location, value, _EXCEPTION)
        self.require(location, value, ("rule", "user", "limits", "until", "why"))
        by_id = {rule.id: rule for rule in rules}
        name = table.get("rule", "")
        rule = by_id.get(name) if isinstance(name, str) else None
        limits = Limits()
        if "rule" in table and rule is None:
            self.fail((*location, "rule"), f"rule: {name!r} is not a rule; {did_you_mean(name, by_id)}")
        elif rule is not None and rule.per is Per.GROUP:
            self.fail(
                (*location, "rule"),
                f"rule: {name!r} counts the whole group together, so one user cannot be excepted; "
                "raise the rule's limit, or take the user out of the group",
            )
        elif rule is not None and "limits" in table:
            limits = self.limits((*location, "limits"), table["limits"], rule.per)
            for key, of_rule, own in _pairs(rule.limits, limits):
                if own is not None and of_rule is None:
                    self.fail(
                        (*location, "limits", key),
                        f"{key!r}: rule {rule.id} sets no such limit to replace",
                        key=True,
                    )
        return RuleException(
            rule=rule.id if rule else "",
            user=self.text((*location, "user"), table["user"]) if "user" in table else "",
            limits=limits,
            until=self.date((*location, "until"), table["until"]) if "until" in table else dt.date.max,
            why=self.text((*location, "why"), table["why"]) if "why" in table else "",
            granted_by=self.text((*location, "granted_by"), table["granted_by"])
            if "granted_by" in table
            else None,
            location=location,
        )


def _pairs(first: Limits, second: Limits) -> list[tuple[str, int | None, int | None]]:
    return [
        ("gpus", first.gpus_mgpu, second.gpus_mgpu),
        ("gpus_total", first.gpus_total_mgpu, second.gpus_total_mgpu),
        ("jobs_total", first.jobs_total, second.jobs_total),
        ("walltime", first.walltime_s, second.walltime_s),
    ]


def _name(location: Location) -> str:
    """A place for people: rules 2 limits → "limits", rules 2 → "rule 3"."""
    if not location:
        return ""
    if isinstance(location[-1], int) and len(location) > 1:
        return f"{str(location[-2]).removesuffix('s')} {location[-1] + 1}"
    return str(location[-1])
