"""Decide with pure functions which notices to send now, and why others are not sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.notices.finding import KINDS, JobFinding
from slurm_gpu.notices.ledger import DAY_S, Ledger, Notice
from slurm_gpu.notices.settings import Settings

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


class NoticeDecision(StrEnum):
    """The decision about a finding."""

    DUE = "due"
    SENT = "sent"
    EARLY = "early"
    LIMIT = "limit"
    """The job's owner has received the maximum number of notices for a day."""
    EXEMPT = "exempt"
    NO_CHANNEL = "no channel"
    """No channel can deliver notices to the job's owner."""


@dataclass(frozen=True, slots=True)
class FindingOutcome:
    """One finding and the decision about it."""

    finding: JobFinding
    verdict: NoticeDecision
    notice: Notice | None = None
    """The notice that was sent for the finding."""
    free_s: float | None = None
    """For LIMIT, the time from which the next notice may be sent."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One message of one kind to one user, about all jobs of the user that have this alert."""

    user: str
    kind: str
    stage: int
    findings: tuple[JobFinding, ...]
    channels: tuple[str, ...]


def channels_for(user: str, settings: Settings) -> tuple[str, ...]:
    """Return the channels for a user; mail is omitted if the user's name contains special characters."""
    return tuple(name for name in settings.channels if name != "mail" or _NAME.fullmatch(user))


def plan(
    now_s: float, findings: Sequence[JobFinding], ledger: Ledger, settings: Settings
) -> tuple[list[FindingOutcome], list[Draft]]:
    """Return the decision about each finding, in order, and the messages to send.

    Each kind is sent once per run. A user receives at most `max_per_user_per_day` messages in 24 hours.
    """
    outcomes: dict[int, FindingOutcome] = {}
    due: dict[tuple[int, str, str, int], list[int]] = {}
    for at, finding in enumerate(findings):
        outcome = _alone(now_s, finding, ledger, settings)
        outcomes[at] = outcome
        if outcome.verdict is NoticeDecision.DUE:
            kind = KINDS.index(finding.kind)
            due.setdefault((kind, finding.job.user, finding.kind, finding.stage), []).append(at)
    drafts: list[Draft] = []
    drafted: dict[str, int] = {}
    for _, user, kind_name, stage in sorted(due):
        places = due[KINDS.index(kind_name), user, kind_name, stage]
        if ledger.n_within_a_day(user, now_s) + drafted.get(user, 0) >= settings.max_per_user_per_day:
            first_s = ledger.first_of_day_s(user, now_s)
            free_s = (now_s if first_s is None else first_s) + DAY_S
            for at in places:
                outcomes[at] = FindingOutcome(findings[at], NoticeDecision.LIMIT, free_s=free_s)
            continue
        drafted[user] = drafted.get(user, 0) + 1
        chosen = tuple(findings[at] for at in places)
        drafts.append(Draft(user, kind_name, stage, chosen, channels_for(user, settings)))
    return [outcomes[at] for at in range(len(findings))], drafts


def _alone(now_s: float, finding: JobFinding, ledger: Ledger, settings: Settings) -> FindingOutcome:
    """Decide about one finding, ignoring the daily limit."""
    user = finding.job.user
    notice = ledger.last_notice(finding.job.run, finding.kind, finding.stage)
    if notice is not None:
        return FindingOutcome(finding, NoticeDecision.SENT, notice)
    if user in settings.exempt_users:
        return FindingOutcome(finding, NoticeDecision.EXEMPT)
    if now_s < finding.due_s:
        return FindingOutcome(finding, NoticeDecision.EARLY)
    if not channels_for(user, settings):
        return FindingOutcome(finding, NoticeDecision.NO_CHANNEL)
    return FindingOutcome(finding, NoticeDecision.DUE)
