"""POST /v1/node: identify the sender, admit, read, store and answer."""

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

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.http.request import RETRY_AFTER_S, asked
from slurm_gpu.database.ingest.admission import Admission
from slurm_gpu.database.ingest.ingest_server import TARGET, IngestConnection
from slurm_gpu.database.ingest.intake import Intake
from slurm_gpu.database.ingest.storage_threads import RawShipment, Storers, encode
from slurm_gpu.database.ingest.thread_pool import ThreadPool, outcome_of
from slurm_gpu.errors import MungedUnavailableError, SlurmError
from slurm_gpu.http.identity import CONNECTION, PEER_UID, Authenticator, Caller

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
    parcel: RawShipment


class Posts:
    """The endpoint, and what is under way there."""

    def __init__(self, authenticator: Authenticator, intake: Intake, clock: Clock) -> None:
        self._authenticator, self._intake, self._clock = authenticator, intake, clock
        self._storers = Storers(intake, clock)
        # Records wait for the database, and live values must not wait for them.
        self._reading = ThreadPool[_Post, bytes | None](self._read, READERS, 1, "read-posts")
        self._shipments: Counter[str] = Counter()
        self._of_live = Admission(clock, LIVE_AT_ONCE)
        self._of_records = Admission(clock, RECORDS_AT_ONCE)
        self._counting = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = OutageLog(log, "nodes are asked to send again: %s", clock)

    async def post_node(self, request: Request) -> Response:
        """Take in a shipment that came through the web framework."""
        identify, body = await asked(self._authenticator, request)
        over_unix = hasattr(request.state, PEER_UID)
        connection: asyncio.Transport | None = request.scope.get("state", {}).get(CONNECTION)
        parcel = RawShipment(
            body,
            encoding=request.headers.get("content-encoding", "").strip().lower(),
            address=None if over_unix or request.client is None else request.client.host,
            came_s=self._clock.monotonic(),
        )
        if connection is not None:
            parcel.is_in_vain = connection.is_closing
        return Response(await self._taken_in(_Post(identify, parcel)), media_type="application/json")

    def take(self, connection: IngestConnection) -> None:
        """Take in a shipment that an ingest server read."""
        vouch, headers = self._authenticator.by_credential, connection.headers
        parcel = RawShipment(
            connection.body,
            encoding=headers.get(b"content-encoding", "").lower(),
            address=connection.address,
            came_s=self._clock.monotonic(),
            is_in_vain=connection.is_in_vain,
        )
        identify = partial(vouch, headers[b"authorization"], "POST", TARGET, connection.body)
        task = asyncio.get_running_loop().create_task(self._answer(_Post(identify, parcel), connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, post: _Post, connection: IngestConnection) -> None:
        try:
            answer = await self._taken_in(post)
        except Exception as error:
            connection.refuse(error)
        else:
            connection.answer(answer)

    async def _taken_in(self, post: _Post) -> bytes:
        """The answer to a shipment, once all of it is stored."""
        parcel = post.parcel
        with parcel.held:
            try:
                self._admit(parcel)
                answer = await self._reading.do(post)
                if answer is None:
                    answer = await self._storers.do(parcel)
            except (MungedUnavailableError, SlurmError) as error:
                self._again.failed(str(error))
                raise
        return answer

    def _admit(self, parcel: RawShipment) -> None:
        """Raises ShipmentError where it would be served too late, or not at all."""
        admission = self._of_live if len(parcel.body) <= SMALL_BYTES else self._of_records
        try:
            admission.come()
        except ShipmentError as error:
            self._again.failed(str(error))
            raise
        parcel.held.callback(admission.go)

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
        return None if shipment.n_to_store else encode(self._intake.take(shipment, parcel.address))

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
