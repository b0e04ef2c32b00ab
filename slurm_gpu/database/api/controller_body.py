"""Parse and check the bodies of POST /v1/controller that slurm-gpuctld and the commands send."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slurm_gpu.database.storage.schema import NAME_LENGTH, TOKEN_LENGTH
from slurm_gpu.errors import UsageError
from slurm_gpu.text.hostlist import expand
from slurm_gpu.wire.answers.quota import Quota
from slurm_gpu.wire.answers.reservation import MOST_REPORTS, Report, ReservationState
from slurm_gpu.wire.answers.runs import with_current_keys

MOST_ACTS = 100
MOST_DECISIONS = 1000
MOST_QUOTAS = 100
_MOST_LIMITS = 1000
_OF_REPORTS = (
    ReservationState.APPROVED,
    ReservationState.ACTIVE,
    ReservationState.ENDED,
    ReservationState.RELEASED,
)
_MOST_EVIDENCE = 1 << 20
_ID = re.compile(r"[0-9a-f]{32}")
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH)]
_Text = Annotated[str, Meta(max_length=10_000)]
_Amount = int | float
_FIRST_TOO_LARGE = 1 << 62
_Second = Annotated[int, Meta(ge=0, lt=_FIRST_TOO_LARGE)]
# Fields of Report whose range is checked in this module. Report itself has no constraints of msgspec, because
# the commands import it without msgspec.
_WHOLE = ("id", "at_s", "first_job_id", "first_eligible_s", "first_start_s")


class ReportedAuditEvent(msgspec.Struct):
    """An audit event in a request."""

    id: str
    at_s: _Second
    host: _Name
    action: _Name
    subject: _Name
    why: _Text
    old: _Text | None = None
    new: _Text | None = None
    evidence: Any = None


class ReportedDecision(msgspec.Struct):
    """A decision in a request."""

    id: str
    at_s: _Second
    host: _Name
    operation: Literal["submit", "modify", "share"]
    verdict: Literal["allow", "deny", "end"]
    uid: Annotated[int, Meta(ge=0, lt=1 << 32)]
    token: Annotated[str, Meta(pattern=r"^[0-9A-Za-z]+\Z", max_length=TOKEN_LENGTH)] | None = None
    rules: _Text | None = None
    scores: _Text | None = None
    job: Annotated[dict[_Name, _Text], Meta(max_length=32)] = {}


class ReportedLimit(msgspec.Struct):
    """A limit with the keys of `slurm-gpu quota --json`; keys of newer slurm-gpuctld versions are ignored."""

    rule: _Name
    group: _Name
    per: _Name
    on: _Name
    key: _Name
    unit: _Name
    limit: _Amount | list[_Name | dict[_Name, _Amount]]
    used: _Amount | None
    left: _Amount | None
    mode: _Name
    why: _Text
    until_s: int | None


class ReportedQuota(msgspec.Struct):
    """A user's limits and use in a request."""

    user: _Name
    as_of_s: float
    limits: Annotated[list[ReportedLimit], Meta(max_length=_MOST_LIMITS)] | None = None
    why: _Text | None = None
    uid: Annotated[int, Meta(ge=0, lt=1 << 32)] | None = None

    @property
    def quota(self) -> Quota:
        """Convert to the class that the quota board stores."""
        limits = None if self.limits is None else [msgspec.to_builtins(limit) for limit in self.limits]
        return Quota(user=self.user, as_of_s=self.as_of_s, limits=limits, why=self.why, uid=self.uid)


class ControllerReport(msgspec.Struct):
    """The body of POST /v1/controller."""

    audit: Annotated[list[ReportedAuditEvent], Meta(max_length=MOST_ACTS)] | None = None
    decisions: Annotated[list[ReportedDecision], Meta(max_length=MOST_DECISIONS)] | None = None
    decisions_after: Annotated[str, Meta(max_length=NAME_LENGTH)] | None = None
    """ID of the last decision that the sender sent before this request."""
    reservations: Annotated[list[Report], Meta(max_length=MOST_REPORTS)] | None = None
    quotas: Annotated[list[ReportedQuota], Meta(max_length=MOST_QUOTAS)] | None = None


def parse_report(body: bytes) -> ControllerReport:
    """Parse and check the body of a request; raise UsageError if it is invalid."""
    try:
        parsed = msgspec.json.decode(with_current_keys(body), type=ControllerReport)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"the report cannot be parsed: {error}") from None
    if not any(field is not None for field in msgspec.structs.astuple(parsed)):
        raise UsageError("the report is empty: it has no audit, decisions, reservations or quotas")
    for report in parsed.reservations or ():
        if report.state not in _OF_REPORTS:
            raise UsageError(f"slurm-gpuctld cannot report state {report.state} of reservation {report.id}")
        for name in _WHOLE:
            value = getattr(report, name)
            if value is not None and not 0 <= value < _FIRST_TOO_LARGE:
                raise UsageError(
                    f"reservation {report.id}: {name} must be at least 0 and below 2^62, not {value}"
                )
        try:
            expand(report.nodes or "")
        except ValueError as error:
            raise UsageError(f"nodes of reservation {report.id}: {error}") from None
    for item in (*(parsed.audit or ()), *(parsed.decisions or ())):
        if not _ID.fullmatch(item.id):
            raise UsageError(f"id {item.id!r} must be 32 hexadecimal digits")
    for act in parsed.audit or ():
        if act.evidence is not None and len(msgspec.json.encode(act.evidence)) > _MOST_EVIDENCE:
            raise UsageError(f"the evidence of audit event {act.id} is larger than 1 MiB")
    return parsed
