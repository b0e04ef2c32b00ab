"""What becomes of jobs and of notices, in words: for the messages themselves, and for operators."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from slurm_gpu.notices.idle_rule import IdleStage, IdleStanding
from slurm_gpu.notices.ledger import DeliveryState, End, EndState, Notice
from slurm_gpu.notices.outbox import AGAIN_AFTER_S
from slurm_gpu.notices.plan import FindingOutcome, NoticeDecision
from slurm_gpu.notices.texts import moment

CANCEL, HOLD = "cancel", "hold"
ADVISE, ENFORCE = "advise", "enforce"
_PASSIVE = {CANCEL: "cancelled", HOLD: "put back into the queue, held"}


def fate_of_warned(how: str, mode: str, end: str) -> str:
    """What a warning says of the jobs; `end` is when."""
    what = _PASSIVE[how]
    if mode == ENFORCE:
        return f"At {end} at the earliest they are {what}, unless a GPU of theirs computes until then."
    return f"The rule is on trial: from {end} on they would be {what}. For now nothing happens to them."


def fate_of_ended(how: str, at: str, name: str) -> str:
    """What the notice after an end says."""
    if how == HOLD:
        return (
            f"They were put back into the queue at {at}, and are held there: scontrol release {name} has one "
            f"start again, scancel {name} takes it out."
        )
    return (
        f"They were cancelled at {at}. For some minutes from then on scontrol requeue {name} puts a batch "
        "job back into the queue as it was; later, submit it again."
    )


def of_outcome(outcome: FindingOutcome, zone: ZoneInfo, *, sends: bool) -> str:
    """What becomes of a finding, for operators."""
    match outcome.verdict:
        case NoticeDecision.DUE:
            return "is told now" if sends else "would be told now"
        case NoticeDecision.EARLY:
            return f"is told from {moment(outcome.finding.due_s, zone)} on, if it stays so"
        case NoticeDecision.LIMIT:
            free = "" if outcome.free_s is None else f" until {moment(outcome.free_s, zone)}"
            return f"not told{free}: enough for a day"
        case NoticeDecision.EXEMPT:
            return "not told: exempt_users"
        case NoticeDecision.NO_WAY:
            return "not told: no channel reaches such a name"
        case NoticeDecision.TOLD:
            assert outcome.notice is not None
            return of_notice(outcome.notice, zone)


def of_notice(notice: Notice, zone: ZoneInfo) -> str:
    """What became of it on each channel."""
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
                parts.append(f"{channel} not needed any more")
            case DeliveryState.SENDING:
                parts.append(f"{channel} is on its way")
            case DeliveryState.WAITING if one.attempts:
                of = f"{one.attempts} of {len(AGAIN_AFTER_S) + 1}"
                parts.append(f"{channel} waits, attempt {of} failed: {one.why}")
            case DeliveryState.WAITING:
                parts.append(f"{channel} waits")
    return "; ".join(parts)


def of_standing(standing: IdleStanding, how: str, mode: str, zone: ZoneInfo) -> str:
    """What becomes of an idle job."""
    end, what = moment(standing.end_s, zone), _PASSIVE[how]
    if standing.step is IdleStage.BLOCKED:
        return f"not {what}: warning {standing.finding.stage + 1} did not surely go out"
    if mode == ENFORCE:
        return f"{what} from {end} on"
    return f"on trial: would be {what} from {end} on"


def of_end(end: End, zone: ZoneInfo) -> str:
    """What we did with a job."""
    if end.state is EndState.FAILED:
        return f"could not be {_PASSIVE[end.how]}: {end.why}"
    doubt = f" ({end.why})" if end.why else ""
    return f"{_PASSIVE[end.how]} {moment(end.at_s, zone)}{doubt}"
