"""Checks `urgent:`, who may have jobs started before all others, and how many at once."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ID, ValueCheck, name_of
from slurm_gpu.policy.language.model import URGENT, Group, Manages, Per, PolicyRule, RuleLimits, Urgent

_PLACE: Location = ("urgent",)
_KEYS = ("for", "jobs_running", "why", "qos", "preempts")
_ORDINARY = "normal"


class UrgentCheck(ValueCheck):
    """The one table."""

    def urgent(self, value: Any, groups: Mapping[str, Group], manages: Manages) -> Urgent:
        """All of it."""
        table = self.table(_PLACE, value, _KEYS)
        self.require(_PLACE, value, ("for", "jobs_running", "why"))
        names = self.names((*_PLACE, "for"), table["for"], "[leads]") if "for" in table else ()
        for index, name in enumerate(names):
            self._of_people((*_PLACE, "for", index), name, groups)
        qos = self._qos((*_PLACE, "qos"), table.get("qos", URGENT))
        if qos == _ORDINARY:
            self.fail((*_PLACE, "qos"), f"qos: jobs that name no QOS run in {qos}, and all would be urgent")
        elif qos and not any(fnmatchcase(qos, pattern.lower()) for pattern in manages.qos):
            self.fail(
                (*_PLACE, "qos") if "qos" in table else _PLACE,
                f"qos: {qos} is not under manages: qos, so that `policy apply` could not make it",
            )
        preempts = self.names((*_PLACE, "preempts"), table["preempts"]) if "preempts" in table else ()
        preempts = tuple(self._qos((*_PLACE, "preempts", index), name) for index, name in enumerate(preempts))
        if qos in preempts:
            self.fail((*_PLACE, "preempts"), f"preempts: urgent jobs of {qos} cannot preempt one another")
        most = (
            self.count((*_PLACE, "jobs_running"), table["jobs_running"], "2")
            if "jobs_running" in table
            else 0
        )
        why = self.text((*_PLACE, "why"), table["why"]) if "why" in table else ""
        return Urgent(names, qos, most or 0, preempts, why)

    def with_urgent(
        self, urgent: Urgent, groups: Mapping[str, Group], rules: tuple[PolicyRule, ...]
    ) -> tuple[dict[str, Group], tuple[PolicyRule, ...]]:
        """Groups and rules with those that it stands for: how many run at once is a rule like any other."""
        if URGENT in groups:
            self.fail(
                ("groups", URGENT), f"group {URGENT} is that of `urgent:`; name this one otherwise", key=True
            )
        for index, rule in enumerate(rules):
            if rule.id == URGENT:
                self.fail(("rules", index, "id"), f"id: {URGENT!r} is the id of `urgent:`; ids differ")
        limits = RuleLimits(jobs_running=urgent.jobs_running)
        held = PolicyRule(URGENT, URGENT, Per.GROUP, urgent.why, limits, location=_PLACE)
        return {**groups, URGENT: Group(URGENT, qos=(urgent.qos,))}, (*rules, held)

    def _of_people(self, location: Location, name: str, groups: Mapping[str, Group]) -> None:
        group = groups.get(name)
        if group is None:
            self.fail(location, f"for: {shown(name)} is not a group; {did_you_mean(name, groups)}")
        elif group.qos is not None or group.partitions is not None:
            self.fail(
                location,
                f"for: group {name} has qos or partitions; who may is told by users, unix_groups, accounts",
            )
        elif group.users is group.unix_groups is group.accounts is None:
            self.fail(location, f"for: group {name} is everybody; name users, unix_groups or accounts")

    def _qos(self, location: Location, value: Any) -> str:
        if isinstance(value, str) and ID.fullmatch(value):
            return value.lower()
        self.fail(
            location,
            f"{name_of(location)}: {shown(value)} cannot name a QOS; use letters, digits, _ . - (up to 40)",
        )
        return ""
