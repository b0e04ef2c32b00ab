"""Parse a command line as sbatch, srun and salloc do, including all options that the policy depends on.

The command line overrides variables such as SBATCH_GPUS, and these override #SBATCH lines in the script.
`SbatchRequest.description` returns the job description that the command would send, in the notation of Slurm
23.11 and later (`gres/gpu:2`).
"""

from __future__ import annotations

import difflib
import os
import pwd
import re
import shlex
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from slurm_gpu.errors import UsageError
from slurm_gpu.policy.explain import gpu_options as gpuforms
from slurm_gpu.policy.explain import option_values as optionvalues
from slurm_gpu.policy.explain.begin_time import begin_time
from slurm_gpu.policy.explain.slurm_options import (
    COMMANDS_BY_NAME,
    READ_FLAGS,
    READ_OPTIONS,
    SHARING_OPTIONS,
    SlurmCommand,
)
from slurm_gpu.slurm.job_desc import NICE_OFFSET

# Maximum size of a job script, larger than any likely max_script_size (Slurm's default is 4 MiB).
_MOST_CHARACTERS = 64 * 2**20
COMMANDS = tuple(COMMANDS_BY_NAME)


_VARIABLES = {
    "ACCOUNT": "account",
    "ARRAY_INX": "array",
    "PARTITION": "partition",
    "QOS": "qos",
    "TIMELIMIT": "time",
    "GPUS": "gpus",
    "GPUS_PER_NODE": "gpus-per-node",
    "GPUS_PER_TASK": "gpus-per-task",
    "GRES": "gres",
    "EXCLUSIVE": "exclusive",
    "CONSTRAINT": "constraint",
    "RESERVATION": "reservation",
    "JOB_NAME": "job-name",
}
# Field of job_desc → the option whose text it contains. Only a site's own script reads most of these fields.
_TEXTS = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "name": "job-name",
    "comment": "comment",
    "features": "constraint",
    "dependency": "dependency",
    "reservation": "reservation",
    "req_nodes": "nodelist",
    "exc_nodes": "exclude",
    "licenses": "licenses",
    "wckey": "wckey",
    "acctg_freq": "acctg-freq",
    "batch_features": "batch",
    "burst_buffer": "bb",
    "clusters": "clusters",
    "container": "container",
    "extra": "extra",
    "mail_user": "mail-user",
    "mcs_label": "mcs-label",
    "network": "network",
    "prefer": "prefer",
}
_FILES = {"std_err": "error", "std_in": "input", "std_out": "output"}
# Field of job_desc with GRES → the options that determine it.
_GRES = {
    "tres_per_job": ("gpus",),
    "tres_per_node": ("gres", "gpus-per-node"),
    "tres_per_socket": ("gpus-per-socket",),
    "tres_per_task": ("gpus-per-task", "tres-per-task"),
}
_VARIABLES_OF_SRUN = {"NNODES": "nodes", "NTASKS": "ntasks"}


