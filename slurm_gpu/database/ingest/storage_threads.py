"""Parse and store shipments in a few threads of this process."""

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

# While one thread waits for the database, another parses the next shipment.
STORERS = 2
# Maximum number of shipments in one transaction.
STORED_AT_ONCE = 100
# Maximum inflated size of all shipments that wait to be stored. Parsed shipments take several times as much
# memory.
WAITING_BYTES = 64 << 20
# After this time, a node abandons its request and sends the same shipment again.
WAITED_FOR_S = 20.0
# Maximum number of (node, version) pairs for which an unsupported wire version is logged.
MAX_REFUSALS_LOGGED = 20_000

encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class RawShipment:
    """The unparsed body of a shipment, received at `received_at_s` (Clock.monotonic()).

    `address` is None if it arrived over the Unix socket. `cleanup` is closed when the answer is ready.
    """

    body: bytes
    encoding: str
    address: str | None
    received_at_s: float
    is_in_vain: Callable[[], bool] = lambda: False
    """Return whether the sender has disconnected."""
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    shipment: CheckedShipment | None = None


class StorageThreads:
    """Threads that parse and store shipments, and return the answers."""

    def __init__(self, intake: Intake, clock: Clock) -> None:
        self._intake, self._clock = intake, clock
        self._pool = ThreadPool[RawShipment, bytes](self._store, STORERS, STORED_AT_ONCE, "store-posts")
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._refused: set[str] = set()
        self._again = OutageLog(log, "nodes must send again later: %s", clock)

    async def do(self, raw: RawShipment) -> bytes:
        """Store a shipment; return the answer, or raise the error to send as the answer."""
        return await self._pool.do(raw)

    def open(self, raw: RawShipment) -> CheckedShipment:
        """Parse a shipment unless its node no longer waits for the answer."""
        self.require_awaited(raw)
        if raw.shipment is None:
            try:
                raw.shipment = parse_shipment(raw.body, raw.encoding)
            except WireError as error:
                self._log_once(error)
                raise
            if raw.shipment.n_to_store:
                raw.cleanup.enter_context(self._room_for(raw.shipment.n_bytes))
        return raw.shipment

    def require_awaited(self, raw: RawShipment) -> None:
        """If the node is no longer waiting, raise the error to send as the answer."""
        if raw.is_in_vain():
            raise ClientDisconnect
        waited_s = self._clock.monotonic() - raw.received_at_s
        if waited_s > WAITED_FOR_S:
            raise self._come_again(
                f"a shipment waited for {waited_s:.0f} s; its node no longer waits for the answer"
            )

    def _store(self, raws: Sequence[RawShipment]) -> list[bytes | Exception]:
        opened = [outcome_of(self._opened, raw) for raw in raws]
        ready = [
            (one, raw.address)
            for one, raw in zip(opened, raws, strict=True)
            if isinstance(one, CheckedShipment)
        ]
        answers = map(_encoded, self._intake.take_all(ready))
        return [next(answers) if isinstance(one, CheckedShipment) else one for one in opened]

    def _opened(self, raw: RawShipment) -> CheckedShipment:
        shipment = self.open(raw)
        self.require_awaited(raw)
        return shipment

    @contextlib.contextmanager
    def _room_for(self, n_bytes: int) -> Iterator[None]:
        with self._counting:
            has_room = self._waiting_bytes + n_bytes <= WAITING_BYTES
            if has_room:
                self._waiting_bytes += n_bytes
        if not has_room:
            raise self._come_again(f"shipments of {WAITING_BYTES >> 20} MiB are already waiting to be stored")
        try:
            yield
        finally:
            with self._counting:
                self._waiting_bytes -= n_bytes

    def _come_again(self, why: str) -> ShipmentError:
        self._again.failed(why)
        return ShipmentError(503, why, RETRY_AFTER_S)

    def _log_once(self, error: WireError) -> None:
        """Log each node and version only once, since the node sends repeatedly."""
        if str(error) not in self._refused and len(self._refused) < MAX_REFUSALS_LOGGED:
            self._refused.add(str(error))
            log.log(logging.INFO if error.is_passing else logging.WARNING, "%s", error)


def _encoded(answer: Answer | Exception) -> bytes | Exception:
    return answer if isinstance(answer, Exception) else encode(answer)
