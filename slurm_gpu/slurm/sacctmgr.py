"""Read and change Slurm's own limits of associations and QOS in slurmdbd, through sacctmgr.

Amounts are whole numbers: MiB of memory, minutes of wall time, and counts otherwise. A limit that is not set
is absent; the value None removes a limit, and the value 0 allows nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from slurm_gpu.errors import SlurmError, SlurmRefusalError
from slurm_gpu.slurm.runner import QUERY_TIMEOUT_S, CommandRunner, run_command
from slurm_gpu.slurm.tres import parse_tres
from slurm_gpu.text.units import format_slurm_time, parse_slurm_time

# With this QOS flag Slurm refuses a job that could never start; otherwise the job waits indefinitely.
DENY_ON_LIMIT = "DenyOnLimit"

ASSOCIATION_FIELDS = (
    "GrpTRES",
    "GrpJobs",
    "GrpSubmitJobs",
    "MaxTRES",
    "MaxWall",
    "MaxJobs",
    "MaxSubmitJobs",
    "QOS",
)
QOS_FIELDS = (
    "GrpTRES",
    "GrpJobs",
    "GrpSubmitJobs",
    "MaxTRES",
    "MaxTRESPU",
    "MaxTRESPA",
    "MaxWall",
    "MaxJobsPU",
    "MaxJobsPA",
    "MaxSubmitJobsPU",
    "MaxSubmitJobsPA",
    "Preempt",
    "GraceTime",
)
# Fields with lists of names. Each name is represented as a limit LimitField(FIELD, NAME) = 1.
_SETS = ("Flags", "Preempt", "QOS")

# The value with which sacctmgr removes a limit.
_REMOVED = -1
# Matches a name that sacctmgr reads as a single name wherever it occurs.
_NAME = re.compile(r"[^\s,'\"|=()\x00-\x1f]+")
# With this many names of 255 characters, a list remains below Linux's 128 KiB for one argument.
_ENTITIES_PER_CALL = 500
_LOOP = "Preemption loop"
# slurmdbd stores Preempt as ",2,". When it removes a name, it reads the empty text at the end as QOS 0.
_PERHAPS_NO_LOOP = (
    "If `sacctmgr show qos format=name,preempt` shows no loop, restart slurmdbd (systemctl restart slurmdbd) "
    "and run the same command again; jobs are not affected. If a name was removed from the Preempt list of a "
    "QOS, slurmdbd reports this error for each QOS that should preempt it, until slurmdbd is restarted. "
    "If the command still fails, two QOS would preempt each other. Remove the old entry first "
    "(sacctmgr modify qos NAME set Preempt-=OTHER), restart slurmdbd and run the command again."
)


class EntityKind(StrEnum):
    """The kind of an entity with limits."""

    QOS = "qos"
    ACCOUNT = "account"
    USER = "user"
    """A user's association with one account."""


@dataclass(frozen=True, slots=True, order=True)
class Entity:
    """A QOS, an account, or a user in an account, with limits."""

    kind: EntityKind
    name: str
    """The name of the QOS or of the account."""
    user: str = ""

    def __str__(self) -> str:
        if self.kind is EntityKind.USER:
            return f"user {self.user} in account {self.name}"
        return f"QOS {self.name}" if self.kind is EntityKind.QOS else f"account {self.name}"


@dataclass(frozen=True, slots=True, order=True)
class LimitField:
    """One limit of an entity: a field of sacctmgr and, if the field is a list, one of its TRES or names."""

    name: str
    item: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.item}" if self.item else self.name

    @property
    def is_list_item(self) -> bool:
        """Return whether the limit is a list entry (`item`), whose value is 1 or None, not an amount."""
        return self.name in _SETS

    def show(self, value: int | None) -> str:
        """Return the argument with which sacctmgr sets the field to a value."""
        if self.is_list_item:
            return f"{self.name}{'-' if value is None else '+'}={self.item}"
        return f"{self}={'none' if value is None else self.amount(value)}"

    def amount(self, value: int) -> str:
        """Return a value of this field with Slurm's unit."""
        if self.name == "MaxWall":
            return format_slurm_time(60 * value)
        if self.item == "mem":
            return f"{value}M" if value % 1024 or not value else f"{value // 1024}G"
        return str(value)