@dataclass(frozen=True, slots=True)
class SbatchRequest:
    """The options and the script of a command line."""

    # Long option → value, for options that affect the decision of the policy or of Slurm.
    options: Mapping[str, str] = field(default_factory=dict)
    # The command: sbatch, srun or salloc.
    command: str = "sbatch"
    # Text of the job script; None for srun and salloc.
    script: str | None = None
    # The script or program, and its arguments.
    words: Sequence[str] = ()
    # The environment of the command.
    environ: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, options: Iterable[str]) -> SbatchRequest:
        """Return the request with these options, such as --partition=debug, added or replaced."""
        pairs = (option.removeprefix("--").partition("=") for option in options)
        return replace(self, options={**self.options, **{name: value.strip("'") for name, _, value in pairs}})

    def description(self, user_id: int, user_name: str, gpu_types: Collection[str] = ()) -> dict[str, Any]:
        """Return the fields of job_desc that the command sets.

        `gpu_types` are the GPU types of the cluster in lower case; if empty, any type is accepted. Raise
        UsageError if a value is invalid.
        """
        numbers = self._numbers() | self._flags()
        numbers |= gpuforms.settled(self.gres(gpu_types), numbers)
        get = self.options.get
        work_dir = Path(get("chdir", ".")).absolute()
        desc: dict[str, Any] = {
            "user_id": user_id,
            "user_name": user_name,
            "script": self.script,
            "argc": len(self.words),
            "argv": dict(enumerate(self.words)) or None,
            "alloc_node": socket.gethostname().partition(".")[0],
            "group_id": _group_of(user_id),
            "work_dir": str(work_dir),
            "array_inx": optionvalues.array(get("array")),
            **{field: get(option) for field, option in _TEXTS.items() if option in self.options},
        }
        if self.script is not None:
            desc["environment"] = self.environ
            files = {"input": "/dev/null"} | dict(self.options)
            desc |= {
                field: str(work_dir / files[option]) for field, option in _FILES.items() if option in files
            }
        return (
            desc | self._tres(gpu_types) | {key: value for key, value in numbers.items() if value is not None}
        )

    def mistakes(self) -> list[str]:
        """Return messages on combinations of valid options that the command would refuse.

        Raise UsageError if a value is invalid.
        """
        found = gpuforms.mistakes(self.gres(), self._numbers())
        for names in (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu")):
            given = [f"--{name}" for name in names if name in self.options]
            if len(given) > 1:
                found.append(f"{' and '.join(given)} cannot be combined: use only one of them")
        return found

    def gres(self, gpu_types: Collection[str] = ()) -> dict[str, str]:
        """Return the GRES that each given option requests, such as gres/gpu:2 for gpus.

        Raise UsageError if a value is invalid.
        """
        parsers = {False: optionvalues.gpus, True: optionvalues.gres}
        found = {
            option: parsers["gpus" not in option](option, self.options.get(option), gpu_types)
            for options in _GRES.values()
            for option in options
        }
        return {option: text for option, text in found.items() if text}

    def _tres(self, gpu_types: Collection[str]) -> dict[str, str | None]:
        """Return the fields of job_desc that contain TRES."""
        get, by_option = self.options.get, self.gres(gpu_types)
        return {
            **{
                name: ",".join(by_option[option] for option in options if option in by_option) or None
                for name, options in _GRES.items()
            },
            "cpus_per_tres": _per_gpu(optionvalues.number("cpus-per-gpu", get("cpus-per-gpu"))),
            "mem_per_tres": _per_gpu(optionvalues.mib("mem-per-gpu", get("mem-per-gpu"))),
        }

    def _numbers(self) -> dict[str, int | None]:
        """Return the numeric fields of job_desc; None for options that are not given."""
        get = self.options.get

        def number(option: str) -> int | None:
            return optionvalues.number(option, get(option))

        nodes, most_nodes = optionvalues.nodes(get("nodes"), get("nodelist"))
        tasks, cpus = number("ntasks"), number("cpus-per-task")
        per_node = number("ntasks-per-node")
        at_least = nodes if nodes is not None else 1
        if tasks is None:
            least_tasks = at_least * (1 if per_node is None else per_node)
        else:
            least_tasks = max(tasks, at_least)
        return {
            "shared": _shared(self.options),
            "time_limit": optionvalues.minutes(get("time")),
            "begin_time": begin_time(get("begin"), time.time()),
            "min_nodes": nodes,
            "max_nodes": most_nodes,
            "num_tasks": tasks,
            "ntasks_per_node": per_node,
            "ntasks_per_tres": number("ntasks-per-gpu"),
            "ntasks_per_core": number("ntasks-per-core"),
            "ntasks_per_socket": number("ntasks-per-socket"),
            "cores_per_socket": number("cores-per-socket"),
            "threads_per_core": number("threads-per-core"),
            "time_min": optionvalues.minutes(get("time-min")),
            "sockets_per_node": number("sockets-per-node"),
            "cpus_per_task": cpus,
            "min_cpus": (
                at_least if "overcommit" in self.options else least_tasks * (1 if cpus is None else cpus)
            ),
            "pn_min_cpus": number("mincpus") if cpus is None else cpus,
            "min_mem_per_node": optionvalues.mib("mem", get("mem")),
            "min_mem_per_cpu": optionvalues.mib("mem-per-cpu", get("mem-per-cpu")),
        }

    def _flags(self) -> dict[str, int | None]:
        """Return further numeric fields of job_desc; None for options that are not given."""
        options, nice = self.options, self.options.get("nice")
        if nice is not None:
            nice = nice if re.fullmatch(r"-?\d{1,9}", nice) else "100"
        return {
            "contiguous": 1 if "contiguous" in options else None,
            "priority": 0 if "hold" in options else None,
            "requeue": 1 if "requeue" in options else 0 if "no-requeue" in options else None,
            "nice": None if nice is None else NICE_OFFSET + int(nice),
        }


def parse_command(
    argv: Sequence[str], environ: Mapping[str, str], stdin: TextIO | None = None
) -> SbatchRequest:
    """Parse `sbatch [options] [script [arguments]]`, `srun [options] program` or `salloc [options]`.

    The default command is sbatch. If the command line names no script, sbatch reads it from `stdin`. Raise
    UsageError if the command line is invalid.
    """
    words = list(argv)
    name = Path(words[0]).name if words else ""
    if name in COMMANDS:
        words = words[1:]
    elif words and not words[0].startswith("-") and not os.path.exists(words[0]):  # noqa: PTH110 - Path raises for names that are too long
        raise UsageError(
            f"{words[0][:100]!r} is neither a command ({', '.join(COMMANDS)}) nor an existing job script: "
            "write `slurm-gpu explain -- sbatch [options] SCRIPT`"
        )
    command = COMMANDS_BY_NAME[name if name in COMMANDS else "sbatch"]
    given, rest = _options(words, command, "the command line")
    if ":" in (rest[:1] if command.name == "sbatch" else rest):
        raise UsageError(
            "`:` starts another component of a heterogeneous job; explain the components one by one"
        )
    options: dict[str, str] = {}
    script = None
    if command.name == "sbatch" and "wrap" in given:
        options["job-name"] = "wrap"
        script = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given['wrap']}\n"
    elif command.name == "sbatch":
        script = _read_script(rest, stdin)
        options["job-name"] = Path(rest[0]).name if rest else "sbatch"
        options |= _script_options(script, rest[0] if rest else "standard input", command)
    elif command.name == "srun" and not rest:
        raise UsageError("no program: write `slurm-gpu explain -- srun [options] PROGRAM`")
    else:
        options["job-name"] = Path(rest[0]).name if command.name == "srun" else "interactive"
    variables = _VARIABLES | (_VARIABLES_OF_SRUN if command.name == "srun" else {})
    for variable, option in variables.items():
        value = environ.get(command.variables + variable)
        if value and option in command.known:
            options[option] = value
    options |= given
    return SbatchRequest(
        {key: value for key, value in options.items() if key in READ_OPTIONS or key in READ_FLAGS},
        command.name,
        script,
        () if "wrap" in given else rest,
        environ,
    )


