"""Which application a job runs: the most specific rule that fits one of its processes.

Nothing of a process leaves here but the rule's name and field, and the parameters that the rule names.
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
PROCESSES_PER_LOOK = 20
"""So many processes have their memory maps read in one look."""

_LISTED_PER_LOOK = 512
_PATH = re.compile(r"^[/~$.]|://|(?:^|[^\w.-])[/~]|/home/")
_UNPRINTABLE = re.compile(r"[^ -~]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizedApplication:
    """What was recognised in process `pid`, and why: `because` is fit for the admin's eyes only."""

    rule: ApplicationRule
    pid: int
    because: Sequence[str]
    parameters: Mapping[str, str]


def recognise(
    evidence: ProcessEvidence, rules: ApplicationRules, size_of: Callable[[str], int | None]
) -> RecognizedApplication | None:
    """The first rule that fits; `size_of` tells the bytes of a file that an argument names."""
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
    """By which traces the rule fits this process; None if it does not."""
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
    """The name that fits, the first in order where several do."""
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
    """A captured value as it may be kept: the last part of a path, plain characters, not long."""
    value = value.strip("'\" ")
    if _PATH.search(value):
        value = value.rstrip("/").rpartition("/")[2].lstrip("~$")
    value = _UNPRINTABLE.sub("?", value)[:LONGEST_VALUE].strip()
    return value or None


def file_size(processes: Processes, pid: int, name: str) -> int | None:
    """Bytes of a plain file, as that process would find it; of its own user's files only.

    Root finds files that the user could not: of those not even the size is told.
    """
    below = "root" if name.startswith("/") else "cwd"
    try:
        status = os.stat(f"{processes.path(pid, below)}/{name}")  # noqa: PTH116
        own = status.st_uid == processes.uid(pid)
    except (OSError, ValueError):
        return None
    return status.st_size if own and stat.S_ISREG(status.st_mode) else None


class Recognition:
    """The best that has been recognised in one job so far; looks again only at what is new or has grown."""

    def __init__(self, rules: ApplicationRules, processes: Processes) -> None:
        self._rules, self._processes = rules, processes
        self._seen: dict[int, tuple[int, int]] = {}
        self.best: RecognizedApplication | None = None
        self.container: bool | None = None
        self.unfinished = False
        """Nothing is recognised yet, and there are processes that have not been looked at."""

    def look(self, pids: Sequence[int]) -> None:
        """Look at the job's processes, the likeliest first (those on a GPU, then the busiest)."""
        if not self._rules.rules:
            return
        states = dict(self._states(pids[:_LISTED_PER_LOOK]))
        self._seen = {pid: state for pid, state in self._seen.items() if states.get(pid) == state}
        fresh = [pid for pid in states if pid not in self._seen]
        for pid in fresh[:PROCESSES_PER_LOOK]:
            self._seen[pid] = states[pid]
            self._look_at(pid)
        self.unfinished = self.best is None and len(fresh) > PROCESSES_PER_LOOK

    def _states(self, pids: Iterable[int]) -> Iterable[tuple[int, tuple[int, int]]]:
        for pid in pids:
            try:
                status = self._processes.stat(pid)
            except OSError:
                continue
            # A process that has loaded a library has a larger address space.
            yield pid, (status.started, status.virtual_bytes)

    def _look_at(self, pid: int) -> None:
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
