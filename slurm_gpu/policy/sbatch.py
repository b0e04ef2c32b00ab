"""Reads an sbatch command line as sbatch does, as far as the policy can see it.

Command line, then SBATCH_* variables, then #SBATCH lines of the script: the earlier wins. The result is the
job description that sbatch would send, in the spellings of Slurm 23.11 and later (`gres/gpu:2`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu.errors import SlurmError, UsageError
from slurm_gpu.policy.script import EMPTY_DESCRIPTION, INFINITE
from slurm_gpu.slurm.hostlist import expand
from slurm_gpu.units import parse_slurm_time

_SHORT = {
    "A": "account", "a": "array", "p": "partition", "q": "qos", "t": "time", "N": "nodes", "n": "ntasks",
    "G": "gpus", "w": "nodelist", "M": "clusters", "B": "extra-node-info", "b": "begin", "C": "constraint",
    "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "i": "input",
    "J": "job-name", "L": "licenses", "m": "distribution", "o": "output", "S": "core-spec", "x": "exclude",
    "H": "hold", "h": "help", "I": "immediate", "k": "no-kill", "O": "overcommit", "Q": "quiet",
    "s": "oversubscribe", "V": "version", "v": "verbose", "W": "wait",
}  # fmt: skip
_READ = (
    "account", "array", "partition", "qos", "time", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu",
    "ntasks-per-socket", "sockets-per-node", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task",
    "gres", "tres-per-task", "nodelist", "wrap",
)  # fmt: skip
_PASSED_OVER = (
    "acctg-freq", "batch", "bb", "bbf", "begin", "chdir", "clusters", "cluster-constraint", "comment",
    "constraint", "container", "container-id", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu",
    "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "export",
    "export-file", "extra", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gres-flags", "hint", "input",
    "job-name", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu",
    "mem-per-gpu", "mincpus", "network", "nodefile", "ntasks-per-core", "open-mode", "output", "power",
    "prefer", "priority", "profile", "reservation", "resv-ports", "segment", "signal", "stepmgr",
    "switches", "thread-spec", "threads-per-core", "time-min", "tmp", "uid", "wait-all-nodes", "wckey",
)  # fmt: skip
_SHARING = {
    "exclusive": {"": 0, "exclusive": 0, "user": 2, "mcs": 3, "topo": 4},
    "oversubscribe": {"": 1},
}
"""What job_desc.shared says to each spelling; 0 gives the job its nodes to itself."""
_OPTIONAL = (
    "get-user-env",
    "kill-on-invalid-dep",
    "nice",
    "no-requeue",
    "propagate",
)
_FLAGS = (
    "contiguous", "help", "hold", "ignore-pbs", "immediate", "no-kill", "overcommit", "parsable", "quiet",
    "reboot", "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
)  # fmt: skip
_WITH_VALUE = frozenset((*_READ, *_PASSED_OVER))
_KNOWN = frozenset((*_READ, *_PASSED_OVER, *_OPTIONAL, *_SHARING, *_FLAGS))

_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_GPUS": "gpus",
    "SBATCH_GPUS_PER_NODE": "gpus-per-node",
    "SBATCH_GPUS_PER_TASK": "gpus-per-task",
    "SBATCH_GRES": "gres",
    "SBATCH_EXCLUSIVE": "exclusive",
}


@dataclass(frozen=True, slots=True)
class SbatchRequest:
    """What an sbatch command line asks for."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Long option → value, of those that matter to the policy."""
    notes: tuple[str, ...] = ()
    """What was passed over and might matter, for the user to see."""

    def description(self, user_id: int, user_name: str) -> dict[str, str | int | float | bool | None]:
        """The job description (the fields of job_desc that the Lua reads); raises UsageError."""
        get = self.options.get
        nodes, most_nodes = _nodes(get("nodes"), get("nodelist"))
        desc = dict(EMPTY_DESCRIPTION) | {
            "user_id": user_id,
            "user_name": user_name,
            "script": "#!/bin/sh",
            "account": get("account"),
            "partition": get("partition"),
            "qos": get("qos"),
            "array_inx": get("array"),
            "tres_per_job": _gres("gpu:", get("gpus")),
            "tres_per_node": _joined(_gres("", get("gres")), _gres("gpu:", get("gpus-per-node"))),
            "tres_per_socket": _gres("gpu:", get("gpus-per-socket")),
            "tres_per_task": _joined(_gres("gpu:", get("gpus-per-task")), get("tres-per-task")),
        }
        numbers = {
            "shared": _shared(self.options),
            "time_limit": _minutes(get("time")),
            "min_nodes": nodes,
            "max_nodes": most_nodes,
            "num_tasks": _number("ntasks", get("ntasks")),
            "ntasks_per_node": _number("ntasks-per-node", get("ntasks-per-node")),
            "ntasks_per_tres": _number("ntasks-per-gpu", get("ntasks-per-gpu")),
            "sockets_per_node": _number("sockets-per-node", get("sockets-per-node")),
        }
        return desc | {key: value for key, value in numbers.items() if value is not None}


