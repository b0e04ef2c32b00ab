"""Run a job_submit.lua outside slurmctld, in a real Lua interpreter, as slurmctld would run it.

`policy apply` uses this module to test a bundle before installing it; `explain` and the tests use it, too.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.lua.prelude import PRELUDE
from slurm_gpu.slurm import job_desc
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.text.units import parse_slurm_time

# Debian 12 links Slurm with Lua 5.1, other distributions with 5.3 or 5.4.
LUA_VERSIONS = ("5.1", "5.2", "5.3", "5.4")

# Fields of a job, a partition or a job record; only the fields environment and argv are mappings.
ScalarFields = Mapping[str, Any]

_DUMP = "return function(t) local out = {} for k, v in pairs(t) do out[#out + 1] = {k, v} end return out end"


class ScriptError(OutsideError):
    """A job_submit.lua cannot be loaded, or raises an error that slurmctld would receive."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A limit that a script checked for a job, worded as in the script's messages."""

    rule: str
    mode: str
    label: str
    # The amount in use; None if the limit applies to one job.
    used: str | None
    limit: str
    requested: str
    fits: bool


@dataclass(frozen=True, slots=True)
class Change:
    """An option that a rule sets for a job, or would set in `mode: fit`."""

    rule: str
    mode: str
    # As in a command, such as --partition=debug.
    option: str
    # The value that the job named; None if it named none.
    was: str | None

    @property
    def is_made(self) -> bool:
        """Return whether the job has the option now."""
        return self.mode == "fit"

    def __str__(self) -> str:
        """Describe the change, such as "rule short-jobs set --partition=debug (was gpu)"."""
        what = f"{self.option} (was {self.was})" if self.was else self.option
        return (
            f"rule {self.rule} set {what}"
            if self.is_made
            else f"rule {self.rule} would set {what} (mode: {self.mode})"
        )

    @classmethod
    def read_all(cls, text: str) -> tuple[Change, ...]:
        """Parse `changes=` of a decision; skip malformed entries."""
        parts = (one.split(":", 2) for one in text.split(";"))
        return tuple(cls(one[0], one[1], one[2], None) for one in parts if len(one) == 3)


@dataclass(frozen=True, slots=True)
class ZoneDecision:
    """A script's decision on zones for a distributed job."""

    mode: str
    # Alternative zones and their scores, the best first.
    zones: tuple[tuple[str, int], ...] = ()
    # The log word for the reason not to change the job (docs/contracts.md, section 4); None if zones fit.
    why: str | None = None
    # The user's own constraint followed by these zones; None if unknown.
    constraint: str | None = None

    @classmethod
    def read(cls, text: str, constraint: str | None = None) -> ZoneDecision:
        """Parse `zone=` of a decision, such as enforce:zone1:812,zone2:350; raise ValueError if invalid."""
        mode, _, rest = text.partition(":")
        if rest.startswith("-:"):
            return cls(mode, why=rest[2:])
        pairs = (part.rpartition(":") for part in rest.split(","))
        return cls(mode, tuple((zone, int(score)) for zone, _, score in pairs), None, constraint)


@dataclass(frozen=True, slots=True)
class ScriptDecision:
    """A script's decision on one job."""

    # The value 0 accepts the job; any other value is the error code that sbatch reports.
    code: int
    # The lines that sbatch prints, without the prefix that sbatch adds.
    messages: tuple[str, ...]
    # (level, text) of each line in slurmctld's log.
    log: tuple[tuple[str, str], ...] = ()
    # The job description as the script left it.
    desc: Mapping[str, Any] = field(default_factory=dict)
    # Every limit that was checked; set only with `considers`.
    considered: tuple[Considered, ...] = ()
    # Set only with `considers`; None if the job fits on one node or the snapshot has no zones.
    placed: ZoneDecision | None = None
    changes: tuple[Change, ...] = ()

    @property
    def accepted(self) -> bool:
        """Return whether the script accepted the job."""
        return self.code == 0


