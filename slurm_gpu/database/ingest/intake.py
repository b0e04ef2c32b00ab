"""Decide which items of a shipment to accept, store them, and answer the node."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from slurm_gpu import __version__
from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.accounting.slurm_view import QueueState, SlurmView
from slurm_gpu.database.accounting.writer import prepare
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.ingest.admitted_items import AdmittedItems
from slurm_gpu.database.ingest.dropped_fields import DroppedLog
from slurm_gpu.database.ingest.ended_jobs import RunEnds, ended, run_ends
from slurm_gpu.database.ingest.group_commit import GroupCommit
from slurm_gpu.database.ingest.job_facts import jobs_on
from slurm_gpu.database.ingest.shipment import KINDS, CheckedShipment
from slurm_gpu.database.ingest.stall_detector import StallDetector
from slurm_gpu.database.ingest.stored_facts import StoredFacts
from slurm_gpu.database.ingest.storing import store
from slurm_gpu.database.ingest.thread_pool import outcome_of
from slurm_gpu.database.ingest.unknown_fields import UnknownLog
from slurm_gpu.database.live.live_needs import is_unsettled
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.live.node_memory import AT_ONCE_ITEMS, ITEMS_PER_S, Allowances
from slurm_gpu.database.live.rejections import Rejected
from slurm_gpu.database.storage.engine import REFUSED, Database, LockedError, LockWait, why_refused
from slurm_gpu.errors import DatabaseError
from slurm_gpu.http.identity import uid_of
from slurm_gpu.http.networks import plain
from slurm_gpu.wire import WIRE_RANGE, DeviceFacts, Event, Live
from slurm_gpu.wire.live import LIVE_INTERVAL_S

log = logging.getLogger(__name__)

# Only the newest report of a device is kept, so a report dated in the future would take precedence over all
# later ones. An event dated in the future would be kept indefinitely.
_AHEAD_S = 86400
_MOST_OF_A_REASON = 500
# At most this many threads read accounting for ended jobs; the other threads must remain free.
ENDS_AT_ONCE = 2

T = TypeVar("T")
Counts = tuple[int, int]
Answer = dict[str, Any]


class Intake:
    """Decides which items of a shipment to accept, stores them, and builds the answer to the node."""

    def __init__(
        self,
        database: Database,
        view: SlurmView,
        cluster: str,
        clock: Clock,
        memory: LiveState | None = None,
    ) -> None:
        self._database, self._view, self._cluster, self._clock = database, view, cluster, clock
        self._memory = LiveState.fresh(clock) if memory is None else memory
        self._allowances = Allowances(clock)
        self._commits = GroupCommit(self._store_together, AdmittedItems.segments, attrgetter("node"), clock)
        self._unknown, self._dropped = UnknownLog(), DroppedLog(clock)
        self._kept = StoredFacts(database, clock)
        self._asking_ends = threading.BoundedSemaphore(ENDS_AT_ONCE)
        self._unavailable = OutageLog(
            log,
            "shipments cannot be stored and wait on their nodes: %s",
            clock,
            "shipments are stored again",
        )
        self._locked = OutageLog(log, "a shipment cannot be stored and waits on its node: %s", clock)
        self._unread = OutageLog(log, "nodes cannot be notified of their ended jobs: %s", clock)
        self.storing = StallDetector(
            "shipments are waiting for the database; none has been stored or rejected", clock
        )
        """Counts shipments that wait for the database."""

    def take(self, shipment: CheckedShipment, address: str | None) -> Answer:
        """Store a shipment and return the answer; `address` is None if it arrived over the Unix socket.

        The answer is returned only after the commit. Raise DatabaseError if not all items could be stored,
        SlurmError if Slurm is needed to authorise the sender but is unreachable, and ShipmentError (429) if
        the sender exceeded its allowance. The sender retries in these cases.
        """
        (answer,) = self.take_all([(shipment, address)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take_all(self, some: Sequence[tuple[CheckedShipment, str | None]]) -> list[Answer | Exception]:
        """Store shipments together; return each one's answer or the exception that `take` would raise."""
        takings = [self._taking(shipment, address) for shipment, address in some]
        steps = [_step(partial(next, taking)) for taking in takings]
        waiting = {place: step for place, step in enumerate(steps) if isinstance(step, AdmittedItems)}
        stored = self._stored(list(waiting.values())) if waiting else []
        for place, outcome in zip(waiting, stored, strict=True):
            if isinstance(outcome, Exception):
                steps[place] = _step(partial(takings[place].throw, outcome))
            else:
                steps[place] = _step(partial(takings[place].send, outcome))
        return [step for step in steps if not isinstance(step, AdmittedItems)]

    def _taking(
        self, shipment: CheckedShipment, address: str | None
    ) -> Generator[AdmittedItems, Counts, Answer]:
        """Yield the items to store, if any; receive the stored and stale counts; return the answer."""
        # Items are counted by address, because a sender may claim any node name.
        sender = shipment.node if address is None else plain(address)
        if (wait_s := self._allowances.wait_s(sender)) > 0:
            who = f"{shipment.node} from {address or 'this host'}"
            why = f"{who} sent more than {AT_ONCE_ITEMS} items at once or {ITEMS_PER_S:g} items per second"
            log.warning("%s; it must wait for %.0f s", why, wait_s)
            raise ShipmentError(429, f"{why}; it must wait", math.ceil(wait_s))
        queue = self._view.queue()
        known: dict[str, str | None] = {}

        def foreign(node: str) -> str | None:
            if node not in known:
                known[node] = self._foreign(node, address)
            return known[node]

        # Check the sender before storing: the check may raise an error, which means that nothing was stored.
        is_its_own = foreign(shipment.node) is None
        admitted = self._admitted(shipment, foreign, queue)
        slurm_nodes = self._view.nodes() or {}
        # A machine without Slurm assigns its own job IDs.
        open_jobs = shipment.open_jobs if shipment.node in slurm_nodes else ()
        interval_s = self._memory.needs.interval_s(shipment.node)
        if is_unsettled(shipment.node, open_jobs, queue):
            interval_s = LIVE_INTERVAL_S
        if admitted.live is not None:
            # Live values are kept even if other items cannot be stored, because the values are useless later.
            self._memory.board.put(shipment.node, admitted.live, interval_s)
        stored, stale = 0, 0
        windows, n_to_store, n_rejected = (
            list(admitted.windows.values()),
            admitted.n_to_store,
            len(admitted.rejected),
        )
        if n_to_store:
            stored, stale = yield admitted
            self._allowances.spend(sender, n_to_store - (len(admitted.rejected) - n_rejected))
        # From here on, an unreachable Slurm or database must not cause an error, because the node would then
        # resend all items.
        for window in windows:
            self._memory.wants.arrived(shipment.node, window.job_id)
        if admitted.rejected:
            _warn(shipment.node, address, admitted.rejected)
            self._memory.rejections.add(admitted.rejected)
        if shipment.unknown:
            self._unknown.warn(shipment.node, shipment.version, shipment.unknown)
        if is_its_own:
            self._dropped.warn(shipment.node, shipment.dropped.found)
        now_s = self._clock.wall()
        over = ended(shipment.node, open_jobs, queue, now_s, self._run_ends)
        if is_its_own:
            self._memory.arrivals.record_shipment(shipment.node, shipment.version)
        return {
            "stored": stored,
            "stale": stale,
            **{_rejection_key(kind): [] for kind in KINDS},
            **_by_kind(admitted.rejected),
            "want": self._memory.wants.of(shipment.node),
            "jobs": jobs_on(shipment.node, slurm_nodes.get(shipment.node), queue, now_s),
            "ended": {str(job_id): item.to_json() for job_id, item in over.items()},
            "live_interval_s": interval_s,
            "lacks": self._kept.lacks(shipment.node, shipment.has) if is_its_own else [],
            "ignored": shipment.unknown,
            "dropped": shipment.dropped.to_json(),
            "version": __version__,
            "wire": list(WIRE_RANGE),
        }

    def _admitted(
        self, shipment: CheckedShipment, foreign: Callable[[str], str | None], queue: QueueState | None
    ) -> AdmittedItems:
        """Admit the items that this sender may send, and reject the others."""
        rejected, at_s = list(shipment.rejected), int(self._clock.wall())
        admitted = AdmittedItems(node=shipment.node, at_s=at_s, queue=queue, rejected=rejected)

        def admit(kind: str, items: Mapping[int, T], node_of: Callable[[T], str], into: dict[int, T]) -> None:
            for index, item in items.items():
                why = foreign(node_of(item))
                if why is None:
                    into[index] = item
                else:
                    admitted.rejected.append(Rejected(index, why, kind))

        admit("records", shipment.records, attrgetter("node"), admitted.records)
        admit("hosts", shipment.hosts, attrgetter("node"), admitted.hosts)
        admit("devices", shipment.devices, attrgetter("node"), admitted.devices)
        admit("events", shipment.events, attrgetter("node"), admitted.events)
        admit("runs", shipment.runs, attrgetter("node"), admitted.runs)
        admit("windows", shipment.windows, lambda _: shipment.node, admitted.windows)
        live = {} if shipment.live is None else {0: shipment.live}
        admitted_live: dict[int, Live] = {}
        admit("live", live, lambda _: shipment.node, admitted_live)
        admitted.live = admitted_live.get(0)
        slurms = self._view.nodes() or {}
        invented = {
            index: f"{run.node} is a Slurm node, whose runs are read from accounting"
            for index, run in admitted.runs.items()
            if run.node in slurms
        }
        admitted.reject("runs", invented)
        admitted.uids = {user: uid_of(user) for user in {run.user for run in admitted.runs.values()}}
        admitted.reject("devices", _from_the_future(admitted.devices, admitted.at_s))
        admitted.reject("events", _from_the_future(admitted.events, admitted.at_s))
        return admitted

    def _stored(self, some: Sequence[AdmittedItems]) -> list[Counts | Exception]:
        """Store shipments; return (stored, stale) counts of records and host records, after the commit.

        Items that the database will never accept are rejected without affecting other items.
        """
        unready = [outcome_of(prepare, admitted.records.values()) for admitted in some]
        ready = [admitted for admitted, error in zip(some, unready, strict=True) if error is None]
        with self.storing.waiting(len(ready)):
            committed = iter(self._commits.do(ready))
        outcomes = [next(committed) if error is None else error for error in unready]
        return list(map(self._judged, some, outcomes))

    def _judged(self, admitted: AdmittedItems, outcome: Counts | Exception) -> Counts | Exception:
        if isinstance(outcome, REFUSED):
            return self._refused(admitted, outcome)
        if isinstance(outcome, LockedError):
            self._locked.failed(f"{admitted.node}: {outcome}")
        elif isinstance(outcome, DatabaseError):
            self._unavailable.failed(str(outcome))
        elif not isinstance(outcome, Exception):
            self._unavailable.worked()
        return outcome

    def _refused(self, admitted: AdmittedItems, error: Exception) -> Counts | Exception:
        if admitted.n_to_store <= 1:
            admitted.reject_all(f"the database rejects it: {why_refused(error)}"[:_MOST_OF_A_REASON])
            return 0, 0
        # Bisect until only the rejected item is left.
        n_stored, n_stale = 0, 0
        for half in admitted.halves():
            (outcome,) = self._stored([half])
            if isinstance(outcome, Exception):
                return outcome
            n_stored, n_stale = n_stored + outcome[0], n_stale + outcome[1]
        return n_stored, n_stale

    def _store_together(self, items: Sequence[AdmittedItems], waits: bool) -> Sequence[tuple[int, int]]:
        # Wait for locks as briefly as possible, because all other shipments wait during this time.
        lock_wait = LockWait.ONCE if waits else LockWait.NONE
        return self._database.write(partial(store, some=items, cluster=self._cluster), lock_wait)

    def _run_ends(self, job_ids: Sequence[int]) -> RunEnds:
        """Read the accounting of jobs; return an empty dict if this fails, since the node asks again."""
        if not self._asking_ends.acquire(blocking=False):
            return {}
        try:
            with self._database.reading() as connection:
                return run_ends(connection, self._cluster, job_ids)
        except DatabaseError as error:
            self._unread.failed(str(error))
            return {}
        finally:
            self._asking_ends.release()

    def _foreign(self, node: str, address: str | None) -> str | None:
        """Return why this sender may not send for `node`; None if it may, or if Slurm cannot decide."""
        if address is None:
            return None
        may, addresses = self._view.may_speak(node, plain(address))
        if may:
            return None
        if not addresses:
            return f"{node} is not a node of this cluster"
        return f"{address} is not an address of {node}, whose addresses are {', '.join(sorted(addresses))}"


