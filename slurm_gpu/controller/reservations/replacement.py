"""Replace the nodes in approved reservations when they go out of service."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from zoneinfo import ZoneInfo

from slurm_gpu.clock import Clock
from slurm_gpu.config.site import Zone
from slurm_gpu.controller.reservations.windows import without
from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.text.hostlist import expand
from slurm_gpu.wire.answers.reservation import Reservation

# Time out of service after which a node is replaced; a reboot takes less time.
OUT_S = 600.0
# Interval at which nodes, and jobs on other nodes, are polled.
EVERY_S = 60.0


class ReservationRepairer:
    """Tracks how long reserved nodes have been out of service; its methods raise SlurmError on failure."""

    def __init__(
        self,
        nodes: Callable[[float], Sequence[SlurmNode]],
        jobs: Callable[[], Iterable[QueuedJob]],
        zones: Mapping[str, Zone],
        timezone: ZoneInfo,
        clock: Clock,
    ) -> None:
        """Set up the tracking; `nodes` returns slurmctld's nodes, at most the given number of seconds old."""
        self._nodes, self._jobs, self._zones, self._timezone = nodes, jobs, zones, timezone
        self._clock = clock
        self._since: dict[str, float] = {}
        self._tried: dict[int, float] = {}

    def update(self, promised: Collection[Reservation]) -> None:
        """Track which nodes of the reservations are out of service; without reservations, do not poll."""
        if not promised:
            self._since, self._tried = {}, {}
            return
        now = self._clock.monotonic()
        names = {name for row in promised for name in expand(row.nodes or "")}
        in_service = {node.name for node in self._nodes(EVERY_S) if not out_of_service(node)}
        self._since = {name: self._since.get(name, now) for name in names - in_service}
        ids = {row.id for row in promised}
        self._tried = {number: at for number, at in self._tried.items() if number in ids}

    def out(self, nodes: str) -> frozenset[str]:
        """Return the nodes in this hostlist that are out of service."""
        return frozenset(expand(nodes)).intersection(self._since)

    def lost(self, row: Reservation) -> frozenset[str]:
        """Return the nodes of a reservation that have been out of service for at least OUT_S."""
        before = self._clock.monotonic() - OUT_S
        return frozenset(name for name in self.out(row.nodes or "") if self._since[name] <= before)

    def instead(
        self,
        row: Reservation,
        in_slurm: Iterable[SlurmReservation],
        rows: Iterable[Reservation],
        now_s: float,
    ) -> str | None:
        """Return the nodes of a reservation after replacing lost nodes.

        Return None if no node is lost, no replacement is possible, or the last attempt was recent.
        """
        lost, now = self.lost(row), self._clock.monotonic()
        if not lost or now - self._tried.get(row.id, -EVERY_S) < EVERY_S:
            return None
        self._tried[row.id] = now
        nodes = self._nodes(EVERY_S)
        return without(row, lost, nodes, self._jobs(), in_slurm, rows, self._zones, now_s, self._timezone)

    def is_repaired(self, row: Reservation, found: SlurmReservation) -> bool:
        """Return whether Slurm's reservation differs from the row only by replaced nodes out of service."""
        before, after = set(expand(row.nodes or "")), set(expand(found.nodes))
        return row.user in found.users and len(before) == len(after) and before - after <= self._since.keys()