class PolicyScript:
    """A loaded job_submit.lua with its own Lua state.

    With `writes`, the script can write files, as in slurmctld; otherwise its output is discarded. `now`
    replaces the clock of os.time and os.date. If `now` is given, `uptime` replaces the uptime of the machine,
    and the boot ID is "boot"; without `uptime`, the script can read neither value. `files` maps each path to
    the text that the script reads from it; None means that the file does not exist. With `considers`,
    decisions list every limit that was checked. Fields, constants and the notation of GPUs match the Slurm
    version in `settings`, or the newest version.

    Raise ScriptError if slurmctld would refuse to load the script.
    """

    def __init__(
        self,
        text: str,
        *,
        lua: str = "5.4",
        writes: bool = False,
        now: Callable[[], int] | None = None,
        uptime: Callable[[], float] | None = None,
        files: Mapping[str, str | None] | None = None,
        considers: bool = False,
        settings: SlurmSettings | None = None,
    ) -> None:
        version = job_desc.NEWEST if settings is None else job_desc.read_version(settings.version)
        runtime_type = importlib.import_module(f"lupa.lua{lua.replace('.', '')}").LuaRuntime
        self._lua = runtime_type(register_eval=False, register_builtins=False)
        self._records: dict[str, Any] = {}
        self._messages: list[str] = []
        self._logged: list[tuple[str, str]] = []
        self._considered: list[Considered] = []
        self._placed: ZoneDecision | None = None
        self._changes: list[Change] = []
        # Modules and commands that the script uses and slurmctld may have, but this process lacks.
        self.not_here: dict[str, None] = {}
        self._is_float = lua >= "5.3"
        fields = job_desc.job_desc_fields(version)
        self._unset = self._table(fields.unset)
        self._unset_update = self._table({**fields.unset, **job_desc.UPDATE})
        self._host = self._lua.table_from(
            {
                "say": self._messages.append,
                "log": lambda level, line: self._logged.append((level, line)),
                "not_here": lambda what: self.not_here.setdefault(what),
                "minutes": _minutes,
                "writes": writes,
                "now": now,
                "read": None if files is None else _reader(files),
                "uptime": uptime,
                "cluster": "cluster" if settings is None else settings.cluster,
                "constants": self._table(job_desc.constants(version)),
                "codes": None if version >= (23, 2) else job_desc.OLD_CODES,
                "aliases": self._table(fields.aliases),
                "writable": self._table(
                    {
                        name: "string" if name in job_desc.TEXTS else "number"
                        for name in fields.unset
                        if name not in job_desc.READ_ONLY
                    }
                ),
            }
        )
        self._lua.execute(PRELUDE, self._host)
        self._partition_meta, self._record_meta = (
            self._host.complete(self._table(found.unset), self._table(found.aliases))
            for found in (job_desc.partition_fields(version), job_desc.job_record_fields(version))
        )
        self._lua.globals().slurm_gpu_changed = self._change
        if considers:
            self._lua.globals().slurm_gpu_considered = self._consider
            self._lua.globals().slurm_gpu_placed = self._place
        self._pairs = self._lua.execute(_DUMP)
        try:
            code = self._lua.execute(text)
        except Exception as error:  # lupa has one LuaError per Lua version, and raises Python errors, too
            raise ScriptError(f"Lua {lua}: {error}") from error
        functions = self._lua.globals()
        if code != 0 or functions.slurm_job_submit is None or functions.slurm_job_modify is None:
            raise ScriptError(f"Lua {lua}: the script must define slurm_job_submit and slurm_job_modify")

    def _consider(
        self, rule: str, mode: str, label: str, used: str, limit: str, requested: str, fits: bool
    ) -> None:
        self._considered.append(Considered(rule, mode, label, used or None, limit, requested, fits))

    def _change(self, rule: str, mode: str, option: str, was: str) -> None:
        self._changes.append(Change(rule, mode, option, was or None))

    def _place(self, text: str, constraint: str) -> None:
        self._placed = ZoneDecision.read(text, constraint or None)

    def set_jobs(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the slurm.jobs table, as slurmctld does when a job has changed."""
        self._records = {str(record["job_id"]): self._row(record, self._record_meta) for record in records}
        self._lua.globals().slurm.jobs = self._lua.table_from(self._records)

    def change_jobs(self, changes: Mapping[int, Mapping[str, Any] | None]) -> None:
        """Replace the given records in the last slurm.jobs table, and remove jobs whose record is None."""
        for job_id, record in changes.items():
            if record is None:
                self._records.pop(str(job_id), None)
            else:
                self._records[str(job_id)] = self._row(record, self._record_meta)
        self._lua.globals().slurm.jobs = self._lua.table_from(self._records)

    def submit(
        self, desc: ScalarFields, partitions: Iterable[ScalarFields] = (), submit_uid: int | None = None
    ) -> ScriptDecision:
        """Call slurm_job_submit for a job description; partitions have fields such as default_time."""
        uid = desc["user_id"] if submit_uid is None else submit_uid
        function = self._lua.globals().slurm_job_submit
        return self._call(function, desc, self._unset, self._partitions(partitions), self._value(uid))

    def modify(
        self,
        desc: ScalarFields,
        record: ScalarFields,
        partitions: Iterable[ScalarFields] = (),
        modify_uid: int | None = None,
    ) -> ScriptDecision:
        """Call slurm_job_modify for the changed fields `desc` of the job `record`."""
        uid = record["user_id"] if modify_uid is None else modify_uid
        function = self._lua.globals().slurm_job_modify
        row = self._row(record, self._record_meta)
        parts = self._partitions(partitions)
        return self._call(function, desc, self._unset_update, row, parts, self._value(uid))

    def _call(self, function: Any, desc: ScalarFields, unset: Any, *rest: Any) -> ScriptDecision:
        self._messages.clear()
        self._logged.clear()
        self._considered.clear()
        self._changes.clear()
        self._placed = None
        table = self._table(desc)
        try:
            code = int(function(self._host.describe(table, unset), *rest))
        except Exception as error:  # as above
            raise ScriptError(f"the script raised an error to slurmctld: {error}") from error
        lines = tuple(line for text in self._messages for line in text.split("\n"))
        after = {pair[1]: _whole(pair[2]) for pair in self._pairs(table).values()}
        return ScriptDecision(
            code,
            lines,
            tuple(self._logged),
            after,
            tuple(self._considered),
            self._placed,
            tuple(self._changes),
        )

    def _table(self, fields: Mapping[Any, Any]) -> Any:
        return self._lua.table_from(
            {key: self._value(value) for key, value in fields.items() if value is not None}
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._table(value)
        # slurmctld passes every number as a double.
        return float(value) if self._is_float and type(value) is int else value

    def _partitions(self, partitions: Iterable[ScalarFields]) -> Any:
        rows = {str(part["name"]): self._row(part, self._partition_meta) for part in partitions}
        return self._lua.table_from(rows)

    def _row(self, fields: ScalarFields, meta: Any) -> Any:
        return self._host.setmetatable(self._table(fields), meta)


def linked_lua(settings: SlurmSettings | None) -> str | None:
    """Return the Lua version with which slurmctld's plugin is linked; None if this host has no plugin."""
    plugins = "" if settings is None else settings.raw.get("PluginDir", "")
    for directory in filter(None, plugins.split(":")):
        try:
            plugin = (Path(directory) / "job_submit_lua.so").read_bytes()
        except OSError:
            continue
        # The library has different names, such as liblua5.1.so.0 (Debian) and liblua-5.4.so (RHEL).
        found = {match.decode() for match in re.findall(rb"liblua-?(5\.[1-4])\.so", plugin)}
        return found.pop() if len(found) == 1 else None
    return None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _minutes(text: str) -> int:
    """Return the result of slurm.time_str2mins: -1 for no limit, and -2 for an invalid time."""
    if text.upper() in ("-1", "INFINITE", "UNLIMITED"):
        return -1
    try:
        return math.ceil(parse_slurm_time(text) / 60)
    except ValueError:
        return -2


def _reader(files: Mapping[str, str | None]) -> Callable[[str], str | bool | None]:
    """Return the function with which the prelude reads files.

    The function returns the text of a file, False if the file does not exist, or None if it is not replaced.
    """

    def read(path: str) -> str | bool | None:
        if path not in files:
            return None
        text = files[path]
        return False if text is None else text

    return read