def _step(go_on: Callable[[], AdmittedItems]) -> AdmittedItems | Answer | Exception:
    """Run one step of a generator; return the value or exception that it yields, returns or raises."""
    try:
        return go_on()
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    except Exception as error:
        return error


def _from_the_future(items: Mapping[int, DeviceFacts] | Mapping[int, Event], now_s: int) -> dict[int, str]:
    return {
        index: f"at_s: {item.at_s} is more than a day in the future; set the clock of {item.node}"
        for index, item in items.items()
        if item.at_s > now_s + _AHEAD_S
    }


def _rejection_key(kind: str) -> str:
    return "rejected" if kind == "records" else f"rejected_{kind}"


def _by_kind(rejected: Iterable[Rejected]) -> dict[str, list[dict[str, Any]]]:
    answer: dict[str, list[dict[str, Any]]] = {}
    for item in rejected:
        answer.setdefault(_rejection_key(item.kind), []).append({"index": item.index, "why": item.why})
    return answer


def _warn(node: str, address: str | None, rejected: Sequence[Rejected]) -> None:
    first = rejected[0]
    log.warning(
        "%r from %s: %d items rejected, such as %s[%d]: %s",
        node,
        address or "this host",
        len(rejected),
        first.kind,
        first.index,
        first.why,
    )
