"""Compute how long devices were allocated to a run; this time is the denominator of coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.database.accounting.steady_clock import allocated_s
from slurm_gpu.wire import Record

# A node counts as silent after two shipment intervals of a running job (300 ± 60 s each).
SHIPPED_WITHIN_S = 720.0
# Slurm truncates start and end to whole seconds, so it may report 0 or 1 s for a run of 0.4 s.
_ROUNDED_S = 1.0

# A node and one of its devices.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """One accounting row of a run; a resized run has several rows, in chronological order.

    `allocated_mgpu` is None if Slurm cannot determine it (for example, shards on nodes that no longer exist).
    `elapsed_s` is None while the run continues.
    """

    nodes: frozenset[str]
    allocated_mgpu: int | None
    start_s: int | None
    elapsed_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Times in seconds, summed over all devices of a run."""

    allocated_s: float
    """Time during which devices were allocated and the run was not suspended."""
    sampled_s: float
    """The sampled part of `allocated_s`."""
    metered_s: float
    """Lower bound of the part of `allocated_s` for which energy was measured.

    Energy is also measured while the run is suspended, so all suspended time is subtracted.
    """


def device_time(records: Sequence[Record], parts: Sequence[RunPart]) -> DeviceTime:
    """Compute how long devices were allocated to a run, and how much of this time was sampled.

    `records` must not be empty and must not contain double watches. For a part that has ended, use Slurm's
    elapsed time, or the node's more precise time if the two agree within Slurm's rounding. While a part
    continues, count each device up to its own newest record, since data not sent yet is not lost. If this
    record is more than two shipment intervals older than the newest record of the run, count the device up to
    the newest record of the run. Devices without records are counted too.

    Samples taken after the end that Slurm reports (during the epilog) do not make up for unsampled time
    before that end.
    """
    of_place: dict[Place, list[Record]] = {}
    for record in records:
        of_place.setdefault((record.node, record.device), []).append(record)
    newest_s = max(record.last_s for record in records)
    suspended_s = _suspended_of(of_place)
    seen_s = {place: max(0.0, allocated_s(some) - suspended_s[place]) for place, some in of_place.items()}
    allocated, sampled, metered = [], [], []
    for place, some in of_place.items():
        behind_s = newest_s - max(record.last_s for record in some)
        place_s = _place_s(seen_s[place], behind_s, [part for part in parts if place[0] in part.nodes])
        after_s = max(0.0, seen_s[place] - place_s)
        allocated.append(place_s)
        sampled.append(_within(math.fsum(record.sampled_s for record in some) - after_s, place_s))
        energy_s = math.fsum(record.energy_j.seconds for record in some if record.energy_j is not None)
        metered.append(_within(energy_s - after_s - suspended_s[place], place_s))
    unreported_s = math.fsum(_unreported_s(part, seen_s, newest_s) for part in parts)
    return DeviceTime(
        allocated_s=math.fsum(allocated) + unreported_s,
        sampled_s=math.fsum(sampled),
        metered_s=math.fsum(metered),
    )


def _within(seconds: float, most_s: float) -> float:
    return min(max(0.0, seconds), most_s)


def _place_s(seen_s: float, behind_s: int, parts: Sequence[RunPart]) -> float:
    """Return how long one device was allocated, according to Slurm or to its node."""
    elapsed = [part.elapsed_s for part in parts if part.elapsed_s is not None]
    if len(elapsed) < len(parts):
        return seen_s if behind_s <= SHIPPED_WITHIN_S else seen_s + behind_s
    by_slurm_s = sum(elapsed)
    rounded = abs(seen_s - by_slurm_s) < _ROUNDED_S * len(parts)
    return seen_s if rounded or by_slurm_s == 0 else by_slurm_s


def _unreported_s(part: RunPart, seen_s: Mapping[Place, float], newest_s: int) -> float:
    """Return the total allocated time of those devices of a part that have no records."""
    if part.allocated_mgpu is None:
        return 0.0
    reported = [place for place in seen_s if place[0] in part.nodes]
    n_unreported = max(0, math.ceil(part.allocated_mgpu / 1000) - len(reported))
    if part.elapsed_s is not None:
        longest_s = max((seen_s[place] for place in reported), default=0.0)
        return n_unreported * (part.elapsed_s if part.elapsed_s > 0 else longest_s)
    age_s = 0 if part.start_s is None else max(0, newest_s - part.start_s)
    has_silent_node = bool(part.nodes - {node for node, _ in reported})
    return 0.0 if has_silent_node and age_s <= SHIPPED_WITHIN_S else float(n_unreported * age_s)


def _suspended_of(of_place: Mapping[Place, Sequence[Record]]) -> dict[Place, float]:
    """Return, for each device, how long the run was suspended, as reported by its node or another node."""
    suspended = {place: _suspended_s(some) for place, some in of_place.items()}
    # A run is suspended on all of its nodes at once.
    most_s = max((seconds for seconds in suspended.values() if seconds is not None), default=0.0)
    return {place: most_s if seconds is None else seconds for place, seconds in suspended.items()}


def _suspended_s(records: Sequence[Record]) -> float | None:
    reported = [record.suspended_s for record in records if record.suspended_s is not None]
    return math.fsum(reported) if reported else None
