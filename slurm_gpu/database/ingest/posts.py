"""Handle POST /v1/node: identify the sender, then admit, parse and store the shipment, and answer."""

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
from slurm_gpu.database.ingest.storage_threads import RawShipment, StorageThreads, encode
from slurm_gpu.database.ingest.thread_pool import ThreadPool, outcome_of
from slurm_gpu.errors import MungedUnavailableError, SlurmError
from slurm_gpu.http.identity import CONNECTION, PEER_UID, Authenticator, Caller

log = logging.getLogger(__name__)

# A node has one request in progress, and possibly abandoned ones. A single node must not occupy all threads.
SHIPMENTS_OF_AN_ADDRESS = 4
# With a single thread, one slow name resolution would block all shipments. More threads than this would only
# wait for Python's lock.
READERS = 3
# Maximum number of waiting shipments. The remaining connections are for senders that must retry later.
LIVE_AT_ONCE, RECORDS_AT_ONCE = 2500, 1000
# A body larger than this contains records, and is parsed by the thread that stores them.
SMALL_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Post:
    """A shipment whose sender has not been identified yet."""

    identify: Callable[[], Caller]
    raw: RawShipment


class Posts:
    """The endpoint /v1/node and its requests in progress."""

    def __init__(self, authenticator: Authenticator, intake: Intake, clock: Clock) -> None:
        self._authenticator, self._intake, self._clock = authenticator, intake, clock
        self._storers = StorageThreads(intake, clock)
        # Records wait for the database; live values must not wait behind records.
        self._reading = ThreadPool[_Post, bytes | None](self._read, READERS, 1, "read-posts")
        self._shipments: Counter[str] = Counter()
        self._of_live = Admission(clock, LIVE_AT_ONCE)
        self._of_records = Admission(clock, RECORDS_AT_ONCE)
        self._counting = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = OutageLog(log, "nodes must send again later: %s", clock)

    async def post_node(self, request: Request) -> Response:
        """Handle a shipment that the web framework received."""
        identify, body = await asked(self._authenticator, request)
        over_unix = hasattr(request.state, PEER_UID)
        connection: asyncio.Transport | None = request.scope.get("state", {}).get(CONNECTION)
        raw = RawShipment(
            body,
            encoding=request.headers.get("content-encoding", "").strip().lower(),
            address=None if over_unix or request.client is None else request.client.host,
            received_at_s=self._clock.monotonic(),
        )
        if connection is not None:
            raw.is_in_vain = connection.is_closing
        return Response(await self._taken_in(_Post(identify, raw)), media_type="application/json")

    def take(self, connection: IngestConnection) -> None:
        """Handle a shipment that the ingest server read."""
        vouch, headers = self._authenticator.by_credential, connection.headers
        raw = RawShipment(
            connection.body,
            encoding=headers.get(b"content-encoding", "").lower(),
            address=connection.address,
            received_at_s=self._clock.monotonic(),
            is_in_vain=connection.is_in_vain,
        )
        identify = partial(vouch, headers[b"authorization"], "POST", TARGET, connection.body)
        task = asyncio.get_running_loop().create_task(self._answer(_Post(identify, raw), connection))
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
        """Admit and store a shipment, and return the answer."""
        raw = post.raw
        with raw.cleanup:
            try:
                self._admit(raw)
                answer = await self._reading.do(post)
                if answer is None:
                    answer = await self._storers.do(raw)
            except (MungedUnavailableError, SlurmError) as error:
                self._again.failed(str(error))
                raise
        return answer

    def _admit(self, raw: RawShipment) -> None:
        """Admit a shipment; raise ShipmentError if it would be served too late."""
        admission = self._of_live if len(raw.body) <= SMALL_BYTES else self._of_records
        try:
            admission.enter()
        except ShipmentError as error:
            self._again.failed(str(error))
            raise
        raw.cleanup.callback(admission.leave)

    def _read(self, posts: Sequence[_Post]) -> list[bytes | Exception | None]:
        """Return the answers to shipments without items to store, and None for the other shipments."""
        return [outcome_of(self._answered_now, post) for post in posts]

    def _answered_now(self, post: _Post) -> bytes | None:
        raw = post.raw
        self._storers.require_awaited(raw)
        if not post.identify().writes:
            raise HTTPException(403, "only root and SlurmUser may send shipments")
        raw.cleanup.enter_context(self._one_shipment_more(raw.address))
        if len(raw.body) > SMALL_BYTES:
            return None
        shipment = self._storers.open(raw)
        return None if shipment.n_to_store else encode(self._intake.take(shipment, raw.address))

    @contextlib.contextmanager
    def _one_shipment_more(self, address: str | None) -> Iterator[None]:
        if address is None:
            yield
            return
        with self._counting:
            if self._shipments[address] >= SHIPMENTS_OF_AN_ADDRESS:
                why = f"{SHIPMENTS_OF_AN_ADDRESS} shipments from {address} are still in progress"
                raise HTTPException(429, why, {"Retry-After": str(RETRY_AFTER_S)})
            self._shipments[address] += 1
        try:
            yield
        finally:
            with self._counting:
                self._shipments[address] -= 1
                if not self._shipments[address]:
                    del self._shipments[address]
