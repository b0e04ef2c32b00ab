"""Send notices on their channels, each at most once; retry notices that were certainly not sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from slurm_gpu.notices.ledger import Delivery, DeliveryState, Ledger, Notice
from slurm_gpu.notices.sending import Channel, Message, NotSentError, UnknownFateError

log = logging.getLogger("slurm-gpuctld")

# Delays after failed attempts; if the attempt after the last delay fails, the notice is dropped.
AGAIN_AFTER_S = (60.0, 300.0, 900.0, 3600.0)
_LONGEST_WHY = 300
# Maximum number of notices sent before the remaining alerts are checked again.
_AT_ONCE = 20


def is_due(delivery: Delivery, now_s: float) -> bool:
    """Return whether the next attempt is due."""
    if delivery.state is not DeliveryState.WAITING:
        return False
    if delivery.attempts == 0:
        return True
    # If the clock was set back, wait no longer than the delay.
    waited_s = abs(now_s - delivery.at_s)
    return waited_s >= AGAIN_AFTER_S[min(delivery.attempts, len(AGAIN_AFTER_S)) - 1]


def due(ledger: Ledger, now_s: float) -> list[tuple[Notice, str, Delivery]]:
    """Return the deliveries to attempt now."""
    return [it for it in ledger.waiting() if is_due(it[2], now_s)][:_AT_ONCE]


def send_all(
    chosen: Sequence[tuple[Notice, str, Delivery]],
    messages: Mapping[str, Message],
    channels: Mapping[str, Channel],
    save: Callable[[], None],
    wall: Callable[[], float],
) -> None:
    """Attempt these deliveries; a notice without a message is void, because its alert ended.

    Each attempt is recorded on disk (`save`) before it is made; raise OutsideError if it cannot be recorded.
    """
    for notice, name, delivery in chosen:
        message = messages.get(notice.id)
        if message is None or name not in channels:
            delivery.state, delivery.why = DeliveryState.OVER, "the alert ended"
            if message is not None:
                delivery.state, delivery.why = DeliveryState.FAILED, f"notices.yaml has no {name}: any more"
            save()
            continue
        before = delivery.state, delivery.at_s, delivery.attempts
        delivery.state, delivery.at_s = DeliveryState.SENDING, wall()
        delivery.attempts += 1
        try:
            save()
        except BaseException:
            delivery.state, delivery.at_s, delivery.attempts = before  # no attempt was made
            raise
        delivery.state, delivery.why = _sent(channels[name], message, delivery.attempts)
        delivery.at_s = wall()
        _log(notice, name, delivery)
        save()


def _sent(channel: Channel, message: Message, attempts: int) -> tuple[DeliveryState, str]:
    try:
        channel.send(message)
    except NotSentError as error:
        gives_up = error.for_good or attempts > len(AGAIN_AFTER_S)
        return DeliveryState.FAILED if gives_up else DeliveryState.WAITING, str(error)[:_LONGEST_WHY]
    except UnknownFateError as error:
        return DeliveryState.UNKNOWN, str(error)[:_LONGEST_WHY]
    except Exception as error:
        # For example, the job's name may be invalid in a mail header. Other notices are still sent.
        log.exception("notice could not be sent")
        return DeliveryState.FAILED, f"{type(error).__name__}: {error}"[:_LONGEST_WHY]
    return DeliveryState.SENT, ""


def _log(notice: Notice, channel: str, delivery: Delivery) -> None:
    what = f"{notice.kind} to {notice.user} by {channel}"
    if delivery.state is DeliveryState.SENT:
        log.info("notice sent: %s", what)
    elif delivery.state is DeliveryState.WAITING:
        log.info("notice not sent yet: %s: %s; retrying", what, delivery.why)
    elif delivery.state is DeliveryState.UNKNOWN:
        log.warning("notice may not have been sent: %s: %s; not retried", what, delivery.why)
    else:
        log.warning("notice not sent: %s: %s; dropped", what, delivery.why)
