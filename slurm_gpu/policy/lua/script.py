"""Run a job_submit.lua outside slurmctld, in a real Lua interpreter, as slurmctld would run it.

`policy apply` uses this to test a bundle before installing it; `explain` and the tests use it too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_gpu.errors import OutsideError

# Debian 12 links Slurm with 5.1, others with 5.3 or 5.4.
LUA_VERSIONS = ("5.1", "5.2", "5.3", "5.4")


NO_VAL = 4294967294
INFINITE = 4294967295
NO_VAL16 = 65534

ScalarFields = Mapping[str, str | int | float | bool | None]

# The environment of a script in slurmctld. As in slurmctld, log_user passes its text through string.format.
_PRELUDE = """
local say, log, writes, now, read, uptime = ...
local function logger(level)
  return function(format, ...) log(level, string.format(format, ...)) end
end
slurm = {
  SUCCESS = 0, ERROR = -1, FAILURE = -1, ESLURM_ACCOUNTING_POLICY = 2050,
  NO_VAL = 4294967294, INFINITE = 4294967295, NO_VAL16 = 65534,
  log_user = function(format, ...) say(string.format(format, ...)) end,
  log_error = logger("error"), log_info = logger("info"),
  log_verbose = logger("verbose"), log_debug = logger("debug"),
  jobs = {},
}
slurm.user_msg = slurm.log_user
for level = 2, 4 do slurm["log_debug" .. level] = logger("debug") end
slurm.reservations = {}
-- A site's own script may use any of Slurm's many codes and constants.
setmetatable(slurm, {
  __index = function(_, name)
    if type(name) == "string" and name:find("^[A-Z][A-Z0-9_]*$") then
      return name:find("^ESLURM_") and 2000 or 0
    end
  end,
})
if read then
  local open = io.open
  io.open = function(path, mode)
    local text = read(path)
    if text == nil then return open(path, mode) end
    if text == false then return nil end
    local file = io.tmpfile()
    file:write(text)
    file:seek("set", 0)
    return file
  end
end
if not writes then
  local open = io.open
  local sink = {
    write = function(self) return self end,
    seek = function() return 0 end,
    setvbuf = function() return true end,
    close = function() return true end,
  }
  io.open = function(path, mode)
    if mode and mode:find("[wa+]") then return sink end
    return open(path, mode)
  end
  os.rename, os.remove, os.execute, io.popen = nil, nil, nil, nil
end
if now then
  local date, time = os.date, os.time
  os.time = function(of) return of and time(of) or now() end
  os.date = function(format, at) return date(format, at or now()) end
  local open = io.open
  io.open = function(path, mode)
    local text
    if path == "/proc/uptime" then
      text = function() return string.format("%.2f 0.00\\n", uptime()) end
    elseif path == "/proc/sys/kernel/random/boot_id" then
      text = function() return "boot" end
    else
      return open(path, mode)
    end
    return uptime and {
      seek = function() return 0 end,
      setvbuf = function() return true end,
      read = function(_, what) return type(what) == "number" and text():sub(1, what) or text() end,
      close = function() return true end,
    }
  end
end
"""

_DUMP = "return function(t) local out = {} for k, v in pairs(t) do out[#out + 1] = {k, v} end return out end"


class ScriptError(OutsideError):
    """A job_submit.lua cannot be loaded, or raises an error that slurmctld would receive."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A limit that a script checked for a job, worded as in the script's messages."""

    rule: str
    mode: str
    label: str
    # None if the limit applies to one job.
    used: str | None
    limit: str
    requested: str
    fits: bool


@dataclass(frozen=True, slots=True)
class ZoneDecision:
    """A script's decision on zones for a distributed job."""

    mode: str
    # Alternatives and their scores, the best first.
    zones: tuple[tuple[str, int], ...] = ()
    # The log word for leaving the job unchanged (docs/contracts.md, section 4); None if zones fit.
    why: str | None = None
    # The user's own constraint followed by these zones; None if not known.
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

    # 0 accepts the job; any other value is the error code that sbatch reports.
    code: int
    # Lines as sbatch shows them, without its own prefix.
    messages: tuple[str, ...]
    # (level, text) of each line in slurmctld's log.
    log: tuple[tuple[str, str], ...] = ()
    # The job description as the script left it.
    desc: Mapping[str, Any] = field(default_factory=dict)
    # Every limit that was checked; only with `considers`.
    considered: tuple[Considered, ...] = ()
    # Only with `considers`; None for a job that fits one node, and if the snapshot has no zones.
    placed: ZoneDecision | None = None

    @property
    def accepted(self) -> bool:
        """Return whether the script accepted the job."""
        return self.code == 0


