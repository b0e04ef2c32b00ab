"""Read the policy in force from the script that slurmctld runs.

policy.yaml and the members of its groups may have changed since `policy apply`. The bundle begins with a
table of plain data, which is the policy in force.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.hour_sums import sums_of
from slurm_gpu.policy.language.membership import has_wildcard, holds, is_among
from slurm_gpu.policy.lua.bundle import MARK, STUB_MARK

T = TypeVar("T")

# Strings in the policy table contain no newlines, so neither marker can occur in the table.
_OPENING = "\n\nlocal policy = "
_CLOSING = "\n\nlocal lib = "


@dataclass(frozen=True, slots=True)
class GroupInForce:
    """The jobs to which a rule applies; conditions that the group does not set are None."""

    name: str
    uids: frozenset[int] | None = None
    member_uids: frozenset[int] | None = None
    # Account names in lower case; `qos` is in lower case, too.
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    # Groups that must contain the jobs, and groups that must not contain them. The days on which these groups
    # apply are ignored.
    all_of: tuple[GroupInForce, ...] = ()
    none_of: tuple[GroupInForce, ...] = ()
    from_s: float = 0
    until_s: float = math.inf
    # Whether a rule sums over the jobs of each account in the group.
    by_account: bool = False
    # Whether a rule for the group has `hard: true`.
    has_hard_limit: bool = False
    # The group in words, if it was created for a rule; None for groups in policy.yaml.
    label: str | None = None
    # Whether fast set lookups suffice to match a job: slurm-gpuctld compares thousands of jobs with each
    # group every second.
    is_plain: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Set `is_plain`."""
        names = (name for some in (self.accounts, self.qos, self.partitions) for name in some or ())
        is_plain = not (self.all_of or self.none_of or any(map(has_wildcard, names)))
        object.__setattr__(self, "is_plain", is_plain)

    @property
    def title(self) -> str:
        """Return the name of the group, or its description if it was created for a rule."""
        return self.label or self.name

    def is_current(self, now_s: float) -> bool:
        """Return whether rules for the group apply at this time."""
        return self.from_s <= now_s < self.until_s

    def matches(self, uid: int, account: str, qos: str, partition: str) -> bool:
        """Return whether a job is in the group, with the same result as the Lua code.

        `partition`, and from Slurm 24.11 on `qos`, may be several names separated by commas: the job may
        start in any of them.
        """
        if self.is_plain:
            return (
                (self.uids is None or uid in self.uids)
                and (self.member_uids is None or uid in self.member_uids)
                and (self.accounts is None or account.lower() in self.accounts)
                and (self.qos is None or not self.qos.isdisjoint(qos.lower().split(",")))
                and (self.partitions is None or not self.partitions.isdisjoint(partition.split(",")))
            )
        pairs = itertools.product(qos.lower().split(","), partition.split(","))
        return any(self.holds(uid, account.lower(), *pair) is True for pair in pairs)

    def holds(self, uid: int, account: str | None, qos: str | None, partition: str | None) -> bool | None:
        """Return whether a job with these names is in the group; None if this depends on a missing name."""
        named = ((self.accounts, account), (self.qos, qos), (self.partitions, partition))
        own = (
            self.uids is None or uid in self.uids,
            self.member_uids is None or uid in self.member_uids,
            *(names is None or (None if name is None else is_among(name, names)) for names, name in named),
        )
        if False in own:
            return False
        all_of, none_of = (
            [group.holds(uid, account, qos, partition) for group in groups]
            for groups in (self.all_of, self.none_of)
        )
        return holds(own, all_of, none_of)


@dataclass(frozen=True, slots=True)
class RuleInForce:
    """A rule as the Lua code reads it, with limits by their compiled keys (docs/contracts.md, section 4)."""

    id: str
    group: GroupInForce
    per: str
    why: str
    mode: str
    limits: Mapping[str, Any]
    exceptions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    # Options of submissions that are `required` or `forbidden`.
    options: Mapping[str, str] = field(default_factory=dict)
    # Whether resource-hours include those that pending and running jobs may still use.
    hard: bool = False
    # Whether the unused part of the previous calendar period's limit is added to a limit by period.
    carry_over: bool = False
    # The jobs to which the rule applies in words (`text`), and its conditions; None for all jobs.
    jobs: Mapping[str, Any] | None = None
    # The options of jobs over a limit, such as {"qos": "standby"}; None if the rule does not set any.
    over_limit: Mapping[str, Any] | None = None
    # The kind of jobs: interactive or batch; None for both.
    kind: str | None = None
    # The days and minutes of the day at which the rule applies; None if it always applies.
    when: Mapping[str, Any] | None = None

    @property
    def counts_some_jobs(self) -> bool:
        """Return whether the rule sums over only some jobs of its group; snapshots have no such sums."""
        return self.per != "job" and not (self.kind is None and self.jobs is None)

    def exception_of(self, uid: int, now_s: float) -> Mapping[str, Any] | None:
        """Return the exception that applies to this user at this time; None if no exception applies."""
        found = self.exceptions.get(uid, {})
        is_current = found.get("from_s", 0) <= now_s < found.get("until_s", math.inf)
        return found if found and is_current else None

    def limits_of(self, uid: int, now_s: float) -> Mapping[str, Any]:
        """Return the current limits of this user; limits of an exception replace those of the rule."""
        exception = self.exception_of(uid, now_s)
        return self.limits if exception is None else {**self.limits, **exception["limits"]}


