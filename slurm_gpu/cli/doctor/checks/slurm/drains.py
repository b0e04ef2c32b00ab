"""Hooks that drain nodes, and nodes drained because of hooks or GPUs."""

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
_OUT = ("drain", "inval", "fail", "down")
"""How the words begin with which Slurm says that a node gets no jobs."""
_NOTHING = "install -D -m 755 /usr/bin/true {path}"
"""Makes a hook that does nothing: a file that can be executed from its first moment under its name."""
_NAME = "00-nothing"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The kernel reads these first bytes of a file to find its interpreter.
_KERNEL_READS = 256


def drained(at: DoctorContext) -> Iterator[CheckResult]:
    """No node is out of service for its prolog, its epilog or its GPUs."""
    by_reason: dict[str, list[str]] = {}
    for node in at.nodes:
        if node.reason and any(word.startswith(_OUT) for word in node.state.split("+")):
            by_reason.setdefault(node.reason, []).append(node.name)
    found = False
    for reason, names in by_reason.items():
        nodes = compress(names)
        told = f"drained: {nodes} ({reason})"
        resume = f"scontrol update nodename={nodes} state=resume"
        if _HOOK.search(reason):
            found = True
            yield fail(
                told,
                f"ssh {names[0]} slurm-gpu doctor says what is wrong there, or slurmd's log; then {resume}",
            )
        elif _GRES.search(reason):
            found = True
            yield fail(
                told,
                f"on {names[0]}, compare nvidia-smi -L with slurmd -G, fix gres.conf or the GPU; {resume}",
            )
    if not found:
        yield ok("no node is drained because of its prolog, epilog or GPUs")


def traps(kind: str, pattern: str, paths: list[Path], remedy: str) -> Iterator[CheckResult]:
    """Yield problems of files matched by Prolog or Epilog that drain this node.

    `remedy` creates a missing file.
    """
    if not paths:
        yield fail(
            f"{kind}={pattern} matches nothing: Slurm drains the node of the next job",
            f"{remedy} (or take {kind} out of slurm.conf, and type scontrol reconfigure)",
        )
    for path in paths:
        yield from _drains(kind, path)


def nothing(pattern: str) -> str:
    """Return the command that creates an empty hook for the pattern."""
    path = Path(pattern)
    name = path.name.replace("*", _NAME)
    if fnmatch.fnmatchcase(name, path.name):
        return _NOTHING.format(path=path.with_name(name))
    return (
        f"an executable file that does nothing, such as /usr/bin/true, copied to where {pattern} matches it"
    )


def _drains(kind: str, path: Path) -> Iterator[CheckResult]:
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = 0  # a symbolic link that leads nowhere
    if not stat.S_ISREG(mode):
        yield fail(
            f"{path} is matched by {kind} and is no file: Slurm drains nodes", f"move {_typed(path)} away"
        )
    elif not mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH):
        yield fail(
            f"{path} is matched by {kind} and cannot be executed: Slurm drains nodes",
            f"chmod +x {_typed(path)}, or move it away",
        )
    elif (trouble := _unlike_a_program(path)) is not None:
        why, remedy = trouble
        yield fail(f"{path} is matched by {kind}, but {why}: Slurm drains nodes", remedy)


def _typed(path: Path) -> str:
    """As a shell takes it, blanks and all."""
    return shlex.quote(str(path))


def _unlike_a_program(path: Path) -> tuple[str, str] | None:
    """Why slurmd cannot start it, and what to do; a shell would take some of these files for scripts."""
    try:
        with path.open("rb") as file:
            first = file.read(_KERNEL_READS).split(b"\n", 1)[0]
    except OSError:
        return None  # not this user's to read
    if first.startswith(b"\x7fELF"):
        return None
    if not first.startswith(b"#!"):
        says = "is empty" if not first else "does not begin with #! and an interpreter"
        return says, f"write #!/bin/sh, or what else it is for, into its first line: {path}"
    if first.endswith(b"\r"):
        return "its lines end as in Windows", f"sed -i 's/\\r$//' {_typed(path)}"
    words = os.fsdecode(first[2:]).split()
    if not words:
        return "its #! names no interpreter", f"write #!/bin/sh, or what else it is for, into {path}"
    by_name = Path(words[0]).name == "env" and len(words) > 1 and re.fullmatch(r"[\w.+][\w.+-]*", words[1])
    interpreter = words[1] if by_name else words[0]
    if shutil.which(interpreter, path=_PATH) is None:
        return (
            f"its interpreter, {interpreter}, is not here",
            f"install that, or fix the first line of {path}",
        )
    return None