class PolicyScript:
    """A loaded job_submit.lua with its own Lua state.

    With `writes`, the script can write files, as in slurmctld; otherwise its output is discarded. `now`
    replaces the clock of os.time and os.date. If `now` is given, `uptime` replaces the uptime of the machine,
    and the boot ID is "boot"; without `uptime`, the script can read neither. `files` maps paths to the texts
    that the script reads there; None means that the file does not exist. With `considers`, decisions list
    every limit that was checked.

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
    ) -> None:
        runtime_type = importlib.import_module(f"lupa.lua{lua.replace('.', '')}").LuaRuntime
        self._lua = runtime_type(register_eval=False, register_builtins=False)
        self._records: dict[str, Any] = {}
        self._messages: list[str] = []
        self._logged: list[tuple[str, str]] = []
        self._considered: list[Considered] = []
        self._placed: ZoneDecision | None = None
        self._lua.execute(
            _PRELUDE,
            self._messages.append,
            lambda level, line: self._logged.append((level, line)),
            writes,
            now,
            None if files is None else _reader(files),
            uptime,
        )
        if considers:
            self._lua.globals().slurm_gpu_considered = self._consider
            self._lua.globals().slurm_gpu_placed = self._place
        self._pairs = self._lua.execute(_DUMP)
        try:
            code = self._lua.execute(text)
        except Exception as error:  # lupa raises its own LuaError per Lua version, and plain Python errors
            raise ScriptError(f"Lua {lua}: {error}") from error
        functions = self._lua.globals()
        if code != 0 or functions.slurm_job_submit is None or functions.slurm_job_modify is None:
            raise ScriptError(f"Lua {lua}: the script must define slurm_job_submit and slurm_job_modify")

    def _consider(
        self, rule: str, mode: str, label: str, used: str, limit: str, requested: str, fits: bool
    ) -> None:
        self._considered.append(Considered(rule, mode, label, used or None, limit, requested, fits))

    def _place(self, text: str, constraint: str) -> None:
        self._placed = ZoneDecision.read(text, constraint or None)

    def set_jobs(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the slurm.jobs table, as slurmctld does when a job has changed."""
        self._records = {str(record["job_id"]): self._table(record) for record in records}
        self._lua.globals().slurm.jobs = self._lua.table_from(self._records)

    def change_jobs(self, changes: Mapping[int, Mapping[str, Any] | None]) -> None:
        """Replace these records in the last slurm.jobs table, and remove jobs whose record is None."""
        for job_id, record in changes.items():
            if record is None:
                self._records.pop(str(job_id), None)
            else:
                self._records[str(job_id)] = self._table(record)
        self._lua.globals().slurm.jobs = self._lua.table_from(self._records)

    def submit(
        self, desc: ScalarFields, partitions: Iterable[ScalarFields] = (), submit_uid: int | None = None
    ) -> ScriptDecision:
        """Call slurm_job_submit for a job description; partitions contain name, default_time and so on."""
        uid = desc["user_id"] if submit_uid is None else submit_uid
        function = self._lua.globals().slurm_job_submit
        return self._call(function, desc, self._partitions(partitions), uid)

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
        return self._call(function, desc, self._table(record), self._partitions(partitions), uid)

    def _call(self, function: Any, desc: ScalarFields, *rest: Any) -> ScriptDecision:
        self._messages.clear()
        self._logged.clear()
        self._considered.clear()
        self._placed = None
        table = self._table(desc)
        try:
            code = int(function(table, *rest))
        except Exception as error:  # as above
            raise ScriptError(f"the script raised an error to slurmctld: {error}") from error
        lines = tuple(line for text in self._messages for line in text.split("\n"))
        after = {pair[1]: pair[2] for pair in self._pairs(table).values()}
        return ScriptDecision(code, lines, tuple(self._logged), after, tuple(self._considered), self._placed)

    def _table(self, fields: Mapping[str, Any]) -> Any:
        return self._lua.table_from({key: value for key, value in fields.items() if value is not None})

    def _partitions(self, partitions: Iterable[ScalarFields]) -> Any:
        return self._lua.table_from({str(part["name"]): self._table(part) for part in partitions})


def _reader(files: Mapping[str, str | None]) -> Callable[[str], str | bool | None]:
    """Return the function by which the prelude reads files.

    It returns the text of a file, False if the file does not exist, or None if the file is not replaced.
    """

    def read(path: str) -> str | bool | None:
        if path not in files:
            return None
        text = files[path]
        return False if text is None else text

    return read


EMPTY_DESCRIPTION: ScalarFields = {
    # Numbers that sbatch leaves unset; strings it leaves unset are nil.
    "time_limit": NO_VAL,
    "min_nodes": NO_VAL,
    "max_nodes": NO_VAL,
    "num_tasks": NO_VAL,
    "min_cpus": NO_VAL,
    "ntasks_per_node": NO_VAL16,
    "ntasks_per_tres": NO_VAL16,
    "sockets_per_node": NO_VAL16,
    "cpus_per_task": NO_VAL16,
    "pn_min_cpus": NO_VAL16,
    "shared": NO_VAL16,
}
