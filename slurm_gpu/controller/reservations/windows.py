"""Plan reservations: find suitable nodes, and the time spans in which each node is in use or reserved."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo

from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import Zone
from slurm_gpu.errors import UsageError
from slurm_gpu.placement.calendar import FOREVER, BusySpan, CalendarWindow, Candidate, earliest_window
from slurm_gpu.slurm.client import QueuedJob, SlurmNode
from slurm_gpu.slurm.occupancy import out_of_service
from slurm_gpu.slurm.reservations import SlurmReservation
from slurm_gpu.text.hostlist import compress, expand
from slurm_gpu.text.units import counted
from slurm_gpu.wire.answers.reservation import Reservation, id_of

_MINUTE_S = 60
_HOLDING = frozenset(
    {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING", "RESIZING"}
)


def nodes_with(nodes: Iterable[SlurmNode], partition: str, gpu_type: str | None) -> list[SlurmNode]:
    """Return the nodes of a partition that are in service and have GPUs of this type (None: any type)."""
    return [
        node
        for node in nodes
        if partition in node.partitions and _gpus(node, gpu_type) and not out_of_service(node)
    ]


def nodes_needed(nodes: Collection[SlurmNode], gpus: int, gpu_type: str | None) -> int:
    """Return the minimum number of nodes that provide `gpus` GPUs in equal parts.

    The result exceeds `len(nodes)` if there are too few GPUs.
    """
    having = sorted((_gpus(node, gpu_type) for node in nodes), reverse=True)
    for n_nodes, least in enumerate(having, start=1):
        if least * n_nodes >= gpus:
            return n_nodes
    return max(len(having) + 1, math.ceil(gpus / having[0]))


def plan(
    one: Reservation,
    nodes: Iterable[SlurmNode],
    jobs: Iterable[QueuedJob],
    in_slurm: Iterable[SlurmReservation],
    promised: Iterable[Reservation],
    zones: Mapping[str, Zone],
    now_s: float,
    latest_s: int,
    spare_s: float,
    timezone: ZoneInfo,
    only: Collection[str] | None = None,
) -> CalendarWindow | None:
    """Return the earliest window for a request; None if it would start after `latest_s`.

    The window is `spare_s` longer than requested, so a job of the full duration still fits if it starts late.
    With `only`, the window uses only these nodes. `timezone` is the time zone of slurmctld. Raise UsageError
    if the nodes in service can never satisfy the request.
    """
    per_node = math.ceil(one.gpus / one.n_nodes)
    zone_of = group_by_node("zones", zones)
    found = [
        Candidate(node.name, node.n_gpus, zone_of.get(node.name))
        for node in nodes_with(nodes, one.partition, one.gpu_type)
        if _gpus(node, one.gpu_type) >= per_node and (only is None or node.name in only)
    ]
    if len(found) < one.n_nodes:
        kind = f"{one.gpu_type} GPUs" if one.gpu_type else "GPUs"
        where = f"partition {one.partition} has" if only is None else "the named nodes include"
        raise UsageError(
            f"the reservation needs {counted(one.n_nodes, 'node')} with {per_node} {kind} each, but "
            f"{where} only {len(found)} in service"
        )
    now = math.ceil(now_s)
    duration_s = one.duration_s + math.ceil(spare_s)
    earliest_s = _up_to_minute(max(one.earliest_s, now + _MINUTE_S))
    again_until_s = latest_s + duration_s
    taken = [
        *_by_jobs(jobs, now),
        *_by_slurm(in_slurm, again_until_s, timezone),
        *_by_promises(promised, one.id),
    ]
    return earliest_window(found, taken, one.n_nodes, duration_s, earliest_s, latest_s)


def without(
    row: Reservation,
    lost: Collection[str],
    nodes: Iterable[SlurmNode],
    jobs: Iterable[QueuedJob],
    in_slurm: Iterable[SlurmReservation],
    promised: Iterable[Reservation],
    zones: Mapping[str, Zone],
    now_s: float,
    timezone: ZoneInfo,
) -> str | None:
    """Return the reservation's nodes, with `lost` replaced by nodes that are free until the end.

    Nodes in the zones of the reservation's other nodes are preferred. Return None if too few nodes are free.
    """
    assert row.start_s is not None
    assert row.end_s is not None
    mine, zone_of = set(expand(row.nodes or "")), group_by_node("zones", zones)
    per_node = math.ceil(row.gpus / row.n_nodes)
    kept = mine.difference(lost)
    now = math.ceil(now_s)
    start_s = max(row.start_s, now)
    taken = [
        *_by_jobs(jobs, now),
        *_by_slurm((one for one in in_slurm if one.name != row.name), row.end_s, timezone),
        *_by_promises(promised, row.id),
    ]
    found = [
        Candidate(node.name, node.n_gpus, zone_of.get(node.name))
        for node in nodes_with(nodes, row.partition, row.gpu_type)
        if _gpus(node, row.gpu_type) >= per_node and node.name not in mine
    ]
    near = {zone_of[name] for name in kept if name in zone_of}
    for candidates in ([one for one in found if one.zone in near], found):
        window = earliest_window(candidates, taken, len(lost), row.end_s - start_s, start_s, start_s)
        if window is not None:
            return compress([*kept, *window.nodes])
    return None


def _by_jobs(jobs: Iterable[QueuedJob], now_s: int) -> Iterator[BusySpan]:
    """Yield the spans of jobs until their time limits, plus a minute for the epilog, in whole minutes."""
    for job in jobs:
        if job.state in _HOLDING:
            ended_s = FOREVER if job.end_s is None else _up_to_minute(max(job.end_s, now_s) + _MINUTE_S)
            yield from (BusySpan(node, now_s, ended_s) for node in job.nodes)


def _by_slurm(found: Iterable[SlurmReservation], until_s: int, timezone: ZoneInfo) -> Iterator[BusySpan]:
    """Yield the spans of Slurm's reservations, including repetitions."""
    for one in found:
        for start_s, end_s in one.spans(until_s, timezone):
            yield from (BusySpan(node, start_s, end_s) for node in expand(one.nodes))


