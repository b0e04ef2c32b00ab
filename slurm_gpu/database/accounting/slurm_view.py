"""Cache answers of slurmctld for a few seconds; a thousand shipments thus cause only one query."""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import QueuedJob, SlurmClient, SlurmNode, SlurmSettings

T = TypeVar("T")
log = logging.getLogger(__name__)

JOBS_FOR_S = 2.0
NODES_FOR_S = 60.0
SETTINGS_FOR_S = 3600.0
# A request waits this long for an answer that has not arrived yet.
WAIT_S = 1.0
# Queries may take at most this share of the time, so a slow slurmctld is queried less often. The faster of
# the last two queries counts, since a single slow answer may be an exception, for example during startup.
_SHARE = 0.05
_LONG_S = 0.1
_PAUSE_AFTER_FAILURE_S = 10.0


class CachedAnswer(Generic[T]):
    """A cached answer; a thread renews an answer that is older than `for_s`.

    If the renewal fails, the old answer is kept. Slurm's commands take at least ten seconds to fail if
    slurmctld is down. While slurmctld is down, only the first caller waits for a moment, and later callers do
    not wait. If the last answer took a long time, as on a large cluster, the cached answer is returned
    without waiting.
    """

    def __init__(self, ask: Callable[[], T], clock: Clock, for_s: float, what: str = "anything") -> None:
        self._ask, self._clock, self._for_s = ask, clock, for_s
        self._changed = threading.Condition()
        self._asking = self._slow = self._takes_long = False
        self._answer: T | None = None
        self._asked_at = -math.inf
        self._renew_at = self._rest_until = -math.inf
        self._took_before = 0.0
        self._outage = OutageLog(
            log, f"slurmctld does not report {what}: %s", clock, over=f"slurmctld reports {what} again"
        )

    def get(self, wait_s: float, max_age_s: float = math.inf, fresh_s: float = math.inf) -> T | None:
        """Return the answer, or None if there is none yet; wait up to `wait_s` if it is being renewed.

        If the answer is older than `max_age_s`, return None. If it is older than `fresh_s`, renew it and wait
        for the new one even if the last one took a long time. A slow slurmctld is still queried at a limited
        rate.
        """
        with self._changed:
            now = self._clock.monotonic()
            age_s = now - self._asked_at
            due = (
                now >= self._renew_at
                or (age_s > max_age_s and not self._slow)
                or (age_s >= fresh_s and now >= self._rest_until)
            )
            if due and not self._asking:
                self._asking = True
                threading.Thread(target=self._renew, name="ask-slurm", daemon=True).start()
            good = age_s <= max_age_s and age_s < fresh_s
            patient = not self._slow and not (self._takes_long and good)
            if patient and not self._changed.wait_for(lambda: not self._asking, wait_s):
                self._slow = True
            return self._answer if now - self._asked_at <= max_age_s else None

    def _renew(self) -> None:
        began = self._clock.monotonic()
        answer: T | None = None
        try:
            answer = self._ask()
            self._outage.worked()
        except Exception as error:  # an invalid answer is treated as a missing one
            self._outage.failed(error)
        took = self._clock.monotonic() - began
        usual = min(took, self._took_before)
        rest_s = _PAUSE_AFTER_FAILURE_S if answer is None else usual / _SHARE
        pause_s = rest_s if answer is None else max(self._for_s, rest_s)
        with self._changed:
            if answer is not None:
                self._answer, self._asked_at = answer, began
                self._took_before = took
            self._renew_at, self._rest_until = began + took + pause_s, began + took + rest_s
            self._asking, self._slow = False, answer is None
            self._takes_long = self._answer is not None and took > _LONG_S
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class QueueState:
    """slurmctld's jobs by raw job ID and by node, as of the wall-clock time `as_of_s`."""

    as_of_s: float
    by_id: Mapping[int, QueuedJob]
    by_node: Mapping[str, tuple[QueuedJob, ...]]


