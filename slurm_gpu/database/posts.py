"""POST /v1/node: what nodes ship, as many of them at once as there is room for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from slurm_gpu.database.asking import CONNECTION, PEER_UID, RETRY_AFTER_S, asked
from slurm_gpu.database.services import Services
from slurm_gpu.database.shipment import Shipment, ShipmentError, WireError, parse_shipment
from slurm_gpu.database.trouble import TroubleLog
from slurm_gpu.errors import MungedAwayError, SlurmError

log = logging.getLogger(__name__)

SHIPMENTS_OF_AN_ADDRESS = 4
"""A node has one under way, and perhaps some on which it gave up: it must not take all threads."""
READING_AT_ONCE = 8
"""More would only wait for Python's lock, and for each other."""
STORING_AT_ONCE = 100
"""As many shipments go into one transaction at most."""
SMALL_BYTES = 4096
"""What is larger, as it was sent, has records in it: it is read in the thread that stores it, in its turn."""
WAITING_BYTES = 64 << 20
"""Of shipments, inflated, that wait to be stored; read, they take several times as much."""
WAITED_FOR_S = 20.0
"""After so long a node has given up on its answer, and sends the same again."""
NODES_TOLD_OF = 20_000
"""Whose versions are not spoken here; more are not told of."""


class Posts:
    """The endpoint, and what is under way there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # Records wait for the database, and live values must not wait for them. Not anyio's threads, in
        # which others are answered: to call these takes several times as long.
        self._reading = ThreadPoolExecutor(READING_AT_ONCE, "read-posts")
        self._storing = ThreadPoolExecutor(STORING_AT_ONCE, "store-posts")
        self._shipments: Counter[str] = Counter()
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._refused: set[str] = set()
        self._again = TroubleLog("nodes are told to come again: %s", services.clock)

    async def post_node(self, request: Request) -> Response:
        """Take in a shipment."""
        identify, body = await asked(self._services.authenticator, request)
        encoding = request.headers.get("content-encoding", "").strip().lower()
        over_unix = hasattr(request.state, PEER_UID)
        address = None if over_unix or request.client is None else request.client.host
        connection: asyncio.Transport | None = request.scope.get("state", {}).get(CONNECTION)
        came_s = self._services.clock.monotonic()

        def check_age() -> None:
            if connection is not None and connection.is_closing():
                raise ClientDisconnect
            self._check_age(came_s)

        with contextlib.ExitStack() as held:

            def read() -> Shipment | bytes:
                """The answer, where that is a matter of this moment."""
                check_age()
                if not identify().writes:
                    raise HTTPException(403, "only root and SlurmUser ship records")
                held.enter_context(self._one_shipment_more(address))
                try:
                    shipment = parse_shipment(body, encoding)
                except WireError as error:
                    self._tell_of(error)
                    raise
                if not shipment.n_to_store:
                    return self._take(shipment, address)
                held.enter_context(self._room_for(shipment.n_bytes))
                return shipment

            def store(shipment: Shipment) -> bytes:
                check_age()
                return self._take(shipment, address)

            def read_and_store() -> bytes:
                shipment = read()
                return store(shipment) if isinstance(shipment, Shipment) else shipment

            in_thread = asyncio.get_running_loop().run_in_executor
            answer: Shipment | bytes
            try:
                if len(body) > SMALL_BYTES:
                    answer = await in_thread(self._storing, read_and_store)
                else:
                    answer = await in_thread(self._reading, read)
                    if isinstance(answer, Shipment):
                        answer = await in_thread(self._storing, store, answer)
            except (MungedAwayError, SlurmError) as error:
                self._again.failed(str(error))
                raise
        return Response(answer, media_type="application/json")

    def _take(self, shipment: Shipment, address: str | None) -> bytes:
        # First of all: once it is stored, nothing may say that it was not.
        is_its_own = self._services.intake.may_speak(shipment.node, address)
        answer = self._services.intake.take(shipment, address)
        if is_its_own:
            self._services.arrivals.heard(shipment.node, shipment.version)
        return json.dumps(answer, separators=(",", ":")).encode()

    def _check_age(self, came_s: float) -> None:
        waited_s = self._services.clock.monotonic() - came_s
        if waited_s > WAITED_FOR_S:
            raise self._come_again(f"a shipment waited for {waited_s:.0f} s, longer than its node does")

    @contextlib.contextmanager
    def _room_for(self, n_bytes: int) -> Iterator[None]:
        with self._counting:
            has_room = self._waiting_bytes + n_bytes <= WAITING_BYTES
            if has_room:
                self._waiting_bytes += n_bytes
        if not has_room:
            raise self._come_again(f"shipments of {WAITING_BYTES >> 20} MiB wait to be stored already")
        try:
            yield
        finally:
            with self._counting:
                self._waiting_bytes -= n_bytes

    def _come_again(self, why: str) -> ShipmentError:
        self._again.failed(why)
        return ShipmentError(503, why, RETRY_AFTER_S)

    def _tell_of(self, error: WireError) -> None:
        """Once of each node and version: it asks again and again."""
        if str(error) not in self._refused and len(self._refused) < NODES_TOLD_OF:
            self._refused.add(str(error))
            log.log(logging.INFO if error.is_passing else logging.WARNING, "%s", error)

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
