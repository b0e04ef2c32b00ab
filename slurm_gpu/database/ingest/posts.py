"""POST /v1/node: who ships, and what; what has to be stored is passed on to those who do that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.request import RETRY_AFTER_S, asked
from slurm_gpu.database.ingest.admission import Admission
from slurm_gpu.database.ingest.ingest_server import TARGET, Visit
from slurm_gpu.database.ingest.shipment import ShipmentError
from slurm_gpu.database.ingest.storage_threads import Parcel, Storers, encode
from slurm_gpu.database.ingest.thread_pool import Crew, outcome_of
from slurm_gpu.database.services import Services
from slurm_gpu.errors import MungedAwayError, SlurmError
from slurm_gpu.http.identity import CONNECTION, PEER_UID, Caller

log = logging.getLogger(__name__)

SHIPMENTS_OF_AN_ADDRESS = 4
"""A node has one under way, and perhaps some on which it gave up: it must not take all threads."""
READERS = 3
"""More would only wait for Python's lock; and not all are to wait for one name that is hard to resolve."""
LIVE_AT_ONCE, RECORDS_AT_ONCE = 2500, 1000
"""So many wait; of all connections that leaves some for who is to be told to come again."""
SMALL_BYTES = 4096
"""What is larger, as it was sent, has records in it: it is read by the thread that stores it, in its turn."""


@dataclass(slots=True, eq=False)
class _Post:
    """A shipment, of whom is yet to be found out."""

    identify: Callable[[], Caller]
    parcel: Parcel


class _ShipmentReading:
    """Waits until a shipment of a visit was read."""

    def __init__(self, posts: Posts, parcel: Parcel, visit: Visit) -> None:
        self._posts, self._parcel, self._visit = posts, parcel, visit
        self.done = visit.done

    def set_result(self, answer: bytes | None, /) -> None:
        """It is answered already, or has to be stored."""
        if answer is None:
            self._posts.begin_storing(self._parcel, self._visit)
        else:
            self._parcel.held.close()
            self._visit.set_result(answer)

    def set_exception(self, error: Exception, /) -> None:
        """It cannot be taken."""
        self._posts.tell(error, self._parcel, self._visit)


class Posts:
    """The endpoint, and what is under way there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._storers = Storers(services.intake, services.clock)
        self._store = self._storers.do if services.workers is None else services.workers.do
        # Records wait for the database, and live values must not wait for them.
        self._reading = Crew[_Post, bytes | None](self._read, READERS, 1, "read-posts")
        self._shipments: Counter[str] = Counter()
        self._of_live = Admission(services.clock, LIVE_AT_ONCE)
        self._of_records = Admission(services.clock, RECORDS_AT_ONCE)
        self._counting = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = OutageLog(log, "nodes are asked to send again: %s", services.clock)

    async def post_node(self, request: Request) -> Response:
        """Take in a shipment."""
        identify, body = await asked(self._services.authenticator, request)
        over_unix = hasattr(request.state, PEER_UID)
        connection: asyncio.Transport | None = request.scope.get("state", {}).get(CONNECTION)
        parcel = Parcel(
            body,
            encoding=request.headers.get("content-encoding", "").strip().lower(),
            address=None if over_unix or request.client is None else request.client.host,
            came_s=self._services.clock.monotonic(),
        )
        if connection is not None:
            parcel.is_in_vain = connection.is_closing
        with parcel.held:
            self._admit(parcel)
            try:
                answer = await self._reading.do(_Post(identify, parcel))
                if answer is None:
                    answer = await self._store(parcel)
            except (MungedAwayError, SlurmError) as error:
                self._again.failed(str(error))
                raise
        return Response(answer, media_type="application/json")

    def take(self, visit: Visit) -> None:
        """Take in a shipment that came the short way."""
        vouch, headers = self._services.authenticator.by_credential, visit.headers
        parcel = Parcel(
            visit.body,
            encoding=headers.get(b"content-encoding", "").lower(),
            address=visit.address,
            came_s=self._services.clock.monotonic(),
            is_in_vain=visit.is_in_vain,
        )
        self._admit(parcel)
        identify = partial(vouch, headers[b"authorization"], "POST", TARGET, visit.body)
        self._reading.begin(_Post(identify, parcel), _ShipmentReading(self, parcel, visit))

    def _admit(self, parcel: Parcel) -> None:
        """Raises ShipmentError where it would be served too late, or not at all."""
        admission = self._of_live if len(parcel.body) <= SMALL_BYTES else self._of_records
        try:
            admission.come()
        except ShipmentError as error:
            self._again.failed(str(error))
            raise
        parcel.held.callback(admission.go)

    def begin_storing(self, parcel: Parcel, visit: Visit) -> None:
        """Have it stored, and tell the visit."""
        task = asyncio.get_running_loop().create_task(self._stored(parcel, visit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _stored(self, parcel: Parcel, visit: Visit) -> None:
        try:
            answer = await self._store(parcel)
        except Exception as error:
            self.tell(error, parcel, visit)
        else:
            parcel.held.close()
            visit.set_result(answer)

    def tell(self, error: Exception, parcel: Parcel, visit: Visit) -> None:
        """It was not taken in."""
        parcel.held.close()
        if isinstance(error, MungedAwayError | SlurmError):
            self._again.failed(str(error))
        visit.set_exception(error)

    def _read(self, posts: Sequence[_Post]) -> list[bytes | Exception | None]:
        """The answers, where these are a matter of the moment; None where there is something to be stored."""
        return [outcome_of(self._answered_now, post) for post in posts]

    def _answered_now(self, post: _Post) -> bytes | None:
        parcel = post.parcel
        self._storers.require_awaited(parcel)
        if not post.identify().writes:
            raise HTTPException(403, "only root and SlurmUser ship records")
        parcel.held.enter_context(self._one_shipment_more(parcel.address))
        if len(parcel.body) > SMALL_BYTES:
            return None
        shipment = self._storers.open(parcel)
        return None if shipment.n_to_store else encode(self._services.intake.take(shipment, parcel.address))

    @contextlib.contextmanager
    def _one_shipment_more(self, address: str | None) -> Iterator[None]:
        if address is None:
            yield
            return
        with self._counting:
            if self._shipments[address] >= SHIPMENTS_OF_AN_ADDRESS:
                why = f"{SHIPMENTS_OF_AN_ADDRESS} shipments from {address} are still being taken in"
                raise HTTPException(429, why, {"Retry-After": str(RETRY_AFTER_S)})
            self._shipments[address] += 1
        try:
            yield
        finally:
            with self._counting:
                self._shipments[address] -= 1
                if not self._shipments[address]:
                    del self._shipments[address]
