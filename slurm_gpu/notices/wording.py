"""Describe what happens to jobs and notices, for messages and for operators."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from slurm_gpu.notices.idle_rule import IdleJobStage, IdleStage
from slurm_gpu.notices.ledger import DeliveryState, End, EndState, Notice
from slurm_gpu.notices.outbox import AGAIN_AFTER_S
from slurm_gpu.notices.plan import FindingOutcome, NoticeDecision
from slurm_gpu.notices.texts import moment

CANCEL, HOLD = "cancel", "hold"
ADVISE, ENFORCE = "advise", "enforce"
_PASSIVE = {CANCEL: "cancelled", HOLD: "requeued and held"}


def fate_of_warned(how: str, mode: str, end: str) -> str:
    """Return the text about the consequence for warned jobs; `end` is the time at which they are ended."""
    what = _PASSIVE[how]
    if mode == ENFORCE:
        return f"They will be {what} at {end} or later, unless one of their GPUs is used before that time."
    return f"This rule is on trial: they would be {what} from {end} on. Nothing happens to them for now."


def fate_of_ended(how: str, at: str, name: str) -> str:
    """Return the text about the jobs in the notice that is sent after they were ended."""
    if how == HOLD:
        return (
            f"They were requeued at {at} and are held. To start one again: scontrol release {name}. "
            f"To remove it: scancel {name}."
        )
    return (
        f"They were cancelled at {at}. For a few minutes, scontrol requeue {name} returns a batch job to the "
        "queue. After that, submit it again."
    )


def of_outcome(outcome: FindingOutcome, zone: ZoneInfo, *, sends: bool) -> str:
    """Describe the decision about a finding, for operators."""
    match outcome.verdict:
        case NoticeDecision.DUE:
            return "sent now" if sends else "would be sent now"
        case NoticeDecision.EARLY:
            return f"sent from {moment(outcome.finding.due_s, zone)} on, if the alert lasts"
        case NoticeDecision.LIMIT:
            free = "" if outcome.free_s is None else f" until {moment(outcome.free_s, zone)}"
            return f"not sent{free}: max_per_user_per_day is reached"
        case NoticeDecision.EXEMPT:
            return "not sent: exempt_users"
        case NoticeDecision.NO_CHANNEL:
            return "not sent: no channel accepts this user name"
        case NoticeDecision.SENT:
            assert outcome.notice is not None
            return of_notice(outcome.notice, zone)


def of_notice(notice: Notice, zone: ZoneInfo) -> str:
    """Describe the state of a notice on each channel."""
    parts = []
    for channel, one in notice.deliveries.items():
        at = moment(one.at_s, zone) if one.at_s else ""
        match one.state:
            case DeliveryState.SENT:
                parts.append(f"{channel} {at}")
            case DeliveryState.UNKNOWN:
                parts.append(f"{channel} perhaps {at}: {one.why}")
            case DeliveryState.FAILED:
                parts.append(f"{channel} failed: {one.why}")
            case DeliveryState.OVER:
                parts.append(f"{channel} no longer needed")
            case DeliveryState.SENDING:
                parts.append(f"{channel} sending")
            case DeliveryState.WAITING if one.attempts:
                of = f"{one.attempts} of {len(AGAIN_AFTER_S) + 1}"
                parts.append(f"{channel} waiting, attempt {of} failed: {one.why}")
            case DeliveryState.WAITING:
                parts.append(f"{channel} waiting")
    return "; ".join(parts)


def of_standing(standing: IdleJobStage, how: str, mode: str, zone: ZoneInfo) -> str:
    """Describe the consequence for an idle job."""
    end, what = moment(standing.end_s, zone), _PASSIVE[how]
    if standing.step is IdleStage.BLOCKED:
        return f"not {what}: warning {standing.finding.stage + 1} may not have been sent"
    if mode == ENFORCE:
        return f"{what} from {end} on"
    return f"on trial: would be {what} from {end} on"


def of_end(end: End, zone: ZoneInfo) -> str:
    """Describe the end of a job."""
    if end.state is EndState.FAILED:
        return f"could not be {_PASSIVE[end.how]}: {end.why}"
    doubt = f" ({end.why})" if end.why else ""
    return f"{_PASSIVE[end.how]} {moment(end.at_s, zone)}{doubt}"
