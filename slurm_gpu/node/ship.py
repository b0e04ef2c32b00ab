"""Decides when which records go to slurm-gpudbd, and what its replies mean for the spool.

Final records and events go at once, the others each PERIOD_S ± JITTER_S. Whatever fails for a passing reason
is tried again after a jittered, growing pause; nothing is dropped.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm_gpu.clock import Clock
from slurm_gpu.node.post import Reply, Sender
from slurm_gpu.node.spool import Item, Spool
from slurm_gpu.records import WIRE_VERSION

log = logging.getLogger(__name__)

PERIOD_S = 300.0
JITTER_S = 60.0
BACKOFF_MAX_S = 60.0
RETRY_AFTER_MAX_S = 3600.0
MAX_BODY_BYTES = 1 << 20
# Packing as many takes some 10 ms, in which nothing is sampled.
MAX_ITEMS = 200

JobFacts = Mapping[int, Mapping[str, Any]]


class Courier:
    """One shipment under way at a time, between the spool and a Sender."""

    def __init__(
        self,
        spool: Spool,
        sender: Sender,
        clock: Clock,
        node: str,
        *,
        on_jobs: Callable[[JobFacts], None] = lambda _: None,
        random_source: random.Random | None = None,
        period_s: float = PERIOD_S,
        jitter_s: float = JITTER_S,
    ) -> None:
        self._spool, self._sender, self._clock, self._node = spool, sender, clock, node
        self._on_jobs = on_jobs
        self._random = random.Random() if random_source is None else random_source
        self._period_s, self._jitter_s = period_s, jitter_s
        self._under_way: Sequence[Item] | None = None
        self._max_items = MAX_ITEMS
        self._failures = 0
        self._not_before_s = 0.0
        self._everything_at_s = self._next_period()
        self._running: set[str] = set()

    def ship_everything(self) -> None:
        """Send the records of running jobs too, as they are now or later, as soon as possible."""
        self._running = set(self._spool.waiting_keys())

    def step(self) -> float:
        """Take in a reply, begin the next shipment; returns when to call again (Clock.monotonic())."""
        now_s = self._clock.monotonic()
        if now_s >= self._everything_at_s:
            self.ship_everything()
            self._everything_at_s = self._next_period()
        while self._under_way is not None or now_s >= self._not_before_s:
            if self._under_way is None and not self._begin():
                break
            reply = self._sender.reply()
            if reply is None:
                break
            items, self._under_way = self._under_way or (), None
            self._take(reply, items)
        if self._under_way is not None or not (self._running or self._spool.has_urgent()):
            return self._everything_at_s
        return self._not_before_s

    def _begin(self) -> bool:
        items = self._spool.waiting(self._max_items, self._running)
        if not items:
            self._running.clear()
            return False
        body = self._body(items)
        while len(body) > MAX_BODY_BYTES and len(items) > 1:
            items = items[: len(items) // 2]
            body = self._body(items)
        self._under_way = items
        self._sender.send(body)
        return True

    def _body(self, items: Sequence[Item]) -> bytes:
        shipment = {
            "wire": WIRE_VERSION,
            "node": self._node,
            "boot_id": self._clock.boot_id(),
            "records": [item.wire for item in items if not item.is_event],
            "events": [item.wire for item in items if item.is_event],
        }
        return gzip.compress(json.dumps(shipment, separators=(",", ":")).encode(), 6, mtime=0)

    def _take(self, reply: Reply, items: Sequence[Item]) -> None:
        if reply.status == 200:
            answer = _answer(reply.body)
            if answer is not None:
                self._taken(answer, items)
                return
            self._failed("slurm-gpudbd's answer is not JSON", reply)
        elif reply.status in (400, 413):
            # Somewhere in there is what it cannot take: halve until that stands alone.
            if len(items) == 1:
                self._running.discard(items[0].key)
                self._spool.reject(items[0], f"status {reply.status}: {_text(reply.body)}")
            self._max_items = max(1, len(items) // 2)
        else:
            self._failed(reply.failure or f"status {reply.status}: {_text(reply.body)}", reply)

    def _taken(self, answer: Mapping[str, Any], items: Sequence[Item]) -> None:
        records = [item for item in items if not item.is_event]
        events = [item for item in items if item.is_event]
        refused: dict[str, str] = {}
        for name, sent in (("rejected", records), ("rejected_events", events)):
            for entry in _objects(answer.get(name)):
                index = entry.get("index")
                if isinstance(index, int) and 0 <= index < len(sent):
                    refused[sent[index].key] = str(entry.get("why"))[:500]
        for item in items:
            # A newer version that was saved meanwhile waits for its own time.
            self._running.discard(item.key)
            if item.key in refused:
                self._spool.reject(item, refused[item.key])
            else:
                self._spool.shipped(item)
        jobs = answer.get("jobs")
        if isinstance(jobs, dict):
            self._on_jobs({int(k): v for k, v in jobs.items() if k.isdecimal() and isinstance(v, dict)})
        if self._failures:
            log.warning("slurm-gpudbd takes records again")
        self._failures, self._not_before_s = 0, 0.0
        self._max_items = min(MAX_ITEMS, 2 * self._max_items)

    def _failed(self, why: str, reply: Reply) -> None:
        if self._failures == 0:
            log.warning("records cannot be shipped, and wait in the spool: %s", why)
        else:
            log.debug("records cannot be shipped: %s", why)
        self._failures += 1
        pause_s = min(BACKOFF_MAX_S, 2.0 ** min(self._failures, 16)) * self._random.uniform(0.5, 1.0)
        if reply.retry_after is not None and reply.retry_after.isdecimal():
            pause_s += min(RETRY_AFTER_MAX_S, float(reply.retry_after))
        self._not_before_s = self._clock.monotonic() + pause_s

    def _next_period(self) -> float:
        jitter_s = self._random.uniform(-self._jitter_s, self._jitter_s)
        return self._clock.monotonic() + max(1.0, self._period_s + jitter_s)


def _answer(body: bytes) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace").strip()
