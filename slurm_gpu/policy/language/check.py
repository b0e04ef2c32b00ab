"""Checks policy.yaml: every mistake in one go, each with its place, the value, and what is allowed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location, YamlSource, read_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.language.adjustments import Moved, read_moves, with_moves
from slurm_gpu.policy.language.check_adjust import AdjustCheck
from slurm_gpu.policy.language.check_bundles import BundlesCheck
from slurm_gpu.policy.language.check_colocation import ColocationCheck
from slurm_gpu.policy.language.check_hours import HoursCheck
from slurm_gpu.policy.language.check_idle import IdleCheck
from slurm_gpu.policy.language.check_owners import OwnersCheck
from slurm_gpu.policy.language.check_urgent import UrgentCheck
from slurm_gpu.policy.language.check_values import ID
from slurm_gpu.policy.language.limits import flat_limits
from slurm_gpu.policy.language.model import (
    Chain,
    Group,
    JobKind,
    Manages,
    Mode,
    OnError,
    Per,
    Policy,
    PolicyRule,
    RuleException,
    RuleLimits,
)

FILE_NAME = "policy.yaml"
"""It lies beside the site file: /etc/slurm-gpu/policy.yaml."""

_TOP = (
    "version",
    "contact",
    "manages",
    "chain",
    "on_error",
    "mode",
    "bundles",
    "owners",
    "urgent",
    "colocation",
    "cancel_idle",
    "groups",
    "rules",
    "exceptions",
)
CONDITIONS = ("users", "unix_groups", "accounts", "qos", "partitions")
_SITE_SCRIPT = "/etc/slurm/site_job_submit.lua"
_RULE = ("id", "for", "per", "why", "limits", "mode", "on_error", "when", "kind", "adjust")
_EXCEPTION = ("rule", "user", "limits", "until", "why", "granted_by")


def load_policy(path: Path) -> tuple[Policy, YamlSource]:
    """Read and check a policy, with the limits that the review moved.

    Raises InputError or InvalidFileError naming every mistake.
    """
    moved, source = load_moved(path)
    return moved.policy, source


def load_moved(path: Path) -> tuple[Moved, YamlSource]:
    """Likewise, with the moves by themselves."""
    source = read_yaml(path)
    return with_moves(check_policy(source), read_moves(path)), source


def check_policy(source: YamlSource) -> Policy:
    """Turn a parsed policy.yaml into a Policy; raises InvalidFileError with every mistake in it."""
    return _Check(source).policy()


class _Defaults(NamedTuple):
    """What a rule has that does not say otherwise."""

    mode: Mode
    on_error: OnError


class _Check(AdjustCheck, HoursCheck, BundlesCheck, OwnersCheck, UrgentCheck, ColocationCheck, IdleCheck):
    def policy(self) -> Policy:
        if self.source.value is None:
            raise InvalidFileError(
                [
                    self.source.error(
                        (), "the file is empty; it should begin with version: 1, then groups and rules"
                    )
                ]
            )
        top = self.table((), self.source.value, _TOP)
        if top.get("version") != 1 or isinstance(top.get("version"), bool):
            if "version" in top:
                self.fail(("version",), f"version: {shown(top['version'])} must be 1")
            else:
                self.fail((), "version is missing; the first line should be version: 1")
        contact = self.text(("contact",), top["contact"]) if "contact" in top else None
        defaults = _Defaults(
            self.choice(("mode",), top.get("mode", Mode.ENFORCE), Mode),
            self.choice(("on_error",), top.get("on_error", OnError.ALLOW), OnError),
        )
        groups = self.groups(top.get("groups", {}))
        rules = self.rules(top.get("rules", []), groups, defaults)
        manages = self.manages(top["manages"]) if "manages" in top else Manages()
        owners = self.owners(top.get("owners", {}), groups, manages)
        urgent = self.urgent(top["urgent"], groups, manages) if "urgent" in top else None
        colocation = self.colocation(top["colocation"], groups) if "colocation" in top else None
        idle = self.cancel_idle(top["cancel_idle"], groups) if "cancel_idle" in top else None
        if urgent is not None:
            groups, rules = self.with_urgent(urgent, groups, rules)
        policy = Policy(
            contact=contact,
            manages=manages,
            chain=self.chain(top["chain"]) if "chain" in top else Chain(),
            on_error=defaults.on_error,
            bundles=self.bundles(top.get("bundles", {})),
            owners=owners,
            urgent=urgent,
            colocation=colocation,
            cancel_idle=idle,
            groups=groups,
            rules=rules,
            exceptions=self.exceptions(top.get("exceptions", []), rules),
        )
        self.finish()
        return policy

    def manages(self, value: Any) -> Manages:
        table = self.table(("manages",), value, ("qos", "accounts"))
        return Manages(**{key: self.names(("manages", key), item) for key, item in table.items()})

    def chain(self, value: Any) -> Chain:
        table = self.table(("chain",), value, ("before", "after"))
        return Chain(**{key: self.path(("chain", key), item, _SITE_SCRIPT) for key, item in table.items()})

    def groups(self, value: Any) -> dict[str, Group]:
        if not isinstance(value, dict):
            self.fail(("groups",), f"groups must hold `name: {{…}}` lines, not {shown(value)}")
            return {}
        return {str(name): self.group(name, item) for name, item in value.items()}

    def group(self, name: Any, value: Any) -> Group:
        location: Location = ("groups", name if isinstance(name, str | int) else str(name))
        if not isinstance(name, str) or not ID.fullmatch(name):
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
        table = self.table(location, value, (*CONDITIONS, "until"))
        conditions = {key: self.names((*location, key), table[key]) for key in CONDITIONS if key in table}
        until = self.date((*location, "until"), table["until"]) if "until" in table else None
        return Group(str(name), **conditions, until=until)

    def rules(self, value: Any, groups: Mapping[str, Group], defaults: _Defaults) -> tuple[PolicyRule, ...]:
        if not isinstance(value, list):
            self.fail(
                ("rules",), f"rules must be a list, each rule beginning with `- id: …`, not {shown(value)}"
            )
            return ()
        rules = [self.rule(("rules", index), item, groups, defaults) for index, item in enumerate(value)]
        seen: set[str] = set()
        for index, rule in enumerate(rules):
            if rule.id and rule.id in seen:
                self.fail(("rules", index, "id"), f"id: {rule.id!r} is the id of an earlier rule; ids differ")
            seen.add(rule.id)
        return tuple(rules)

    def rule(
        self, location: Location, value: Any, groups: Mapping[str, Group], defaults: _Defaults
    ) -> PolicyRule:
        table = self.table(location, value, _RULE)
        self.require(location, value, ("id", "for", "per", "why", "limits"))
        rule_id = ""
        if "id" in table:
            rule_id = table["id"]
            if not isinstance(rule_id, str) or not ID.fullmatch(rule_id):
                self.fail(
                    (*location, "id"),
                    f"id: {shown(rule_id)} must be letters, digits, _ . - (up to 40), such as grad-share",
                )
                rule_id = ""
        group = ""
        if "for" in table:
            group = table["for"]
            if not isinstance(group, str) or group not in groups:
                self.fail(
                    (*location, "for"), f"for: {shown(group)} is not a group; {did_you_mean(group, groups)}"
                )
                group = ""
        per = self.choice((*location, "per"), table.get("per", "job"), Per)
        known_per = per if table.get("per") == per else None
        limits = RuleLimits()
        if "limits" in table:
            limits = self.limits((*location, "limits"), table["limits"], known_per)
        rule = PolicyRule(
            id=rule_id,
            group=group,
            per=per,
            why=self.text((*location, "why"), table["why"]) if "why" in table else "",
            limits=limits,
            mode=self.choice((*location, "mode"), table.get("mode", defaults.mode), Mode),
            on_error=self.choice((*location, "on_error"), table.get("on_error", defaults.on_error), OnError),
            when=self.when((*location, "when"), table["when"]) if "when" in table else None,
            kind=self.choice((*location, "kind"), table["kind"], JobKind) if "kind" in table else None,
            location=location,
        )
        return replace(rule, adjust=self.adjust(table["adjust"], rule)) if "adjust" in table else rule

    def exceptions(self, value: Any, rules: tuple[PolicyRule, ...]) -> tuple[RuleException, ...]:
        if not isinstance(value, list):
            self.fail(("exceptions",), f"exceptions must be a list, not {shown(value)}")
            return ()
        by_id = {rule.id: rule for rule in rules}
        exceptions = [self.exception(("exceptions", i), item, by_id) for i, item in enumerate(value)]
        seen: set[tuple[str, str]] = set()
        for exception in exceptions:
            pair = (exception.rule, exception.user)
            if pair in seen and all(pair):
                self.fail(
                    exception.location, f"{exception.user} already has an exception to {exception.rule}"
                )
            seen.add(pair)
        return tuple(exceptions)

    def exception(self, location: Location, value: Any, by_id: Mapping[str, PolicyRule]) -> RuleException:
        table = self.table(location, value, _EXCEPTION)
        self.require(location, value, ("rule", "user", "limits", "until", "why"))
        name = table.get("rule", "")
        rule = by_id.get(name) if isinstance(name, str) else None
        limits = RuleLimits()
        if "rule" in table and rule is None:
            self.fail((*location, "rule"), f"rule: {shown(name)} is not a rule; {did_you_mean(name, by_id)}")
        elif rule is not None and rule.per is Per.GROUP:
            self.fail(
                (*location, "rule"),
                f"rule: {name!r} counts the whole group together, so one user cannot be excepted; "
                "raise the rule's limit, or take the user out of the group",
            )
        elif rule is not None and "limits" in table:
            limits = self.limits((*location, "limits"), table["limits"], rule.per)
            of_rule = flat_limits(rule.limits)
            for key in flat_limits(limits):
                if key not in of_rule:
                    place = (*location, "limits", *key.split(":"))
                    self.fail(place, f"{key!r}: rule {rule.id} sets no such limit to replace", key=True)
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
