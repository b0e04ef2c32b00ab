"""Encode each metric as one octet per square, for all viewers or for one user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_gpu.monitor.cluster.allocation import SquareAllocation
from slurm_gpu.monitor.cluster.layout import NodeSquares, SquareLayout
from slurm_gpu.monitor.cluster.metrics import (
    ALLOCATED,
    FREE,
    GAP,
    LIVE,
    OUT_OF_SERVICE,
    SHARED,
    STATE,
    UNWATCHED,
)
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterNode
from slurm_gpu.wire.answers.running import RunningUse

# A user's name, and the uid if Slurm reports it.
Owner = tuple[str, int | None]


def live_frames(layout: SquareLayout, live: Mapping[str, Live]) -> dict[str, bytes]:
    """Return the frames of live metrics, with one octet per square."""
    values = _by_square(layout, live)
    frames = {}
    for name, read in LIVE.items():
        metric = layout.metrics[name]
        octets = bytearray([GAP]) * layout.n_squares
        for square, value in values:
            octets[square] = metric.octet(read(value))
        frames[name] = bytes(octets)
    frames["clock"] = _clock(layout, values)
    return frames


def state_frame(
    layout: SquareLayout, nodes: Iterable[ClusterNode], live: Mapping[str, Live], allocation: SquareAllocation
) -> bytes:
    """Return the state of each square: allocated or shared, or else out of service, unwatched or free."""
    octets = bytearray(layout.n_squares)
    by_name = {node.node: node for node in nodes}
    for place in layout.nodes:
        node, values = by_name.get(place.node), live.get(place.node)
        out = node is None or not node.in_service
        for at, item in enumerate(place.squares):
            unwatched = values is None or item.uuid not in values.devices
            octets[place.first + at] = OUT_OF_SERVICE if out else UNWATCHED if unwatched else FREE
        for surplus in _surplus(place, node, allocation):
            octets[surplus] = OUT_OF_SERVICE
    for square in allocation.jobs_at:
        octets[square] = SHARED if allocation.is_shared(square) else ALLOCATED
    return bytes(octets)


def _surplus(place: NodeSquares, node: ClusterNode | None, allocation: SquareAllocation) -> list[int]:
    """Return one square for each GPU of the node that is unknown to Slurm.

    No job can use these GPUs. They cannot be identified, so this function returns the last squares, in
    Slurm's likely order, that have no job.
    """
    n_more = 0 if node is None else len(place.squares) - sum(node.gpus.values())
    if n_more <= 0:
        return []
    left = [place.first + at for at in place.by_position]
    return [square for square in left if square not in allocation.jobs_at][-n_more:]


def job_frames(
    layout: SquareLayout, allocation: SquareAllocation, running: Mapping[int, RunningUse]
) -> dict[str, bytes]:
    """Return frames with p25 and p95 of each job on the squares that the job does not share."""
    frames = {
        name: bytearray([GAP]) * layout.n_squares for name in ("p25_util", "p95_util", "p25_mem", "p95_mem")
    }
    for job, squares in allocation.whole.items():
        use = running.get(job)
        if use is None:
            continue
        values = {
            "p25_util": use.util_p25,
            "p95_util": use.util_p95,
            "p25_mem": use.mem_p25,
            "p95_mem": use.mem_p95,
        }
        for name, value in values.items():
            octet = layout.metrics[name].octet(value)
            for square in squares:
                frames[name][square] = octet
    return {name: bytes(octets) for name, octets in frames.items()}


def own_squares(allocation: SquareAllocation, owner_of: Mapping[int, Owner]) -> dict[Owner, list[int]]:
    """Return, by user, the squares that only this user's jobs use."""
    found: dict[Owner, list[int]] = {}
    for square, jobs in allocation.jobs_at.items():
        owners = {owner_of.get(job) for job in jobs}
        if len(owners) == 1 and (owner := owners.pop()) is not None:
            found.setdefault(owner, []).append(square)
    return found


def only(octets: bytes, squares: Iterable[int]) -> bytes:
    """Return a copy of the frame in which only these squares have a value."""
    shown = bytearray([GAP]) * len(octets)
    for square in squares:
        shown[square] = octets[square]
    return bytes(shown)


def is_for_all(metric: str) -> bool:
    """Return whether all users may see the metric on every square. Only occupancy is public."""
    return metric == STATE.name


def _by_square(layout: SquareLayout, live: Mapping[str, Live]) -> list[tuple[int, LiveDevice]]:
    return [
        (square, value)
        for node in live.values()
        for uuid, value in node.devices.items()
        if (square := layout.square_of.get(uuid)) is not None
    ]


def _clock(layout: SquareLayout, values: list[tuple[int, LiveDevice]]) -> bytes:
    """Return clocks in % of the device's maximum; if unknown, in % of its type's highest current clock."""
    greatest: dict[str, float] = {}
    for square, value in values:
        if value.sm_clock_mhz is not None:
            kind = layout.types[square]
            greatest[kind] = max(value.sm_clock_mhz, greatest.get(kind, 0.0))
    octets = bytearray([GAP]) * layout.n_squares
    metric = layout.metrics["clock"]
    for square, value in values:
        top = layout.clock_max_mhz[square] or greatest.get(layout.types[square])
        if value.sm_clock_mhz is not None and top:
            octets[square] = metric.octet(100 * value.sm_clock_mhz / top)
    return bytes(octets)
