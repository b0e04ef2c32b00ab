"""Check that hooks drain no nodes, and that no node is drained because of hooks or GPUs."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok
from slurm_gpu.text.hostlist import compress

_HOOK = re.compile(r"\b(?:prolog|epilog)", re.IGNORECASE)
_GRES = re.compile(r"\bgres/(?:gpu|shard)", re.IGNORECASE)
# Prefixes of the states in which a node gets no jobs.
_OUT = ("drain", "inval", "fail", "down")
# This command creates a hook that does nothing, and that is executable as soon as it has its name.
_NOTHING = "run install -D -m 755 /usr/bin/true {path}"
_NAME = "00-nothing"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The kernel reads this number of bytes of a script to find its interpreter.
_KERNEL_READS = 256


def drained(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that no node is out of service because of its prolog, epilog or GPUs."""
    by_reason: dict[str, list[str]] = {}
    for node in at.nodes:
        if node.reason and any(word.startswith(_OUT) for word in node.state.split("+")):
            by_reason.setdefault(node.reason, []).append(node.name)
    found = False
    for reason, names in by_reason.items():
        nodes = compress(names)
        message = f"drained: {nodes} ({reason})"
        resume = f"scontrol update nodename={nodes} state=resume"
        if _HOOK.search(reason):
            found = True
            held = (
                "" if "epilog" in reason.lower() else ", and scontrol release JOBID for the jobs held since"
            )
            yield fail(
                message,
                f"run slurm-gpu doctor on {names[0]}, or see slurmd's log there, for the cause; then run "
                f"{resume}{held}",
            )
        elif _GRES.search(reason):
            found = True
            yield fail(
                message,
                f"on {names[0]}, compare the output of nvidia-smi -L and slurmd -G; fix gres.conf or the "
                f"GPU; then run {resume}",
            )
    if not found:
        yield ok("no node is drained because of its prolog, epilog or GPUs")


def traps(kind: str, pattern: str, paths: list[Path], remedy: str) -> Iterator[CheckResult]:
    """Yield the problems that drain this node in the files that Prolog or Epilog matches.

    `remedy` is the command that creates a missing file.
    """
    if not paths:
        yield fail(
            f"{kind}={pattern} matches no file: Slurm drains the node of the next job",
            f"{remedy} (or remove {kind} from slurm.conf, and run scontrol reconfigure)",
        )
    for path in paths:
        yield from drains(kind, path)


def nothing(pattern: str) -> str:
    """Return how to create a hook that does nothing and matches the pattern."""
    path = Path(pattern)
    name = path.name.replace("*", _NAME)
    if fnmatch.fnmatchcase(name, path.name):
        return _NOTHING.format(path=path.with_name(name))
    return (
        f"copy an executable file that does nothing, such as /usr/bin/true, to a path that {pattern} matches"
    )


def drains(kind: str, path: Path) -> Iterator[CheckResult]:
    """Yield the problem of one file that makes Slurm drain this node."""
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = 0  # a broken symbolic link
    if not stat.S_ISREG(mode):
        yield fail(
            f"{path} is matched by {kind}, but is not a file: Slurm drains nodes",
            f"move {_typed(path)} to another directory",
        )
    elif not mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        # Do not advise chmod +x for a text file: Slurm would still drain nodes.
        remedy = f"move {_typed(path)} to another directory"
        if _unlike_a_program(path) is None:
            remedy = f"run chmod +x {_typed(path)}, or move it to another directory"
        yield fail(f"{path} is matched by {kind}, but is not executable: Slurm drains nodes", remedy)
    elif (problem := _unlike_a_program(path)) is not None:
        why, remedy = problem
        yield fail(f"{path} is matched by {kind}, but {why}: Slurm drains nodes", remedy)


def _typed(path: Path) -> str:
    """Return the path quoted for a shell."""
    return shlex.quote(str(path))


def _unlike_a_program(path: Path) -> tuple[str, str] | None:
    """Return why slurmd cannot start a file that a shell may accept, and a remedy; None if it can."""
    try:
        with path.open("rb") as file:
            first = file.read(_KERNEL_READS).split(b"\n", 1)[0]
    except OSError:
        return None  # not readable for this user
    if first.startswith(b"\x7fELF"):
        return None
    if not first.startswith(b"#!"):
        why = "is empty" if not first else "does not begin with #! and an interpreter"
        return why, f"write #!/bin/sh, or another interpreter, into the first line of {path}"
    if first.endswith(b"\r"):
        return "its lines have Windows line endings", f"run sed -i 's/\\r$//' {_typed(path)}"
    words = os.fsdecode(first[2:]).split()
    if not words:
        return "its #! names no interpreter", f"write #!/bin/sh, or another interpreter, into {path}"
    by_name = Path(words[0]).name == "env" and len(words) > 1 and re.fullmatch(r"[\w.+][\w.+-]*", words[1])
    interpreter = words[1] if by_name else words[0]
    if shutil.which(interpreter, path=_PATH) is None:
        return (
            f"its interpreter, {interpreter}, does not exist on this host",
            f"install it, or fix the first line of {path}",
        )
    return None