def parse_sbatch(argv: Sequence[str], environ: Mapping[str, str]) -> SbatchRequest:
    """Read `sbatch [options] [script [arguments]]`, with or without the word sbatch; raises UsageError."""
    words = list(argv)
    if words and Path(words[0]).name == "sbatch":
        words = words[1:]
    notes: list[str] = []
    given, rest = _options(words, "the command line", notes)
    options: dict[str, str] = {}
    if rest and "wrap" not in given:
        options |= _script_options(Path(rest[0]), notes)
    elif not rest and "wrap" not in given:
        raise UsageError("no job script: write `slurm-gpu explain -- sbatch [options] SCRIPT`, or use --wrap")
    options |= {option: environ[name] for name, option in _ENVIRONMENT.items() if environ.get(name)}
    options |= given
    return SbatchRequest(
        {key: value for key, value in options.items() if key in _READ or key in _SHARING}, tuple(notes)
    )


def _script_options(script: Path, notes: list[str]) -> dict[str, str]:
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from error
    options: dict[str, str] = {}
    for line in _directives(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{script}: `#SBATCH {line}`: {error}") from error
        if words and words[0] in ("hetjob", "packjob"):
            raise UsageError(f"{script} is a heterogeneous job; explain its components one by one")
        found, rest = _options(words, f"{script}", notes)
        if rest:
            raise UsageError(f"{script}: `#SBATCH {line}`: {rest[0]!r} is not an option")
        options |= found
    return options


def _directives(text: str) -> Iterator[str]:
    """What follows #SBATCH, up to the first line that is a command."""
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            yield line.removeprefix("#SBATCH").strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _options(words: Sequence[str], where: str, notes: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options up to the first word that is none, and the rest."""
    found: dict[str, str] = {}
    queue = list(words)
    while queue:
        word = queue[0]
        if word == "--":
            return found, queue[1:]
        if word.startswith("--"):
            queue.pop(0)
            _long_option(word, queue, where, notes, found)
        elif word.startswith("-") and len(word) > 1:
            queue.pop(0)
            _short_options(word[1:], queue, where, found)
        else:
            return found, queue
    return found, []


def _long_option(word: str, queue: list[str], where: str, notes: list[str], found: dict[str, str]) -> None:
    name, equals, value = word[2:].partition("=")
    # getopt takes any beginning that fits only one option.
    fitting = [name] if name in _KNOWN else sorted(option for option in _KNOWN if option.startswith(name))
    if len(fitting) > 1:
        raise UsageError(f"{where}: --{name} could be --{' or --'.join(fitting)}")
    if not fitting:
        if not equals and queue and not queue[0].startswith("-"):
            raise UsageError(
                f"{where}: explain does not know --{name}, nor whether {queue[0]!r} is its value; "
                f"write --{name}=VALUE or leave it out"
            )
        notes.append(f"--{name} is unknown to explain and was passed over")
        return
    option = fitting[0]
    if option in _WITH_VALUE and not equals:
        if not queue:
            raise UsageError(f"{where}: --{option} needs a value")
        value = queue.pop(0)
    found[option] = value


def _short_options(letters: str, queue: list[str], where: str, found: dict[str, str]) -> None:
    while letters:
        option = _SHORT.get(letters[0])
        if option is None:
            raise UsageError(f"{where}: -{letters[0]} is not an option of sbatch that explain knows")
        value, letters = letters[1:], letters[1:]
        if option in _WITH_VALUE:
            letters = ""
            if not value:
                if not queue:
                    raise UsageError(f"{where}: --{option} needs a value")
                value = queue.pop(0)
            found[option] = value
        else:
            found[option] = ""


def _shared(options: Mapping[str, str]) -> int | None:
    shared = None
    for option, spellings in _SHARING.items():
        value = options.get(option)
        if value is not None:
            if value not in spellings:
                raise UsageError(f"--{option}: {value!r} is not one of {', '.join(spellings)}")
            shared = spellings[value]
    return shared


def _joined(*parts: str | None) -> str | None:
    return ",".join(part for part in parts if part) or None


def _gres(prefix: str, value: str | None) -> str | None:
    if value is None or value in ("", "none"):
        return None
    return ",".join(f"gres/{prefix}{item.removeprefix('gres:')}" for item in value.split(","))


def _number(option: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise UsageError(f"--{option}: {value!r} must be a whole number")
    return int(value)


def _nodes(value: str | None, nodelist: str | None) -> tuple[int | None, int | None]:
    if value is None:
        if nodelist is None or "/" in nodelist:
            return None, None
        try:
            return len(expand(nodelist)), None
        except (ValueError, SlurmError) as error:
            raise UsageError(f"--nodelist: {error}") from error
    least, _, most = value.partition("-")
    counts = [_count(part) for part in (least, most or least)]
    if None in counts:
        raise UsageError(f"--nodes: {value!r} must be a number or a range such as 2-4")
    return counts[0], counts[1]


def _count(text: str) -> int | None:
    factor = {"k": 1024, "m": 1024**2}.get(text[-1:].lower())
    digits = text[:-1] if factor else text
    return int(digits) * (factor or 1) if digits.isascii() and digits.isdigit() else None


def _minutes(value: str | None) -> int | None:
    if value is None:
        return None
    if value.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return INFINITE
    try:
        minutes = math.ceil(parse_slurm_time(value) / 60)
    except ValueError as error:
        raise UsageError(f"--time: {error}") from error
    return minutes or INFINITE
