"""Ship decisions.log to slurm-gpudbd in the background, even after a long outage of slurm-gpudbd.

The log itself is the spool: together with its predecessor, it contains up to 128 MiB, about 800,000
decisions. Decisions that are rotated away before they are shipped never reach the database; an audit event
reports the loss.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slurm_gpu.clock import Clock
from slurm_gpu.controller.background import Background
from slurm_gpu.controller.duty import Duty, QueueView
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.controller.reporting.decision_log import MARK_FILE, DecisionLog, LogLine
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.lua.bundle import DECISIONS_LOG
from slurm_gpu.policy.lua.decisions import DecisionLine
from slurm_gpu.policy.lua.peers import this_host
from slurm_gpu.wire.answers.runs import Decision

log = logging.getLogger("slurm-gpuctld")

EVERY_S = 10.0
_RETRY_S = 60.0
_AT_ONCE_BYTES = 256 * 1024
# Number of the shortest possible lines that fit in the 1 MiB that slurm-gpudbd accepts at once.
_AT_ONCE = 1000
# Maximum characters of one value: a user may request a partition with a name of any length.
_LONGEST_TEXT = 2000
# Maximum number of a user's refusals shipped per hour; otherwise, a script that retries could fill the
# database.
REFUSALS_OF_A_USER = 1000
_HOUR_S = 3600
_NUMBER = re.compile(r"[0-9]{1,9}|[1-3][0-9]{9}")
_TOKEN = re.compile(r"[0-9A-Za-z]{1,64}")
# Maximum number of fields of a decision that slurm-gpudbd accepts.
_MOST_FIELDS = 32
_OWN_COLUMNS = ("uid", "rules", "zone")

# The type of a function that ships decisions, given the ID of the decision before them; it returns whether
# slurm-gpudbd lacks that decision.
Send = Callable[[Sequence[Decision], str | None], bool]
_UserHour = tuple[int, int]


class DecisionShipper(Duty):
    """Ships new decisions in the background."""

    def __init__(
        self,
        run_directory: Path,
        clock: Clock,
        acts: AuditReporter,
        send: Send,
        background: Background | None = None,
    ) -> None:
        path = run_directory / DECISIONS_LOG
        super().__init__(
            clock,
            f"decisions are not shipped and remain in {path}: %s; retrying",
            "slurm-gpudbd has all decisions again",
            background=background,
        )
        self._log = DecisionLog(path, run_directory / MARK_FILE)
        self._path, self._acts, self._send = path, acts, send
        self._refusals: Counter[_UserHour] = Counter()
        """Refusals by user and hour, including those that are not shipped."""

    def prepare(self, view: QueueView) -> bool:
        """Return True, because every slurmctld host ships its own log, whether it is active or not."""
        self._every_s = _RETRY_S if self._outage.lasts else EVERY_S
        return True

    def work(self, view: QueueView) -> None:
        """Ship all new decisions."""
        try:
            while (piece := self._log.next(_AT_ONCE_BYTES, _AT_ONCE)) is not None:
                refusals = Counter(self._refusals)
                decisions = list(self._decisions(piece.lines, refusals))
                if decisions and self._send(decisions, self._log.last):
                    log.warning(
                        "slurm-gpudbd lost decisions; all decisions in %s are shipped again", self._path
                    )
                    self._refusals.clear()
                    self._log.restart()
                    continue
                self._log.done(piece, decisions[-1].id if decisions else None)
                self._warn_of(refusals)
                if piece.lost:
                    self._acts.add(
                        "decisions lost",
                        str(self._path),
                        "the log was rotated twice before slurm-gpudbd had received all of it",
                        "",
                        "",
                    )
        except OSError as error:
            raise OutsideError(str(error)) from error

    def _decisions(self, lines: Sequence[LogLine], refusals: Counter[_UserHour]) -> Iterator[Decision]:
        """Yield the decisions to ship, and count refusals."""
        unreadable = 0
        for line in lines:
            decision = decision_of(line)
            if decision is None:
                unreadable += 1
                continue
            if decision.verdict == "deny":
                key = decision.uid, decision.at_s // _HOUR_S
                refusals[key] += 1
                if refusals[key] > REFUSALS_OF_A_USER:
                    continue
            yield decision
        if unreadable:
            log.warning("%s: skipped %d lines that are not decisions", self._path, unreadable)

    def _warn_of(self, refusals: Counter[_UserHour]) -> None:
        """Warn about too many refusals once per user and hour; forget past hours."""
        for key, count in refusals.items():
            if count > REFUSALS_OF_A_USER >= self._refusals[key]:
                log.warning(
                    "uid %d was rejected more than %d times within an hour: only %s contains all rejections",
                    key[0],
                    REFUSALS_OF_A_USER,
                    self._path,
                )
        last = max((hour for _, hour in refusals), default=0)
        self._refusals = Counter({key: count for key, count in refusals.items() if key[1] >= last - 1})


def decision_of(line: LogLine) -> Decision | None:
    """Parse a line; return None if it is not a decision.

    The ID of the decision is the same each time that the line is shipped.
    """
    host = this_host()
    read = DecisionLine.read(line.text.decode("utf-8", "replace"))
    if read is None or len(read.fields) > _MOST_FIELDS or not _NUMBER.fullmatch(read.fields.get("uid", "")):
        return None
    if read.token is not None and not _TOKEN.fullmatch(read.token):
        return None
    name = hashlib.blake2b(f"{host} {line.inode} {line.offset} ".encode() + line.text, digest_size=16)
    fields = {key: _short(value) for key, value in read.fields.items()}
    return Decision(
        id=name.hexdigest(),
        at_s=read.at_s,
        host=host,
        operation=read.operation,
        verdict=read.verdict,
        uid=int(fields["uid"]),
        token=read.token,
        rules=fields["rules"] if fields.get("rules", "-") != "-" else None,
        scores=fields.get("zone"),
        job={key: value for key, value in fields.items() if key not in _OWN_COLUMNS},
    )


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