def _read_script(rest: Sequence[str], stdin: TextIO | None) -> str:
    """Return the text of the named script, or of standard input."""
    script = rest[0] if rest else "standard input"
    try:
        if rest:
            with Path(script).open(encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST_CHARACTERS)
        else:
            text = stdin.read(_MOST_CHARACTERS) if stdin is not None else ""
    except UnicodeDecodeError as error:
        raise UsageError(f"{script} is not text (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}") from error
    if not rest and not text.strip():
        raise UsageError("no job script: write `slurm-gpu explain -- sbatch [options] SCRIPT`, or use --wrap")
    return text


def _script_options(text: str, script: str, command: SlurmCommand) -> dict[str, str]:
    """Return the options in the #SBATCH lines of a script."""
    options: dict[str, str] = {}
    for line in _directives(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{script}: `#SBATCH {line}`: {error}") from error
        if words and words[0] in ("hetjob", "packjob"):
            raise UsageError(f"{script} is a heterogeneous job; explain its components one by one")
        found, rest = _options(words, command, script)
        if rest:
            raise UsageError(f"{script}: `#SBATCH {line}`: {rest[0]!r} is not an option")
        options |= found
    return options


def _directives(text: str) -> Iterator[str]:
    """Yield the text after each #SBATCH, up to the first line that is a command."""
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            yield line.removeprefix("#SBATCH").strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def _options(words: Sequence[str], command: SlurmCommand, where: str) -> tuple[dict[str, str], list[str]]:
    """Return the options up to the first word that is not an option, and the remaining words."""
    found: dict[str, str] = {}
    queue = list(words)
    while queue:
        word = queue[0]
        if word == "--":
            return found, queue[1:]
        if word.startswith("--"):
            queue.pop(0)
            _long_option(word, queue, command, where, found)
        elif word.startswith("-") and len(word) > 1:
            queue.pop(0)
            _short_options(word[1:], queue, command, where, found)
        else:
            return found, queue
    return found, []


def _long_option(
    word: str, queue: list[str], command: SlurmCommand, where: str, found: dict[str, str]
) -> None:
    name, equals, value = word[2:].partition("=")
    # getopt accepts any unambiguous prefix of an option.
    known = command.known
    fitting = [name] if name in known else sorted(option for option in known if option.startswith(name))
    if len(fitting) > 1:
        raise UsageError(f"{where}: --{name} could be --{' or --'.join(fitting)}")
    if not fitting:
        close = difflib.get_close_matches(name, known, 1)
        unknown = f"leave it out of this command if your {command.name} supports it"
        hint = f"did you mean --{close[0]}?" if close else unknown
        raise UsageError(f"{where}: --{name} is not a known option of {command.name}; {hint}")
    option = fitting[0]
    if option in command.with_value and not equals:
        if not queue:
            raise UsageError(f"{where}: --{option} needs a value")
        value = queue.pop(0)
    found[option] = value


def _short_options(
    letters: str, queue: list[str], command: SlurmCommand, where: str, found: dict[str, str]
) -> None:
    while letters:
        option = command.short.get(letters[0])
        if option is None or option not in command.known:
            raise UsageError(f"{where}: -{letters[0]} is not a known option of {command.name}")
        value, letters = letters[1:], letters[1:]
        if option in command.with_value:
            letters = ""
            if not value:
                if not queue:
                    raise UsageError(f"{where}: --{option} needs a value")
                value = queue.pop(0)
            found[option] = value
        elif option in ("immediate", "kill-command", "no-kill"):  # accept a value only if it is attached
            letters, found[option] = "", value
        else:
            found[option] = ""


def _shared(options: Mapping[str, str]) -> int | None:
    value = None
    for option in SHARING_OPTIONS:
        if option in options:
            value = optionvalues.shared(option, options[option])
    return value


def _group_of(user_id: int) -> int | None:
    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return None


def _per_gpu(amount: int | None) -> str | None:
    return None if amount is None else f"gres/gpu:{amount}"
