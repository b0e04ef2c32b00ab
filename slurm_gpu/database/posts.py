"""POST /v1/node: what nodes ship, read and stored by a few threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from slurm_gpu.database.asking import CONNECTION, PEER_UID, RETRY_AFTER_S, asked
from slurm_gpu.database.crew import Crew, outcome_of
from slurm_gpu.database.identity import Caller
from slurm_gpu.database.intake import Answer
from slurm_gpu.database.services import Services
from slurm_gpu.database.shipment import Shipment, ShipmentError, WireError, parse_shipment
from slurm_gpu.database.trouble import TroubleLog
from slurm_gpu.errors import MungedAwayError, SlurmError

log = logging.getLogger(__name__)

SHIPMENTS_OF_AN_ADDRESS = 4
"""A node has one under way, and perhaps some on which it gave up: it must not take all threads."""
READERS = 3
"""More would only wait for Python's lock; and not all are to wait for one name that is hard to resolve."""
STORERS = 2
"""While one waits for the database, the other reads what is stored next."""
STORED_AT_ONCE = 100
"""As many shipments go into one transaction at most."""
SMALL_BYTES = 4096
"""What is larger, as it was sent, has records in it: it is read by the thread that stores it, in its turn."""
WAITING_BYTES = 64 << 20
"""Of shipments, inflated, that wait to be stored; read, they take several times as much."""
WAITED_FOR_S = 20.0
"""After so long a node has given up on its answer, and sends the same again."""
NODES_TOLD_OF = 20_000
"""Whose versions are not spoken here; more are not told of."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class _Post:
    """A request; `held` is let go of once it is answered."""

    identify: Callable[[], Caller]
    body: bytes
    encoding: str
    address: str | None
    connection: asyncio.Transport | None
    came_s: float
    held: contextlib.ExitStack
    shipment: Shipment | None = None


class Posts:
    """The endpoint, and what is under way there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        # Records wait for the database, and live values must not wait for them.
        self._reading = Crew[_Post, bytes | None](self._read, READERS, 1, "read-posts")
        self._storing = Crew[_Post, bytes](self._store, STORERS, STORED_AT_ONCE, "store-posts")
        self._shipments: Counter[str] = Counter()
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._refused: set[str] = set()
        self._again = TroubleLog("nodes are told to come again: %s", services.clock)

    async def post_node(self, request: Request) -> Response:
        """Take in a shipment."""
        identify, body = await asked(self._services.authenticator, request)
        over_unix = hasattr(request.state, PEER_UID)
        with contextlib.ExitStack() as held:
            post = _Post(
                identify,
                body,
                encoding=request.headers.get("content-encoding", "").strip().lower(),
                address=None if over_unix or request.client is None else request.client.host,
                connection=request.scope.get("state", {}).get(CONNECTION),
                came_s=self._services.clock.monotonic(),
                held=held,
            )
            try:
                answer = await self._reading.do(post) if len(body) <= SMALL_BYTES else None
                if answer is None:
                    answer = await self._storing.do(post)
            except (MungedAwayError, SlurmError) as error:
                self._again.failed(str(error))
                raise
        return Response(answer, media_type="application/json")

    def _read(self, posts: Sequence[_Post]) -> list[bytes | Exception | None]:
        """The answers, where these are a matter of the moment; None where there is something to be stored."""
        return [outcome_of(self._answered_now, post) for post in posts]

    def _answered_now(self, post: _Post) -> bytes | None:
        shipment = self._opened(post)
        return None if shipment.n_to_store else _encode(self._services.intake.take(shipment, post.address))

    def _store(self, posts: Sequence[_Post]) -> list[bytes | Exception]:
        """The answers, once all is stored."""
        opened = [outcome_of(self._opened, post) for post in posts]
        ready = [
            (one, post.address) for one, post in zip(opened, posts, strict=True) if isinstance(one, Shipment)
        ]
        answers = map(_encoded, self._services.intake.take_all(ready))
        return [next(answers) if isinstance(one, Shipment) else one for one in opened]

    def _opened(self, post: _Post) -> Shipment:
        """What is in it, as far as its node still waits for an answer, and it may send any."""
        if post.connection is not None and post.connection.is_closing():
            raise ClientDisconnect
        waited_s = self._services.clock.monotonic() - post.came_s
        if waited_s > WAITED_FOR_S:
            raise self._come_again(f"a shipment waited for {waited_s:.0f} s, longer than its node does")
        if post.shipment is not None:
            return post.shipment
        if not post.identify().writes:
            raise HTTPException(403, "only root and SlurmUser ship records")
        post.held.enter_context(self._one_shipment_more(post.address))
        try:
            post.shipment = parse_shipment(post.body, post.encoding)
        except WireError as error:
            self._tell_of(error)
            raise
        if post.shipment.n_to_store:
            post.held.enter_context(self._room_for(post.shipment.n_bytes))
        return post.shipment

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


def _encoded(answer: Answer | Exception) -> bytes | Exception:
    return answer if isinstance(answer, Exception) else _encode(answer)