Limits = Mapping[LimitField, int]

# The limits of a QOS after its creation.
NEW_QOS: Limits = {LimitField("GraceTime"): 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """An account, or a user in an account, with its own limits, excluding inherited ones.

    Each allowed QOS that is not inherited is represented as a limit LimitField("QOS", NAME) = 1.
    """

    account: str
    user: str = ""
    """The user; "" for the account itself."""
    partition: str = ""
    parent: str = ""
    """The parent account of an account."""
    limits: Limits = field(default_factory=dict)

    @property
    def entity(self) -> Entity:
        """Return the account, or the user in the account, as an entity."""
        if self.user:
            return Entity(EntityKind.USER, self.account, self.user)
        return Entity(EntityKind.ACCOUNT, self.account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service.

    Its flags, and the QOS that it preempts, are represented as limits LimitField(FIELD, NAME) = 1. Every QOS
    has a GraceTime, in seconds.
    """

    name: str
    preempt_mode: str = "cluster"
    """The preemption mode of its jobs, in lower case; "cluster" for the mode of slurm.conf."""
    limit_factor: float | None = None
    """The factor by which Slurm multiplies the TRES limits of associations for jobs in this QOS."""
    limits: Limits = field(default_factory=dict)

    @property
    def entity(self) -> Entity:
        """Return the QOS as an entity."""
        return Entity(EntityKind.QOS, self.name)


class Sacctmgr:
    """Reads and changes Slurm's own limits through sacctmgr. All methods raise SlurmError on failure."""

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self._run = run
        self._environ = {**environ, "LC_ALL": "C.UTF-8"}

    def tracked_tres(self) -> frozenset[str]:
        """Return the TRES that can have limits, such as cpu, mem, node, gres/gpu, gres/gpu:a100."""
        rows = self._rows(["tres"], ("Type", "Name"))
        return frozenset(f"{kind}/{name}" if name else kind for kind, name in rows)

    def clusters(self) -> frozenset[str]:
        """Return the clusters of slurmdbd, in lower case as it stores them."""
        return frozenset(name for (name,) in self._rows(["cluster"], ("Cluster",)))

    def associations(self, cluster: str) -> Sequence[Association]:
        """Return all associations of a cluster, each with its own limits."""
        columns = ("Account", "User", "Partition", "ParentName", *ASSOCIATION_FIELDS)
        found = []
        # Without WOPLimits, sacctmgr also prints inherited limits.
        for row in self._rows(["assoc", "where", f"cluster={_name(cluster)}", "WOPLimits"], columns):
            account, user, partition, parent, *values = row
            limits = _read_limits(ASSOCIATION_FIELDS, values, f"account {account} {user}".strip())
            found.append(
                Association(account=account, user=user, partition=partition, parent=parent, limits=limits)
            )
        return found

    def qos(self) -> Sequence[Qos]:
        """Return all QOS; they apply to every cluster of this slurmdbd."""
        found = []
        columns = ("Name", "PreemptMode", "LimitFactor", "Flags", *QOS_FIELDS)
        for name, mode, factor, *values in self._rows(["qos"], columns):
            limits = _read_limits(("Flags", *QOS_FIELDS), values, f"QOS {name}")
            found.append(
                Qos(
                    name=name,
                    limits=limits,
                    preempt_mode=mode.lower(),
                    limit_factor=_read_factor(factor, name),
                )
            )
        return found

    def set_limits(
        self, cluster: str, entities: Sequence[Entity], values: Mapping[LimitField, int | None]
    ) -> None:
        """Set limits of accounts, of users, or of one QOS.

        If users of several accounts are given, each user is changed in each of these accounts. None removes a
        limit; other limits are unchanged. Up to 200 entities are changed in one transaction of slurmdbd.
        Raise SlurmError if all entities are missing.
        """
        if not values:
            return
        for start in range(0, len(entities), _ENTITIES_PER_CALL):
            which = _where(cluster, entities[start : start + _ENTITIES_PER_CALL])
            argv = ["sacctmgr", "--immediate", "modify", *which, "set", *_settings(values)]
            try:
                self._run(argv, self._environ, QUERY_TIMEOUT_S)
            except SlurmError as error:
                if _LOOP not in str(error):
                    raise
                raise SlurmRefusalError(f"{error}\n{_PERHAPS_NO_LOOP}") from None

    def add_qos(self, name: str, description: str, *, requeued: bool) -> None:
        """Create a QOS whose jobs are requeued on preemption, or preempted in the mode of slurm.conf."""
        settings = [f"Description={description}", *(["PreemptMode=requeue"] if requeued else [])]
        self._run(
            ["sacctmgr", "--immediate", "add", "qos", _name(name), "set", *settings],
            self._environ,
            QUERY_TIMEOUT_S,
        )

    def _rows(self, what: Sequence[str], columns: Sequence[str]) -> list[list[str]]:
        argv = ["sacctmgr", "--noheader", "--parsable2", "show", *what, f"format={','.join(columns)}"]
        text = self._run(argv, self._environ, QUERY_TIMEOUT_S)
        rows = [line.split("|") for line in text.splitlines()]
        for row in rows:
            if len(row) != len(columns):
                raise SlurmError(f"sacctmgr show {what[0]} printed {len(row)} columns, not {len(columns)}")
        return rows


def _name(name: str) -> str:
    # sacctmgr would apply an empty name to all entities.
    if not _NAME.fullmatch(name):
        raise SlurmError(f"{name!r} is not a name that sacctmgr accepts")
    return name


def _where(cluster: str, entities: Sequence[Entity]) -> list[str]:
    kind, names = entities[0].kind, ",".join(dict.fromkeys(_name(one.name) for one in entities))
    if kind is EntityKind.USER:
        users = ",".join(_name(one.user) for one in entities)
        return ["user", "where", f"name={users}", f"account={names}", f"cluster={_name(cluster)}"]
    if kind is EntityKind.ACCOUNT:
        return ["account", "where", f"name={names}", f"cluster={_name(cluster)}"]
    return ["qos", "where", f"name={names}"]


def _settings(values: Mapping[LimitField, int | None]) -> list[str]:
    """Return settings such as MaxTRES=cpu=8,mem=-1; the other TRES of a field keep their limits."""
    by_name: dict[str, list[str]] = {}
    for limit, value in sorted(values.items()):
        if limit.is_list_item:
            by_name.setdefault(f"{limit.name}{'-' if value is None else '+'}", []).append(limit.item)
        else:
            amount = _REMOVED if value is None else value
            by_name.setdefault(limit.name, []).append(f"{limit.item}={amount}" if limit.item else str(amount))
    return [f"{name}={','.join(items)}" for name, items in by_name.items()]


def _read_factor(text: str, qos: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise SlurmError(f"QOS {qos}: sacctmgr printed LimitFactor={text!r}") from None


def _read_limits(names: Iterable[str], texts: Iterable[str], of: str) -> dict[LimitField, int]:
    limits: dict[LimitField, int] = {}
    for name, text in zip(names, texts, strict=True):
        if not text:
            continue
        try:
            if "TRES" in name:
                limits |= {LimitField(name, tres): round(n) for tres, n in parse_tres(text).items()}
            elif name == "MaxWall":
                limits[LimitField(name)] = round(parse_slurm_time(text) / 60)
            elif name == "GraceTime":
                limits[LimitField(name)] = round(parse_slurm_time(text))
            elif name in _SETS:
                limits |= {LimitField(name, item): 1 for item in text.split(",") if item}
            else:
                limits[LimitField(name)] = int(text)
        except ValueError as error:
            raise SlurmError(f"{of}: sacctmgr printed {name}={text!r}: {error}") from None
    return limits
