"""Recognise the application of a job by the most specific rule that matches one of its processes.

Records contain only the rule's name and field, and the parameters that the rule names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_gpu.node.application.containers import in_container
from slurm_gpu.node.application.evidence import ProcessEvidence, gather
from slurm_gpu.node.application.rules import (
    ApplicationParameter,
    ApplicationRule,
    ApplicationRules,
    Trace,
)
from slurm_gpu.node.process.procfs import Processes

LONGEST_VALUE = 64
# One scan reads the memory maps of at most this many processes.
PROCESSES_PER_SCAN = 20

_LISTED_PER_SCAN = 512
_PATH = re.compile(r"^[/~$.]|://|(?:^|[^\w.-])[/~]|/home/")
_UNPRINTABLE = re.compile(r"[^ -~]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizedApplication:
    """The application recognised in process `pid`; `because` contains the reasons, which only admins see."""

    rule: ApplicationRule
    pid: int
    because: Sequence[str]
    parameters: Mapping[str, str]


def recognise(
    evidence: ProcessEvidence, rules: ApplicationRules, size_of: Callable[[str], int | None]
) -> RecognizedApplication | None:
    """Return the application of the first matching rule; `size_of` returns the size of a file by its name."""
    libraries = filter(rules.libraries.match, evidence.libraries)
    evidence = replace(evidence, libraries=frozenset(libraries))
    for rule in rules.rules:
        because = fits(rule, evidence)
        if because is not None:
            found = {name: _value(p, evidence.arguments, size_of) for name, p in rule.parameters.items()}
            return RecognizedApplication(
                rule=rule,
                pid=evidence.pid,
                because=because,
                parameters={name: value for name, value in found.items() if value is not None},
            )
    return None


def fits(rule: ApplicationRule, evidence: ProcessEvidence) -> Sequence[str] | None:
    """Return the traces that make the rule match this process, or None if it does not match."""
    for trace in rule.traces:
        because = _found(trace, evidence)
        if because is not None:
            return because
    return None


def _found(trace: Trace, evidence: ProcessEvidence) -> Sequence[str] | None:
    because = []
    for what, names, having in (
        ("executable", trace.executable, (evidence.executable,)),
        ("script", trace.script, (evidence.script,)),
        ("module", trace.module, (evidence.module,)),
        ("mapped library", trace.library, evidence.libraries),
    ):
        if names is not None:
            hit = _first(names, having)
            if hit is None:
                return None
            because.append(f"{what} {hit}")
    if trace.python is not None:
        mapped, imported = trace.python & evidence.packages, trace.python & evidence.imports
        if not mapped and not imported:
            return None
        because.append(f"Python package {min(mapped)}" if mapped else f"import of {min(imported)}")
    if trace.arguments is not None:
        if trace.arguments.search(evidence.arguments) is None:
            return None
        because.append(f"arguments like {trace.arguments.pattern}")
    return because


def _first(names: re.Pattern[str], having: Iterable[str | None]) -> str | None:
    """Return the alphabetically first name that matches, or None if there is none."""
    hits = [name for name in having if name is not None and names.match(name)]
    return min(hits) if hits else None


def _value(
    parameter: ApplicationParameter, arguments: str, size_of: Callable[[str], int | None]
) -> str | None:
    match = parameter.pattern.search(arguments)
    if match is None or not match[1]:
        return None
    if parameter.of_file:
        size = size_of(match[1])
        return None if size is None else str(size)
    return tidy(match[1])


def tidy(value: str) -> str | None:
    """Convert a captured value for storage: keep the last part of a path, and only short printable text."""
    value = value.strip("'\" ")
    if _PATH.search(value):
        value = value.rstrip("/").rpartition("/")[2].lstrip("~$")
    value = _UNPRINTABLE.sub("?", value)[:LONGEST_VALUE].strip()
    return value or None


def file_size(processes: Processes, pid: int, name: str) -> int | None:
    """Return the size in bytes of the regular file that the process names; None for other users' files.

    slurm-gpud runs as root, so it must not reveal even the size of files that the user cannot access.
    """
    below = "root" if name.startswith("/") else "cwd"
    try:
        status = os.stat(f"{processes.path(pid, below)}/{name}")  # noqa: PTH116
        own = status.st_uid == processes.uid(pid)
    except (OSError, ValueError):
        return None
    return status.st_size if own and stat.S_ISREG(status.st_mode) else None


class Recognition:
    """The best application recognised in one job so far.

    Each scan reads only processes that are new or whose address space has changed. `unfinished` is true while
    no application has been recognised and some processes have not been scanned.
    """

    def __init__(self, rules: ApplicationRules, processes: Processes) -> None:
        self._rules, self._processes = rules, processes
        self._seen: dict[int, tuple[int, int]] = {}
        self.best: RecognizedApplication | None = None
        self.container: bool | None = None
        self.unfinished = False

    def scan(self, pids: Sequence[int]) -> None:
        """Scan the job's processes in the given order: those on a GPU first, then the busiest."""
        if not self._rules.rules:
            return
        states = dict(self._states(pids[:_LISTED_PER_SCAN]))
        self._seen = {pid: state for pid, state in self._seen.items() if states.get(pid) == state}
        fresh = [pid for pid in states if pid not in self._seen]
        for pid in fresh[:PROCESSES_PER_SCAN]:
            self._seen[pid] = states[pid]
            self._scan_process(pid)
        self.unfinished = self.best is None and len(fresh) > PROCESSES_PER_SCAN

    def _states(self, pids: Iterable[int]) -> Iterable[tuple[int, tuple[int, int]]]:
        for pid in pids:
            try:
                status = self._processes.stat(pid)
            except OSError:
                continue
            # Loading a library enlarges the address space.
            yield pid, (status.started, status.virtual_bytes)

    def _scan_process(self, pid: int) -> None:
        evidence = gather(self._processes, pid)
        if evidence.is_empty:
            return
        if self.best is None and not self.container:
            self.container = in_container(self._processes, pid)
        finding = recognise(evidence, self._rules, lambda name: file_size(self._processes, pid, name))
        if finding is None:
            return
        same = self.best is not None and self.best.rule is finding.rule
        if self.best is None or finding.rule.priority > self.best.rule.priority:
            self.best = finding
            self.container = in_container(self._processes, pid)
        elif same and len(finding.parameters) > len(self.best.parameters):
            self.best = finding
