"""Schedule shipments to slurm-gpudbd, and apply its replies to the spool.

Final records and events are sent after a short random delay, which differs between nodes. Live values are
sent as often as slurm-gpudbd requires, and within LIVE_S of a change on the node. The first records of a
running job are sent with the live values within LIVE_S, and later records every PERIOD_S ± JITTER_S. After a
temporary failure, everything except live values is sent again after a growing pause with jitter.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.node.shipping.post import Reply, Sender
from slurm_gpu.node.shipping.shipment import JobFacts, OutgoingShipment, ShipmentReply, read_answer, spoken
from slurm_gpu.node.shipping.shipment_queue import ShipmentQueue
from slurm_gpu.node.shipping.wire_version import WireVersion
from slurm_gpu.wire import DeviceFacts
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S, LIVE_INTERVAL_S

log = logging.getLogger(__name__)

PERIOD_S = 300.0
JITTER_S = 60.0
LIVE_S = LIVE_INTERVAL_S
# After a start or a change in open jobs, live values are sent every LIVE_S for this long.
BUSY_S = 60.0
# The first record of a running job covers at least this time: a record of its first second would show almost
# no utilisation, and slurm-gpudbd receives no other record until the next period.
FIRST_RECORD_S = 5.0
# Maximum random delay of urgent items, so that a job on 1,000 nodes does not cause a burst.
URGENT_DELAY_S = 1.0
# Maximum random delay if at least this many items are urgent.
MANY = 50
URGENT_DELAY_MANY_S = 5.0
BACKOFF_MAX_S = 60.0
RETRY_AFTER_MAX_S = 3600.0
# Packing this number of items takes about 10 ms, during which nothing is sampled.
MAX_ITEMS = 100
# Missing items are sent again at most this often, since slurm-gpudbd may have stored them meanwhile.
AGAIN_S = 60.0
AGAIN_MAX_S = 3600.0
# For this long, a slurm-gpudbd that rejected other data receives only records.
PLAIN_S = 300.0


class ShipmentSource:
    """Provides data to send in addition to the spool, and applies answers; this base class does nothing."""

    def open_jobs(self) -> Sequence[int]:
        """Return the raw IDs of the known jobs with GPUs on this node."""
        return ()

    def devices(self) -> Sequence[DeviceFacts]:
        """Return all present devices with a common `at_s`; they are sent if any other field has changed."""
        return ()

    def live(self) -> Mapping[str, Any] | None:
        """Return the live values (docs/contracts.md, "live")."""
        return None

    def windows(self, job_ids: Collection[int]) -> Sequence[Mapping[str, Any]]:
        """Return the windows of the jobs, one per device."""
        return ()

    def update_jobs(self, jobs: JobFacts) -> None:
        """Apply slurm-gpudbd's report on the jobs of this node."""

    def end_jobs(self, jobs: JobFacts) -> None:
        """Apply the report on ended jobs, which contains the `restart` and `end_s` of each job."""