class SlurmView:
    """Cached answers of slurmctld.

    If slurmctld is unreachable, methods do not fail but return None or an empty result.
    """

    def __init__(
        self,
        client: SlurmClient,
        clock: Clock,
        resolve: Callable[[str], frozenset[str]] | None = None,
    ) -> None:
        self.client = client
        self._clock = clock
        self._resolve = resolve if resolve is not None else resolve_address
        self._queue = CachedAnswer(self._ask_queue, clock, JOBS_FOR_S, "jobs")
        self._nodes = CachedAnswer(
            lambda: {node.name: node for node in client.nodes()}, clock, NODES_FOR_S, "nodes"
        )
        self._settings = CachedAnswer(client.settings, clock, SETTINGS_FOR_S, "its configuration")
        self._resolved: dict[str, tuple[float, frozenset[str]]] = {}

    def queue(self) -> QueueState | None:
        """Return pending, running and recently ended jobs."""
        return self._queue.get(WAIT_S)

    def queue_now(self) -> QueueState | None:
        """Return the same as `queue`, but wait a moment for a new answer instead of returning an old one."""
        return self._queue.get(WAIT_S, fresh_s=JOBS_FOR_S)

    def settings(self) -> SlurmSettings | None:
        """Return the configuration of slurmctld."""
        return self._settings.get(WAIT_S)

    def nodes(self, wait_s: float = WAIT_S) -> Mapping[str, SlurmNode] | None:
        """Return all nodes by name, up to a minute old; use this for addresses, types and features."""
        return self._nodes.get(wait_s)

    def nodes_now(self) -> Mapping[str, SlurmNode] | None:
        """Return all nodes by name, as up to date as `queue_now` if slurmctld is fast; use it for states."""
        return self._nodes.get(WAIT_S, fresh_s=JOBS_FOR_S)

    def may_speak(self, node: str, address: str) -> tuple[bool, frozenset[str]]:
        """Return whether `node` may send from this address, and the addresses of its NodeAddr and name.

        The node may also send if Slurm has never answered, or if neither its NodeAddr nor its name can be
        resolved. A refusal is never based on an old answer, since the node may have been added or moved.
        Raise SlurmError if only an old answer is available.
        """
        found: frozenset[str] = frozenset()
        for max_age_s in (math.inf, JOBS_FOR_S):
            nodes = self._nodes.get(WAIT_S, max_age_s)
            if nodes is None:
                if max_age_s == math.inf:
                    return True, frozenset()
                raise SlurmError(
                    f"cannot check whether {address} is an address of {node}: slurmctld does not answer"
                )
            found = self._addresses(nodes[node], address, max_age_s) if node in nodes else frozenset()
            if address in found or (node in nodes and not found):
                return True, found
        return False, found

    def _addresses(self, node: SlurmNode, wanted: str, max_age_s: float) -> frozenset[str]:
        """Return a node's addresses; do not resolve its name if its NodeAddr has the address `wanted`."""
        found = self._address_of(node.address, max_age_s)
        return found if wanted in found else found | self._address_of(node.name, max_age_s)

    def _address_of(self, name: str, max_age_s: float) -> frozenset[str]:
        now = self._clock.monotonic()
        resolved_at, found = self._resolved.get(name, (-math.inf, frozenset[str]()))
        if now - resolved_at > min(max_age_s, NODES_FOR_S):
            found = self._resolve(name)
            self._resolved[name] = now, found
        return found

    def _ask_queue(self) -> QueueState:
        as_of_s = self._clock.wall()
        jobs = self.client.jobs()
        by_node: dict[str, list[QueuedJob]] = {}
        for job in jobs:
            for node in job.nodes:
                by_node.setdefault(node, []).append(job)
        return QueueState(
            as_of_s, {job.job_id: job for job in jobs}, {name: tuple(some) for name, some in by_node.items()}
        )


def resolve_address(name: str) -> frozenset[str]:
    """Return the IP addresses of a host name or literal address; an empty set if it cannot be resolved."""
    try:
        return frozenset(
            str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        )
    except (OSError, UnicodeError):
        return frozenset()
