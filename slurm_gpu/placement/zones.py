"""Zones by scale: whom each is for, how roles stretch with demand, and a zone's score for jobs of a scale.

Small jobs go with small ones and large with large, so that what frees up in a zone is of use to the next
job there. A role is no wall: where jobs of a scale want more than its own zones have, they are welcome in
what the nearest other roles leave over, and no longer once these need it themselves. Pure functions; GPUs are
mgpu.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

MOST_SCORE = 1000
_OF_WELCOME = 700
"""Whose zone it is counts for more than how full it is."""
_OF_FULLNESS = MOST_SCORE - _OF_WELCOME
_COMMON = 0.5
"""Of a zone without a role: better than a guest's place, not as good as one's own."""
_LEAST_GUEST, _MOST_GUEST = 0.1, 0.4


class JobScale(StrEnum):
    """How large a job is, and the role of a zone for such jobs."""

    SMALL = "small"
    """Fits one node."""
    MEDIUM = "medium"
    """Several nodes, at most half of the largest zone."""
    LARGE = "large"


_ORDER = tuple(JobScale)


@dataclass(frozen=True, slots=True)
class ZoneLoad:
    """A zone at one moment, of its nodes with GPUs that take jobs."""

    name: str
    role: str | None
    nodes: int
    free_nodes: int
    """Nodes of which no GPU is in use."""
    mgpu: int
    """What its nodes have in all."""

    @property
    def scale(self) -> JobScale | None:
        """That of its role; None where the zone is for all alike."""
        return JobScale(self.role) if self.role in _ORDER else None

    @property
    def fullness(self) -> float:
        """0 where all nodes are free, 1 where none is."""
        return 1 - self.free_nodes / self.nodes if self.nodes else 1.0


def most_medium_nodes(zones: Iterable[ZoneLoad]) -> int:
    """Nodes up to which a job of several is medium; 1 where there is no such job."""
    return max(1, max((zone.nodes for zone in zones), default=0) // 2)


def scale_of(nodes: int, most_medium: int) -> JobScale:
    """The scale of a job on so many nodes."""
    if nodes <= 1:
        return JobScale.SMALL
    return JobScale.MEDIUM if nodes <= most_medium else JobScale.LARGE


def scores(zones: Sequence[ZoneLoad], demand: Mapping[JobScale, int]) -> dict[str, dict[JobScale, int]]:
    """By zone and scale, how good a place the zone is for such a job, 0 to 1000.

    `demand`: mgpu that jobs of each scale hold and wait for. A zone that is for a scale always scores higher
    than one that is not; among zones alike the fuller is better, so that whole nodes stay free together.
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
    """By zone and scale, from 0 (not at all) to 1 (the zone is for these)."""
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
    """By (guest, host), the mgpu of the host's zones that jobs of the guest's scale are welcome to.

    What a scale wants beyond its own zones goes first into those without a role (`common` mgpu in all), then
    to the next role, then to the one after it; never more than the host's own jobs leave. Where several want
    the same, each gets its share.
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
    """What a scale asks of each role at that distance: of the one that has more left the more."""
    at = _ORDER.index(guest)
    hosts = [_ORDER[place] for place in (at - distance, at + distance) if 0 <= place < len(_ORDER)]
    room = sum(left[host] for host in hosts)
    if over[guest] <= 0 or room <= 0:
        return []
    return [((guest, host), over[guest] * left[host] / room) for host in hosts]


def reordered(offered: Sequence[str], points: Mapping[str, int], margin: int) -> list[str] | None:
    """The alternatives of a job anew, the best first; None where they may stay as they are.

    They stay while none is better by `margin` than one before it: each change is a call of slurmctld. Zones
    of which nothing is known come last.
    """

    def score(name: str) -> int:
        return points.get(name, -1)

    pairs = itertools.combinations(offered, 2)
    if not any(score(later) - score(earlier) >= margin for earlier, later in pairs):
        return None
    return sorted(offered, key=lambda name: (-score(name), offered.index(name)))
