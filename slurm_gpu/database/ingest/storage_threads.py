"""What nodes ship, read and stored by a few threads of this process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from starlette.requests import ClientDisconnect

from slurm_gpu.clock import Clock
from slurm_gpu.daemon.outage_log import OutageLog
from slurm_gpu.database.http.error_responses import ShipmentError
from slurm_gpu.database.http.request import RETRY_AFTER_S
from slurm_gpu.database.ingest.intake import Answer, Intake
from slurm_gpu.database.ingest.shipment import CheckedShipment, WireError, parse_shipment
from slurm_gpu.database.ingest.thread_pool import ThreadPool, outcome_of

log = logging.getLogger(__name__)

STORERS = 2
"""While one waits for the database, the other reads what is stored next."""
STORED_AT_ONCE = 100
"""As many shipments go into one transaction at most."""
WAITING_BYTES = 64 << 20
"""Of shipments, inflated, that wait to be stored; read, they take several times as much."""
WAITED_FOR_S = 20.0
"""After so long a node has given up on its answer, and sends the same again."""
NODES_TOLD_OF = 20_000
"""Whose versions are not spoken here; more are not told of."""

encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class RawShipment:
    """A shipment as it came, at `came_s` by Clock.monotonic(), from who may ship.

    `address` is None over the Unix socket. `held` is let go of once it is answered.
    """

    body: bytes
    encoding: str
    address: str | None
    came_s: float
    is_in_vain: Callable[[], bool] = lambda: False
    """Whether nobody is there any more to hear of it."""
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    shipment: CheckedShipment | None = None


class Storers:
    """They answer once all is stored."""

    def __init__(self, intake: Intake, clock: Clock) -> None:
        self._intake, self._clock = intake, clock
        self._pool = ThreadPool[RawShipment, bytes](self._store, STORERS, STORED_AT_ONCE, "store-posts")
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._refused: set[str] = set()
        self._again = OutageLog(log, "nodes are asked to send again: %s", clock)

    async def do(self, parcel: RawShipment) -> bytes:
        """Store what is in it; its answer, or an error that is one."""
        return await self._pool.do(parcel)

    def open(self, parcel: RawShipment) -> CheckedShipment:
        """What is in it, as far as its node still waits for an answer."""
        self.require_awaited(parcel)
        if parcel.shipment is None:
            try:
                parcel.shipment = parse_shipment(parcel.body, parcel.encoding)
            except WireError as error:
                self._tell_of(error)
                raise
            if parcel.shipment.n_to_store:
                parcel.held.enter_context(self._room_for(parcel.shipment.n_bytes))
        return parcel.shipment

    def require_awaited(self, parcel: RawShipment) -> None:
        """Raises what its node is told, if it hears that, where it waits no more."""
        if parcel.is_in_vain():
            raise ClientDisconnect
        waited_s = self._clock.monotonic() - parcel.came_s
        if waited_s > WAITED_FOR_S:
            raise self._come_again(f"a shipment waited for {waited_s:.0f} s, longer than its node does")

    def _store(self, parcels: Sequence[RawShipment]) -> list[bytes | Exception]:
        opened = [outcome_of(self._opened, parcel) for parcel in parcels]
        ready = [
            (one, parcel.address)
            for one, parcel in zip(opened, parcels, strict=True)
            if isinstance(one, CheckedShipment)
        ]
        answers = map(_encoded, self._intake.take_all(ready))
        return [next(answers) if isinstance(one, CheckedShipment) else one for one in opened]

    def _opened(self, parcel: RawShipment) -> CheckedShipment:
        shipment = self.open(parcel)
        self.require_awaited(parcel)
        return shipment

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


def _encoded(answer: Answer | Exception) -> bytes | Exception:
    return answer if isinstance(answer, Exception) else encode(answer)