def _by_promises(promised: Iterable[Reservation], but_for: int) -> Iterator[BusySpan]:
    for row in promised:
        if row.id != but_for and row.state.is_promised and row.start_s is not None and row.end_s is not None:
            yield from (BusySpan(node, row.start_s, row.end_s) for node in expand(row.nodes or ""))


def is_reserved(
    nodes: Collection[str],
    from_s: float,
    until_s: float,
    in_slurm: Iterable[SlurmReservation],
    promised: Iterable[Reservation],
    but_for: Reservation,
    timezone: ZoneInfo,
) -> bool:
    """Return whether another reservation, in Slurm or approved, uses any of the nodes in this period."""
    mine, until = set(nodes), int(min(until_s, FOREVER))
    others = [one for one in in_slurm if one.name != but_for.name and not mine.isdisjoint(expand(one.nodes))]
    taken = itertools.chain(_by_slurm(others, until, timezone), _by_promises(promised, but_for.id))
    return any(one.node in mine and one.from_s < until and from_s < one.until_s for one in taken)


def sites_own(found: Sequence[SlurmReservation], rows: Iterable[Reservation]) -> list[SlurmReservation]:
    """Return Slurm's reservations that are not in the table."""
    known = {row.id for row in rows}
    return [one for one in found if id_of(one.name) not in known]


def _gpus(node: SlurmNode, gpu_type: str | None) -> int:
    if gpu_type is None:
        return node.n_gpus
    return sum(count for kind, count in node.gpus.items() if kind.lower() == gpu_type.lower())


def _up_to_minute(at_s: int) -> int:
    return -(-at_s // _MINUTE_S) * _MINUTE_S
