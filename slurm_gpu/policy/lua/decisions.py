"""Read decisions.log: decisions of job_submit.lua, and ends of sharing (docs/contracts.md, section 4)."""

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
# Mark, time, request, verdict, token.
_FIELDS_BEFORE_RULES = 5


@dataclass(slots=True)
class RuleCount:
    """The number of submissions and updates to which a rule objected, or which it changed."""

    # Objections of rules with mode: enforce. A job that violates several rules counts for each of them.
    refused: int = 0
    advised: int = 0
    observed: int = 0
    # Jobs that it changed, with mode: fit.
    changed: int = 0
    # Submissions and updates for which the rule could not be checked.
    errors: int = 0
    # Times of the first and the last of these errors.
    errors_from_s: int | None = None
    errors_to_s: int | None = None

    def count(self, kind: str, at_s: int) -> None:
        """Count one objection; `kind` is the mode of the rule, or error."""
        match kind:
            case "enforce":
                self.refused += 1
            case "advise":
                self.advised += 1
            case "observe":
                self.observed += 1
            case "fit":
                self.changed += 1
            case "error":
                self.errors += 1
                self.errors_from_s = at_s if self.errors_from_s is None else self.errors_from_s
                self.errors_to_s = at_s


@dataclass(slots=True)
class DecisionCounts:
    """Counts of all decisions in the logs."""

    # Time of the oldest decision; None if there are no decisions.
    since_s: int | None = None
    accepted: int = 0
    refused: int = 0
    # Decisions during which slurm-gpu's own code failed.
    failed: int = 0
    # Counts by rule ID, in the order of the first objections.
    rules: dict[str, RuleCount] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Count one line; ignore an incomplete decision, because the last line may be partly written."""
        words = line.split(" ")
        if len(words) <= _FIELDS_BEFORE_RULES or words[0] != _MARK or not words[1].isdigit():
            return
        fields = dict(word.split("=", 1) for word in words[_FIELDS_BEFORE_RULES:] if "=" in word)
        if "rules" not in fields or words[3] not in ("allow", "deny"):
            return
        if self.since_s is None:
            self.since_s = int(words[1])
        if words[3] == "allow":
            self.accepted += 1
        else:
            self.refused += 1
        self.failed += "error" in fields
        for rule, kind in dict.fromkeys(_objections(fields["rules"])):
            if kind != "fit" or words[3] == "allow":  # a refused job is not changed
                self.rules.setdefault(rule, RuleCount()).count(kind, int(words[1]))


def count_decisions(run_directory: Path) -> DecisionCounts | None:
    """Return the counts of the current and the previous log; None if the caller cannot read them."""
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
    """Yield the rule and mode of each objection.

    A limit for one GPU type contains an additional colon, as in grad-share:gpus:a100:enforce.
    """
    if encoded != "-":
        for objection in unquote(encoded).split(","):
            rule, _, rest = objection.partition(":")
            yield rule, rest.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A parsed line of the log."""

    at_s: int
    # The operation: submit, modify, or share for the end of sharing a GPU.
    operation: str
    # The verdict: allow or deny; end for the operation share.
    verdict: str
    # The token of the job; None for a refused job.
    token: str | None
    # The decoded fields after the token, by name.
    fields: Mapping[str, str]

    @classmethod
    def read(cls, line: str) -> DecisionLine | None:
        """Parse a line; return None if it is incomplete or two lines have run together."""
        words = line.split()
        if len(words) <= _FIELDS_BEFORE_RULES or words[0] != _MARK or not _SECOND.fullmatch(words[1]):
            return None
        operation, verdict, token = words[2:_FIELDS_BEFORE_RULES]
        if verdict not in _VERDICTS.get(operation, ()):
            return None
        fields = words[_FIELDS_BEFORE_RULES:]
        if not all(map(_FIELD.fullmatch, fields)):
            return None  # two lines have run together; their fields must not be mixed
        decoded = {key: unquote(value) for key, _, value in (word.partition("=") for word in fields)}
        return cls(int(words[1]), operation, verdict, None if token == "-" else token, decoded)


def find_decision(run_directory: Path, token: str) -> Mapping[str, str] | None:
    """Return the logged fields of the job that was accepted with this token; None if there is no such job."""
    newest_first = _lines_of(run_directory, token, (DECISIONS_LOG, f"{DECISIONS_LOG}.1"))
    return next((line.fields for line in newest_first if line.operation != "share"), None)


def find_endings(run_directory: Path, token: str) -> list[DecisionLine]:
    """Return the lines in the logs that record the end of sharing for the job with this token."""
    oldest_first = _lines_of(run_directory, token, (f"{DECISIONS_LOG}.1", DECISIONS_LOG))
    return [line for line in oldest_first if line.operation == "share"]


def write_ending(run_directory: Path, at_s: float, token: str, fields: Mapping[str, str]) -> None:
    """Append a line that records the end of sharing for a job; raise OutsideError if it cannot be written.

    The line is shipped with the rest of the log.
    """
    text = " ".join(f"{key}={quote(value, safe='')}" for key, value in fields.items())
    path = run_directory / DECISIONS_LOG
    with outside(path):
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # use one write, because job_submit.lua also appends to the file
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