@dataclass(frozen=True, slots=True)
class OwnerInForce:
    """A group that lends its idle GPUs."""

    name: str
    mgpu: int
    qos: str
    lend_in: str
    return_within_s: int


@dataclass(frozen=True, slots=True)
class LendingInForce:
    """All owners, and the number of GPUs without an owner."""

    owners: tuple[OwnerInForce, ...]
    unowned_mgpu: int


@dataclass(frozen=True, slots=True)
class ColocationInForce:
    """The settings for jobs that share GPUs."""

    mode: str
    goal: str
    # The largest slowdown of a job; None for no limit.
    slowdown: float | None
    jobs_per_gpu: int
    max_gpu_fraction: float
    max_wait_s: int
    # A bundle that names no planner gets this default, too.
    planner: str = "annealing"
    # The model file of a learned planner.
    model: Path | None = None


@dataclass(frozen=True, slots=True)
class CancelIdleInForce:
    """The settings for ending jobs that never used their GPUs, and for warning their owners first."""

    mode: str
    # The action: cancel or hold.
    action: str
    warn_s: tuple[int, ...]
    after_s: int
    why: str
    # The groups whose jobs are ended; None for all jobs.
    groups: tuple[GroupInForce, ...] | None = None
    exempt: tuple[GroupInForce, ...] = ()

    def binds(self, uid: int, account: str, qos: str, partition: str, now_s: float) -> bool:
        """Return whether a job with these properties may be ended now; only current groups count."""

        def are_in(groups: tuple[GroupInForce, ...]) -> bool:
            return any(
                group.is_current(now_s) and group.matches(uid, account, qos, partition) for group in groups
            )

        return (self.groups is None or are_in(self.groups)) and not are_in(self.exempt)


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """The part of an installed bundle that is used to count jobs and show limits."""

    groups: tuple[GroupInForce, ...] = ()
    rules: tuple[RuleInForce, ...] = ()
    # Digest of the data that determines how jobs are counted; None in an older bundle.
    groups_id: str | None = None
    shards_per_gpu: int | None = None
    mps_per_gpu: int | None = None
    # Smallest numbers of GPUs and CPUs on any node, by partition.
    partition_gpus: Mapping[str, int] = field(default_factory=dict)
    partition_cpus: Mapping[str, int] = field(default_factory=dict)
    # GPU types of the nodes in lower case, by partition.
    partition_gpu_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Default memory in slurm.conf: `per_gpu`, `per_cpu`, `per_node`.
    default_mib: Mapping[str, int] = field(default_factory=dict)
    # None in an older bundle.
    snapshot: Path | None = None
    decisions_log: Path | None = None
    lending: LendingInForce | None = None
    colocation: ColocationInForce | None = None
    cancel_idle: CancelIdleInForce | None = None
    urgent_qos: str | None = None
    # QOS whose jobs are requeued for urgent jobs; empty in an older bundle.
    urgent_preempts: frozenset[str] = frozenset()

    @property
    def hour_sums(self) -> frozenset[str]:
        """Return the keys of the sums of resource-hours that rules count (hour_sums.py)."""
        return frozenset(
            key
            for rule in self.rules
            for limits in (rule.limits, *(exception["limits"] for exception in rule.exceptions.values()))
            for key in sums_of(limits, hard=rule.hard, carry_over=rule.carry_over)
        )


def read_policy_in_force(script: Path) -> PolicyInForce | None:
    """Return the policy of the bundle at `script`; None if the file is missing or is the site's own script.

    Raise OutsideError if the file cannot be read or was changed after `policy apply` wrote it.
    """
    return _read(script, _policy)


def policy_of(bundle: str) -> PolicyInForce:
    """Return the policy of a bundle that is not installed."""
    return _policy(_table(bundle))


def read_chain(script: Path) -> Mapping[str, Path] | None:
    """Return the site's scripts that the bundle at `script` calls; the keys are `before` and `after`.

    Return None if the script is not a bundle; raise OutsideError as `read_policy_in_force` does.
    """
    return _read(script, _chain)


def _read(script: Path, part: Callable[[Mapping[Any, Any]], T]) -> T | None:
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutsideError(f"{script} cannot be read: {error.strerror}") from error
    if not text.startswith(MARK) or text.startswith(STUB_MARK):
        return None
    try:
        return part(_table(text))
    except (KeyError, TypeError, ValueError) as error:
        raise OutsideError(f"{script} does not contain a readable policy: {error!r}") from error


def _chain(table: Mapping[Any, Any]) -> Mapping[str, Path]:
    places = ("before", "after")
    return {place: Path(table[f"chain_{place}"]) for place in places if f"chain_{place}" in table}


