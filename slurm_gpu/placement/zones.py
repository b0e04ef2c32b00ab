"""Score zones for jobs by scale, and extend roles as demand grows.

Zones separate small jobs from large ones, so that GPUs freed in a zone suit the next job there. Roles are not
strict. If jobs of a scale need more than their own zones have, they may use the free capacity of zones with
the nearest other roles until jobs of those roles need it. The functions are pure; GPU amounts are in mgpu.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_SCORE = 1000
# A zone's role counts more than its free capacity.
_OF_WELCOME = 700
_OF_FULLNESS = MOST_SCORE - _OF_WELCOME
# Suitability of a zone without a role: between that of another scale's zone and that of the scale's own zone.
_COMMON = 0.5
_LEAST_GUEST, _MOST_GUEST = 0.1, 0.4


class JobScale(StrEnum):
    """The size of a job, and the role of a zone for such jobs."""

    SMALL = "small"
    """Needs one node."""
    MEDIUM = "medium"
    """Needs several nodes, but at most half of the largest zone."""
    LARGE = "large"


_ORDER = tuple(JobScale)


@dataclass(frozen=True, slots=True)
class ZoneLoad:
    """The load of a zone at one moment; only nodes that have GPUs and accept jobs count."""

    name: str
    role: str | None
    nodes: int
    free_nodes: int
    """Nodes with no GPU in use."""
    mgpu: int
    """Total GPU capacity."""

    @property
    def scale(self) -> JobScale | None:
        """The scale of the zone's role; None if the zone is for all jobs."""
        return JobScale(self.role) if self.role in _ORDER else None

    @property
    def fullness(self) -> float:
        """From 0 if all nodes are free to 1 if all are in use."""
        return 1 - self.free_nodes / self.nodes if self.nodes else 1.0


def most_medium_nodes(zones: Iterable[ZoneLoad]) -> int:
    """Return the largest number of nodes of a medium job; 1 if there are no medium jobs."""
    return max(1, max((zone.nodes for zone in zones), default=0) // 2)


def scale_of(nodes: int, most_medium: int) -> JobScale:
    """Return the scale of a job on this number of nodes."""
    if nodes <= 1:
        return JobScale.SMALL
    return JobScale.MEDIUM if nodes <= most_medium else JobScale.LARGE


def scores(zones: Sequence[ZoneLoad], demand: Mapping[JobScale, int]) -> dict[str, dict[JobScale, int]]:
    """Return for each zone and scale how well the zone suits jobs of this scale, from 0 to 1000.

    `demand` is the mgpu allocated to, or requested by, jobs of each scale. For each scale, its own zones
    score higher than other zones. Among otherwise equal zones, the fuller one scores higher, so that free
    nodes stay together.
    """
    welcome = welcome_by_zone(zones, demand)
    return {
        zone.name: {
            scale: round(_OF_WELCOME * welcome[zone.name][scale] + _OF_FULLNESS * zone.fullness)
            for scale in _ORDER
        }
        for zone in zones
    }


def welcome_by_zone(
    zones: Sequence[ZoneLoad], demand: Mapping[JobScale, int]
) -> dict[str, dict[JobScale, float]]:
    """Return how suitable each zone is for each scale, from 0 (not at all) to 1 (the scale's own zone)."""
    capacity = {scale: sum(zone.mgpu for zone in zones if zone.scale is scale) for scale in _ORDER}
    taken_in = stretched(capacity, demand, sum(zone.mgpu for zone in zones if zone.scale is None))

    def welcome(zone: ZoneLoad, guest: JobScale) -> float:
        host = zone.scale
        if host is None:
            return _COMMON
        if host is guest:
            return 1.0
        granted = taken_in.get((guest, host), 0)
        if granted <= 0:
            return 0.0
        return _LEAST_GUEST + (_MOST_GUEST - _LEAST_GUEST) * min(1.0, granted / capacity[host])

    return {zone.name: {scale: welcome(zone, scale) for scale in _ORDER} for zone in zones}


def stretched(
    capacity: Mapping[JobScale, int], demand: Mapping[JobScale, int], common: int = 0
) -> dict[tuple[JobScale, JobScale], float]:
    """Return, for each (guest, host), how many mgpu of the host's zones jobs of the guest's scale may use.

    Demand that exceeds a scale's own zones goes first to zones without a role (`common` mgpu in total), then
    to the next role, then to the role after that. Such demand never takes capacity that the host's own jobs
    need. Guests of one host share its capacity in proportion to their demand.
    """
    over = {scale: float(max(0, demand.get(scale, 0) - capacity.get(scale, 0))) for scale in _ORDER}
    left = {scale: float(max(0, capacity.get(scale, 0) - demand.get(scale, 0))) for scale in _ORDER}
    wanted = sum(over.values())
    if wanted > 0:
        kept = max(0.0, 1 - common / wanted)
        over = {scale: amount * kept for scale, amount in over.items()}
    granted: dict[tuple[JobScale, JobScale], float] = {}
    for distance in range(1, len(_ORDER)):
        asked = {pair: amount for guest in _ORDER for pair, amount in _asks(guest, distance, over, left)}
        for host in _ORDER:
            guests = {pair: amount for pair, amount in asked.items() if pair[1] is host}
            share = min(1.0, left[host] / total) if (total := sum(guests.values())) else 0.0
            for pair, amount in guests.items():
                granted[pair] = amount * share
                over[pair[0]] -= granted[pair]
                left[host] -= granted[pair]
    return {pair: amount for pair, amount in granted.items() if amount > 0}


def _asks(
    guest: JobScale, distance: int, over: Mapping[JobScale, float], left: Mapping[JobScale, float]
) -> list[tuple[tuple[JobScale, JobScale], float]]:
    """Split the demand of a scale among the roles at this distance, in proportion to their free capacity."""
    at = _ORDER.index(guest)
    hosts = [_ORDER[place] for place in (at - distance, at + distance) if 0 <= place < len(_ORDER)]
    room = sum(left[host] for host in hosts)
    if over[guest] <= 0 or room <= 0:
        return []
    return [((guest, host), over[guest] * left[host] / room) for host in hosts]


def reordered(offered: Sequence[str], points: Mapping[str, int], margin: int) -> list[str] | None:
    """Return a job's alternative zones, the best first; None if their order need not change.

    The order changes only if a zone is better by `margin` than a zone before it, because each change costs a
    call to slurmctld. Zones without a score come last.
    """

    def score(name: str) -> int:
        return points.get(name, -1)

    pairs = itertools.combinations(offered, 2)
    if not any(score(later) - score(earlier) >= margin for earlier, later in pairs):
        return None
    return sorted(offered, key=lambda name: (-score(name), offered.index(name)))
