"""Hands notices to their channels: each at most once, again where it surely did not go out, not for ever."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from slurm_gpu.notices.ledger import Delivery, DeliveryState, Ledger, Notice
from slurm_gpu.notices.sending import Channel, Message, NotSentError, UnknownFateError

log = logging.getLogger("slurm-gpuctld")

AGAIN_AFTER_S = (60.0, 300.0, 900.0, 3600.0)
"""After each attempt that failed; then it is given up."""
_LONGEST_WHY = 300
_AT_ONCE = 20
"""So many are sent before anybody looks again whether the rest is still so."""


def is_due(delivery: Delivery, now_s: float) -> bool:
    """Whether the next attempt is to be made."""
    if delivery.state is not DeliveryState.WAITING:
        return False
    if delivery.attempts == 0:
        return True
    # A clock that was set back waits no longer than it was told to.
    waited_s = abs(now_s - delivery.at_s)
    return waited_s >= AGAIN_AFTER_S[min(delivery.attempts, len(AGAIN_AFTER_S)) - 1]


def due(ledger: Ledger, now_s: float) -> list[tuple[Notice, str, Delivery]]:
    """What is to be sent now."""
    return [it for it in ledger.waiting() if is_due(it[2], now_s)][:_AT_ONCE]


def send_all(
    chosen: Sequence[tuple[Notice, str, Delivery]],
    messages: Mapping[str, Message],
    channels: Mapping[str, Channel],
    save: Callable[[], None],
    wall: Callable[[], float],
) -> None:
    """Send each of these; of a notice without a message it is no longer so.

    Before each attempt it stands on disk (`save`) that it is made; raises OutsideError where that cannot be.
    """
    for notice, name, delivery in chosen:
        message = messages.get(notice.id)
        if message is None or name not in channels:
            delivery.state, delivery.why = DeliveryState.OVER, "it was no longer so"
            if message is not None:
                delivery.state, delivery.why = DeliveryState.FAILED, f"notices.yaml has no {name} any more"
            save()
            continue
        before = delivery.state, delivery.at_s, delivery.attempts
        delivery.state, delivery.at_s = DeliveryState.SENDING, wall()
        delivery.attempts += 1
        try:
            save()
        except BaseException:
            delivery.state, delivery.at_s, delivery.attempts = before  # none was made
            raise
        delivery.state, delivery.why = _sent(channels[name], message, delivery.attempts)
        delivery.at_s = wall()
        _tell(notice, name, delivery)
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
        # Such as a name that cannot be in a header: the others are to be told all the same.
        log.exception("a notice could not be made")
        return DeliveryState.FAILED, f"{type(error).__name__}: {error}"[:_LONGEST_WHY]
    return DeliveryState.SENT, ""


def _tell(notice: Notice, channel: str, delivery: Delivery) -> None:
    what = f"{notice.kind} to {notice.user} by {channel}"
    if delivery.state is DeliveryState.SENT:
        log.info("told: %s", what)
    elif delivery.state is DeliveryState.WAITING:
        log.info("not sent yet: %s: %s; retrying", what, delivery.why)
    elif delivery.state is DeliveryState.UNKNOWN:
        log.warning("perhaps not sent: %s: %s; it is not sent again", what, delivery.why)
    else:
        log.warning("not sent: %s: %s; it is given up", what, delivery.why)