def _table(bundle: str) -> dict[Any, Any]:
    """Return the policy table of a bundle without running its code; raise ValueError if it has no table."""
    start, end = bundle.find(_OPENING), bundle.find(_CLOSING)
    if not 0 <= start < end:
        raise ValueError("no policy table")
    lua = importlib.import_module("lupa.lua54")
    runtime = lua.LuaRuntime(register_eval=False, register_builtins=False)
    try:
        table = runtime.execute(f"return {bundle[start + len(_OPENING) : end]}")
    except lua.LuaError as error:
        raise ValueError(str(error)) from error
    if lua.lua_type(table) != "table":
        raise ValueError("the policy is not a table")

    def plain(value: Any) -> Any:
        if lua.lua_type(value) == "table":
            return {key: plain(item) for key, item in value.items()}
        return value

    converted: dict[Any, Any] = plain(table)
    return converted


def _policy(table: Mapping[Any, Any]) -> PolicyInForce:
    groups = _groups(_list(table["groups"]))
    return PolicyInForce(
        groups=groups,
        rules=tuple(_rule(item, groups) for item in _list(table["rules"])),
        groups_id=table.get("groups_id"),
        shards_per_gpu=table.get("shards_per_gpu"),
        mps_per_gpu=table.get("mps_per_gpu"),
        partition_gpus=table.get("partition_gpus", {}),
        partition_cpus=table.get("partition_cpus", {}),
        default_mib=table.get("default_mib", {}),
        partition_gpu_types={k: frozenset(v) for k, v in table.get("partition_gpu_types", {}).items()},
        snapshot=Path(table["snapshot"]) if "snapshot" in table else None,
        decisions_log=Path(table["decisions_log"]) if "decisions_log" in table else None,
        lending=_lending(table["lending"]) if "lending" in table else None,
        colocation=_colocation(table["colocation"]) if "colocation" in table else None,
        cancel_idle=_cancel_idle(table["cancel_idle"], groups) if "cancel_idle" in table else None,
        urgent_qos=table["urgent"]["qos"] if "urgent" in table else None,
        urgent_preempts=frozenset(table.get("urgent", {}).get("preempts", {}).values()),
    )


def _lending(table: Mapping[str, Any]) -> LendingInForce:
    keys = ("name", "mgpu", "qos", "lend_in", "return_within_s")
    owners = tuple(OwnerInForce(**{key: item[key] for key in keys}) for item in _list(table["owners"]))
    return LendingInForce(owners, table["unowned_mgpu"])


def _colocation(table: Mapping[str, Any]) -> ColocationInForce:
    keys = ("mode", "goal", "jobs_per_gpu", "max_gpu_fraction", "max_wait_s")
    return ColocationInForce(
        **{key: table[key] for key in keys},
        slowdown=table.get("slowdown"),
        planner=table.get("planner", "annealing"),
        model=Path(table["model"]) if "model" in table else None,
    )


def _cancel_idle(table: Mapping[str, Any], groups: tuple[GroupInForce, ...]) -> CancelIdleInForce:
    def named(key: str) -> tuple[GroupInForce, ...]:
        return tuple(groups[number - 1] for number in _list(table[key]))

    return CancelIdleInForce(
        **{key: table[key] for key in ("mode", "action", "after_s", "why")},
        warn_s=tuple(_list(table["warn_s"])),
        groups=named("groups") if "groups" in table else None,
        exempt=named("exempt"),
    )


def _list(table: Mapping[Any, Any]) -> list[Any]:
    return [table[index] for index in range(1, len(table) + 1)]


def _groups(tables: list[Mapping[str, Any]]) -> tuple[GroupInForce, ...]:
    @functools.cache
    def group(number: int) -> GroupInForce:
        table = tables[number - 1]
        return _group(table, *(tuple(map(group, _list(table.get(key, {})))) for key in ("all_of", "none_of")))

    return tuple(map(group, range(1, len(tables) + 1)))


def _group(
    table: Mapping[str, Any], all_of: tuple[GroupInForce, ...], none_of: tuple[GroupInForce, ...]
) -> GroupInForce:
    def names(key: str) -> frozenset[Any] | None:
        return frozenset(table[key]) if key in table else None

    return GroupInForce(
        name=table["name"],
        uids=names("uids"),
        member_uids=names("member_uids"),
        accounts=names("accounts"),
        qos=names("qos"),
        partitions=names("partitions"),
        all_of=all_of,
        none_of=none_of,
        from_s=table.get("from_s", 0),
        until_s=table.get("until_s", math.inf),
        by_account=table.get("by_account", False),
        has_hard_limit=table.get("has_hard_limit", False),
        label=table.get("label"),
    )


def _rule(table: Mapping[str, Any], groups: tuple[GroupInForce, ...]) -> RuleInForce:
    return RuleInForce(
        id=table["id"],
        group=groups[table["group"] - 1],
        per=table["per"],
        why=table["why"],
        mode=table["mode"],
        limits=table["limits"],
        exceptions=table.get("exceptions", {}),
        options=table.get("options", {}),
        hard=table.get("hard", False),
        carry_over=table.get("carry_over", False),
        jobs=table.get("jobs"),
        over_limit=table.get("over_limit"),
        kind=table.get("kind"),
        when=table.get("when"),
    )
