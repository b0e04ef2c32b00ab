"""For how long a run held its devices: what coverage is a share of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.database.accounting.steady_clock import allocated_s
from slurm_gpu.wire import Record

SHIPPED_WITHIN_S = 720.0
"""Two shipments of a running job, which come each 300 ± 60 s: as long as a node is not called silent."""
# Start and end are cut to whole seconds: of a run of 0.4 s Slurm may tell none or one.
_ROUNDED_S = 1.0

Place = tuple[str, str]
"""(node, device)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """A run as a row of accounting has it; where it was resized there are several, in order of time.

    `allocated_mgpu` is None where Slurm cannot tell (shards of nodes that are gone), and `elapsed_s` while it
    goes on.
    """

    nodes: frozenset[str]
    allocated_mgpu: int | None
    start_s: int | None
    elapsed_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds over all devices of a run."""

    allocated_s: float
    """For which it held them and was not suspended."""
    sampled_s: float
    """Of these, what was watched."""
    metered_s: float
    """Of these, that of which the energy is known at least: it is measured while a run is suspended too."""


def device_time(records: Sequence[Record], parts: Sequence[RunPart]) -> DeviceTime:
    """For how long a run held its devices, and how much of that was watched.

    `records` are not empty, and double watches are resolved. Of a part that is over Slurm's elapsed time
    counts, or what the node itself saw where that is the same but for Slurm's rounding. While a part goes on
    each device counts up to its newest record, as what was not shipped yet is not lost, as long as the node
    is not two shipments behind the newest. Devices of which nothing was told count too.

    What was watched of a device after its run's end by Slurm, while its epilog ran, makes up for no gap
    before that.
    """
    of_place: dict[Place, list[Record]] = {}
    for record in records:
        of_place.setdefault((record.node, record.device), []).append(record)
    newest_s = max(record.last_s for record in records)
    suspended_s = _suspended_of(of_place)
    seen_s = {place: max(0.0, allocated_s(some) - suspended_s[place]) for place, some in of_place.items()}
    held, sampled, metered = [], [], []
    for place, some in of_place.items():
        behind_s = newest_s - max(record.last_s for record in some)
        place_s = _place_s(seen_s[place], behind_s, _of_node(parts, place[0]))
        after_s = max(0.0, seen_s[place] - place_s)
        held.append(place_s)
        sampled.append(_within(math.fsum(record.sampled_s for record in some) - after_s, place_s))
        energy_s = math.fsum(record.energy_j.seconds for record in some if record.energy_j is not None)
        metered.append(_within(energy_s - after_s - suspended_s[place], place_s))
    untold_s = math.fsum(_untold_s(part, seen_s, newest_s) for part in parts)
    return DeviceTime(
        allocated_s=math.fsum(held) + untold_s, sampled_s=math.fsum(sampled), metered_s=math.fsum(metered)
    )


def _within(seconds: float, most_s: float) -> float:
    return min(max(0.0, seconds), most_s)


def _of_node(parts: Sequence[RunPart], node: str) -> Sequence[RunPart]:
    return [part for part in parts if node in part.nodes]


def _place_s(seen_s: float, behind_s: int, parts: Sequence[RunPart]) -> float:
    """Of one device: by Slurm, or by its node's own clock."""
    elapsed = [part.elapsed_s for part in parts if part.elapsed_s is not None]
    if len(elapsed) < len(parts):
        return seen_s if behind_s <= SHIPPED_WITHIN_S else seen_s + behind_s
    by_slurm_s = sum(elapsed)
    rounded = abs(seen_s - by_slurm_s) < _ROUNDED_S * len(parts)
    return seen_s if rounded or by_slurm_s == 0 else by_slurm_s


def _untold_s(part: RunPart, seen_s: Mapping[Place, float], newest_s: int) -> float:
    """Of those devices of a part of which no record tells."""
    if part.allocated_mgpu is None:
        return 0.0
    told = [place for place in seen_s if place[0] in part.nodes]
    n_untold = max(0, math.ceil(part.allocated_mgpu / 1000) - len(told))
    if part.elapsed_s is not None:
        longest_s = max((seen_s[place] for place in told), default=0.0)
        return n_untold * (part.elapsed_s if part.elapsed_s > 0 else longest_s)
    age_s = 0 if part.start_s is None else max(0, newest_s - part.start_s)
    has_silent_node = bool(part.nodes - {node for node, _ in told})
    return 0.0 if has_silent_node and age_s <= SHIPPED_WITHIN_S else float(n_untold * age_s)


def _suspended_of(of_place: Mapping[Place, Sequence[Record]]) -> dict[Place, float]:
    """For how long the run was suspended, as the node of each device saw it."""
    suspended = {place: _suspended_s(some) for place, some in of_place.items()}
    # A run is suspended everywhere at once.
    most_s = max((seconds for seconds in suspended.values() if seconds is not None), default=0.0)
    return {place: most_s if seconds is None else seconds for place, seconds in suspended.items()}


def _suspended_s(records: Sequence[Record]) -> float | None:
    told = [record.suspended_s for record in records if record.suspended_s is not None]
    return math.fsum(told) if told else None
