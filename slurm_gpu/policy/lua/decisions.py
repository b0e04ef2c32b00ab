"""What job_submit.lua decided, and how sharing ended, from decisions.log (docs/contracts.md, section 4)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from slurm_gpu.errors import OutsideError, outside
from slurm_gpu.policy.lua.bundle import DECISIONS_LOG

_MARK = "slurm-gpu/1"
_SECOND = re.compile(r"[0-9]{1,18}")
_FIELD = re.compile(r"[a-z_]{1,40}=.*")
_VERDICTS = {"submit": ("allow", "deny"), "modify": ("allow", "deny"), "share": ("end",)}
_FIELDS_BEFORE_RULES = 5
"""Mark, time, what was asked, verdict, token."""


@dataclass(slots=True)
class RuleCount:
    """How often a rule had something to say about a submission or an update."""

    refused: int = 0
    """mode: enforce. A job that several rules object to counts for each."""
    advised: int = 0
    observed: int = 0
    errors: int = 0
    """Times when the rule itself could not be checked."""

    def count(self, kind: str) -> None:
        """One more of a kind that a line of the log names."""
        match kind:
            case "enforce":
                self.refused += 1
            case "advise":
                self.advised += 1
            case "observe":
                self.observed += 1
            case "error":
                self.errors += 1


@dataclass(slots=True)
class DecisionCounts:
    """All that the logs still hold."""

    since_s: int | None = None
    """Of the oldest decision; None where there is none."""
    accepted: int = 0
    refused: int = 0
    failed: int = 0
    """Decisions in which our own code failed somewhere."""
    rules: dict[str, RuleCount] = field(default_factory=dict)
    """By the rule's id, in the order in which they first objected."""

    def add(self, line: str) -> None:
        """Count one line; what is no whole decision (the last line may be half written) is passed over."""
        words = line.split(" ")
        if len(words) <= _FIELDS_BEFORE_RULES or words[0] != _MARK or not words[1].isdigit():
            return
        said = dict(word.split("=", 1) for word in words[_FIELDS_BEFORE_RULES:] if "=" in word)
        if "rules" not in said or words[3] not in ("allow", "deny"):
            return
        if self.since_s is None:
            self.since_s = int(words[1])
        if words[3] == "allow":
            self.accepted += 1
        else:
            self.refused += 1
        self.failed += "error" in said
        for rule, kind in dict.fromkeys(_objections(said["rules"])):
            self.rules.setdefault(rule, RuleCount()).count(kind)


def count_decisions(run_directory: Path) -> DecisionCounts | None:
    """Counts of the log and the one before it; None where there is none that the caller may read."""
    log = run_directory / DECISIONS_LOG
    counts = DecisionCounts()
    try:
        for file in (log.with_name(f"{log.name}.1"), log):
            if file == log or file.exists():
                with file.open(encoding="utf-8", errors="replace") as lines:
                    _add_all(counts, lines)
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        raise OutsideError(f"{log}: {error.strerror}") from error
    return counts


def _add_all(counts: DecisionCounts, lines: Iterable[str]) -> None:
    for line in lines:
        if line.endswith("\n"):
            counts.add(line.rstrip("\n"))


def _objections(encoded: str) -> Iterator[tuple[str, str]]:
    """(rule, mode); a limit of one type of GPU has a colon more, as in grad-share:gpus:a100:enforce."""
    if encoded != "-":
        for objection in unquote(encoded).split(","):
            rule, _, rest = objection.partition(":")
            yield rule, rest.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A line of the log, taken apart."""

    at_s: int
    asked: str
    """submit or modify; share of a GPU that was shared."""
    verdict: str
    """allow or deny; end of a share."""
    token: str | None
    """None of what was refused."""
    fields: Mapping[str, str]
    """All that follows, by name, decoded."""

    @classmethod
    def read(cls, line: str) -> DecisionLine | None:
        """None of what is no whole line: the last one may be half written, one before it cut off."""
        words = line.split()
        if len(words) <= _FIELDS_BEFORE_RULES or words[0] != _MARK or not _SECOND.fullmatch(words[1]):
            return None
        asked, verdict, token = words[2:_FIELDS_BEFORE_RULES]
        if verdict not in _VERDICTS.get(asked, ()):
            return None
        fields = words[_FIELDS_BEFORE_RULES:]
        if not all(map(_FIELD.fullmatch, fields)):
            return None  # or the user of a line would be that of the one that it runs into
        decoded = {key: unquote(value) for key, _, value in (word.partition("=") for word in fields)}
        return cls(int(words[1]), asked, verdict, None if token == "-" else token, decoded)


def find_decision(run_directory: Path, token: str) -> Mapping[str, str] | None:
    """What the logs say of the job that was let in with this token; None where they say nothing."""
    newest_first = _lines_of(run_directory, token, (DECISIONS_LOG, f"{DECISIONS_LOG}.1"))
    return next((line.fields for line in newest_first if line.asked != "share"), None)


def find_endings(run_directory: Path, token: str) -> list[DecisionLine]:
    """How often sharing ended for the job of this token, and why, as far as the logs still tell."""
    oldest_first = _lines_of(run_directory, token, (f"{DECISIONS_LOG}.1", DECISIONS_LOG))
    return [line for line in oldest_first if line.asked == "share"]


def write_ending(run_directory: Path, at_s: float, token: str, fields: Mapping[str, str]) -> None:
    """Append a line on a job that shared; raises OutsideError. Who ships the log ships it too."""
    text = " ".join(f"{key}={quote(value, safe='')}" for key, value in fields.items())
    path = run_directory / DECISIONS_LOG
    with outside(path):
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # in one write, as job_submit.lua appends to it, too
            os.write(log, f"{_MARK} {at_s:.0f} share end {token} {text}\n".encode())
        finally:
            os.close(log)


def _lines_of(run_directory: Path, token: str, names: Sequence[str]) -> Iterator[DecisionLine]:
    for name in names:
        try:
            with (run_directory / name).open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if token in line and (read := DecisionLine.read(line)) and read.token == token:
                        yield read
        except OSError:
            continue