class ShipmentScheduler:
    """Sends the items of a spool's queue through a Sender, one shipment at a time."""

    def __init__(
        self,
        queue: ShipmentQueue,
        sender: Sender,
        clock: Clock,
        node: str,
        source: ShipmentSource | None = None,
        *,
        random_source: random.Random | None = None,
        wire: WireVersion | None = None,
    ) -> None:
        self._queue, self._sender, self._clock, self._node = queue, sender, clock, node
        self._no_values = OutageLog(
            log, "the live values could not be sent: %s", clock, over="the live values are sent again"
        )
        self._wire = WireVersion() if wire is None else wire
        self._switched = False
        self._source = ShipmentSource() if source is None else source
        self._random = random.Random() if random_source is None else random_source
        self._under_way: OutgoingShipment | None = None
        self._max_items = MAX_ITEMS
        self.failures = 0
        self.last_failure = ""
        self._not_before_s = 0.0
        self._urgent_at_s: float | None = None
        self._everything_at_s = self._next_period()
        self._live_check_at_s = clock.monotonic() + self._random.uniform(0, LIVE_S)
        self._live_sent_s = self._live_check_at_s - LIVE_S
        self._interval_s, self._stretch = LIVE_S, 1.0
        self._busy_until_s = clock.monotonic() + BUSY_S
        self._reported_jobs: Sequence[int] = ()
        self._plain_until_s = 0.0
        self._running: set[str] = set()
        self._devices: Sequence[DeviceFacts] = ()
        self._devices_due = False
        self._wanted: Sequence[int] = ()
        self._reports_lacks = False
        self._again_at_s = 0.0
        self._again_pause_s = AGAIN_S

    def ship_everything(self) -> None:
        """Send all records, including those of running jobs, as soon as possible."""
        self._running = set(self._queue.waiting_keys())
        self._urgent_at_s = self._live_check_at_s = self._clock.monotonic()
        self._live_sent_s = -math.inf

    def step(self) -> float:
        """Handle a reply and start the next shipment; return when to call again (Clock.monotonic())."""
        now_s = self._clock.monotonic()
        if now_s >= self._everything_at_s:
            self._running = self._grown_up(self._queue.waiting_keys())
            self._everything_at_s = self._next_period()
        elif now_s >= max(self._live_check_at_s, self._not_before_s):
            # Users who request a job of one minute should see its first record.
            self._running.update(self._grown_up(self._queue.never_shipped()))
        if self._urgent_at_s is None and (urgent := self._queue.urgent(MANY)):
            self._urgent_at_s = now_s + self._random.uniform(
                0, URGENT_DELAY_S if urgent < MANY else URGENT_DELAY_MANY_S
            )
        while self._under_way is not None or now_s >= self._due_s():
            if self._under_way is None and not self._begin(now_s):
                break
            reply = self._sender.reply()
            if reply is None:
                return self._everything_at_s
            shipment, self._under_way = self._under_way, None
            assert shipment is not None
            self._take(reply, shipment, now_s)
        return self._due_s()

    def _grown_up(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose segments are old enough for a first record."""
        return {key for key in keys if not self._queue.is_young(key, FIRST_RECORD_S)}

    def _due_s(self) -> float:
        """Return when the next shipment is due."""
        due_s = [self._everything_at_s, self._live_check_at_s]
        if self._running:
            due_s = [0.0]
        elif self._urgent_at_s is not None:
            due_s.append(self._urgent_at_s)
        return max(min(due_s), self._not_before_s)

    def _begin(self, now_s: float) -> bool:
        items = self._queue.waiting(self._max_items, self._running)
        if not items:
            self._running.clear()
            self._urgent_at_s = None
        plain = now_s < self._plain_until_s
        jobs = self._source.open_jobs()
        live = None
        is_old = now_s >= self._live_sent_s + LIVE_S * self._stretch
        if (now_s >= self._live_check_at_s or (items and is_old)) and self._is_live_due(
            jobs, bool(items), now_s
        ):
            live = self._values()
        elif not items:
            return False
        shipment = OutgoingShipment(
            node=self._node,
            boot_id=self._clock.boot_id(),
            wire=self._wire.version,
            items=items,
            devices=() if plain or not self._devices_due else self._devices,
            windows=() if plain or not self._wanted else self._source.windows(self._wanted),
            live=None if plain else live,
            open_jobs=jobs,
            has=self._has() if self._reports_lacks and not plain else None,
        )
        if not (items or shipment.extras or jobs):
            return False
        self._under_way, body = shipment.fitting()
        self._sender.send(body)
        return True

    def _has(self) -> Mapping[str, Any]:
        """Return the items that slurm-gpudbd should have stored and that are not sent again by default."""
        has: dict[str, Any] = {}
        if self._devices and not self._devices_due:
            has["devices"] = {
                "at_s": self._devices[0].at_s,
                "n": len({facts.uuid for facts in self._devices}),
            }
        if runs := self._queue.shipped_open_runs():
            has["runs"] = {str(job_id): seq for job_id, seq in runs.items()}
        return has

    def _send_again(self, lacks: Collection[str], now_s: float) -> None:
        if not lacks:
            self._again_pause_s = AGAIN_S
        elif now_s >= self._again_at_s:
            log.info("slurm-gpudbd lacks %s; sending them again", ", ".join(sorted(lacks)))
            # If slurm-gpudbd rejects the items, retry with growing pauses.
            self._again_at_s = now_s + self._again_pause_s
            self._again_pause_s = min(AGAIN_MAX_S, 2 * self._again_pause_s)
            if "devices" in lacks:
                self._devices = ()  # so that the next check finds them new
            if "runs" in lacks:
                self._queue.ship_open_runs_again()

    def _is_live_due(self, jobs: Sequence[int], has_items: bool, now_s: float) -> bool:
        """Return whether to send live values now: they are due, data has changed, or items are sent."""
        try:
            devices = self._source.devices()
        except Exception as error:  # must not prevent sending records
            self._no_values.failed(error)
        else:
            if list(map(_timeless, devices)) != list(map(_timeless, self._devices)):
                self._devices, self._devices_due = devices, True
        if jobs != self._reported_jobs:
            self._reported_jobs, self._busy_until_s = jobs, now_s + BUSY_S
        is_new = self._devices_due or bool(self._wanted) or now_s < self._busy_until_s
        goes = has_items or is_new or now_s >= self._live_sent_s + self._interval_s * self._stretch
        if goes:
            self._live_sent_s, self._stretch = now_s, self._random.uniform(0.9, 1.1)
        due_s = self._live_sent_s + self._interval_s * self._stretch
        self._live_check_at_s = min(now_s + LIVE_S * self._stretch, due_s)
        return goes

    def _values(self) -> Mapping[str, Any] | None:
        """Return the live values, or None if they cannot be determined."""
        try:
            live = self._source.live()
        except Exception as error:  # must not prevent sending records
            self._no_values.failed(error)
            return None
        self._no_values.worked()
        return live

    def _take(self, reply: Reply, shipment: OutgoingShipment, now_s: float) -> None:
        answer = read_answer(reply, shipment.items) if reply.status == 200 else None
        if answer is not None:
            self._handle_answer(answer, shipment, now_s)
        elif reply.status in (400, 413) and shipment.extras:
            log.warning(
                "slurm-gpudbd rejected live values: status %d: %s; only records are sent for %.0f s",
                reply.status,
                _text(reply),
                PLAIN_S,
            )
            self._plain_until_s = now_s + PLAIN_S
        elif reply.status in (400, 413) and shipment.items:
            # Halve the shipment until only the rejected item is left.
            if len(shipment.items) == 1:
                self._running.discard(shipment.items[0].key)
                self._queue.reject(shipment.items[0], f"status {reply.status}: {_text(reply)}")
            self._max_items = max(1, len(shipment.items) // 2)
        elif reply.status == 200:
            self._failed(f"the answer is not from slurm-gpudbd: {_text(reply)!r}", reply, now_s)
        elif reply.status == 426:
            self._negotiate(reply, now_s)
        else:
            self._failed(reply.failure or f"status {reply.status}: {_text(reply)}", reply, now_s)

    def _handle_answer(self, answer: ShipmentReply, shipment: OutgoingShipment, now_s: float) -> None:
        for item in shipment.items:
            # A newer version that was saved meanwhile is sent according to its schedule.
            self._running.discard(item.key)
            if item.key in answer.refused:
                self._queue.reject(item, answer.refused[item.key])
            else:
                self._queue.shipped(item)
        if shipment.devices and shipment.devices is self._devices:
            self._devices_due = False
        if shipment.devices or any(item.kind == "runs" for item in shipment.items):
            self._again_at_s = max(self._again_at_s, now_s + AGAIN_S)
        self._reports_lacks = answer.lacks is not None
        if shipment.has and answer.lacks is not None:
            self._send_again(answer.lacks, now_s)
        self._wanted = answer.want
        interval_s = LIVE_S if answer.live_interval_s is None else answer.live_interval_s
        self._interval_s = min(IDLE_LIVE_INTERVAL_S, max(LIVE_S, interval_s))  # a NaN becomes LIVE_S
        self._switched = False
        self._wire.negotiate(answer.wire)
        self._wire.ignored(answer.ignored, answer.version)
        self._wire.dropped(answer.dropped)
        if answer.jobs:
            self._source.update_jobs(answer.jobs)
        if answer.ended:
            self._source.end_jobs(answer.ended)
        if self.failures:
            log.warning("slurm-gpudbd accepts records again")
        self.failures, self._not_before_s = 0, 0.0
        self._urgent_at_s = now_s if self._queue.urgent(1) else None
        self._max_items = min(MAX_ITEMS, 2 * self._max_items)

    def _negotiate(self, reply: Reply, now_s: float) -> None:
        """Switch to a wire version that both sides support, and retry immediately, but only once in a row."""
        theirs = spoken(reply)
        if not self._wire.negotiate(theirs):
            self._failed(self._wire.gap(theirs), reply, now_s)
        elif self._switched:
            self._failed("slurm-gpudbd keeps changing its wire version", reply, now_s)
        self._switched = True

    def _failed(self, why: str, reply: Reply, now_s: float) -> None:
        if self.failures == 0:
            log.warning("records cannot be shipped and remain in the spool: %s", why)
        else:
            log.debug("records cannot be shipped: %s", why)
        self.failures, self.last_failure = self.failures + 1, why
        self._interval_s = LIVE_S  # if slurm-gpudbd restarted, it has no live values of this node
        pause_s = min(BACKOFF_MAX_S, 2.0 ** min(self.failures, 16)) * self._random.uniform(0.5, 1.0)
        if reply.retry_after is not None and reply.retry_after.isdecimal():
            pause_s += min(RETRY_AFTER_MAX_S, float(reply.retry_after))
        self._not_before_s = now_s + pause_s

    def _next_period(self) -> float:
        return self._clock.monotonic() + PERIOD_S + self._random.uniform(-JITTER_S, JITTER_S)


def _timeless(facts: DeviceFacts) -> DeviceFacts:
    return replace(facts, at_s=0)


def _text(reply: Reply) -> str:
    return reply.body[:300].decode("utf-8", "replace").strip()
