"""Compute the host use of a run on one node from its host records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.steady_clock import spans
from slurm_gpu.wire import Host, Record

# first_s and last_s are rounded, so consecutive watches may share a second.
_TOUCHING_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """The host use of a run on one node; None marks a gap.

    `watched_s` is the time for which the processes of the run were sampled.
    """

    node: str
    watched_s: float
    cpu_s: float | None
    rss_max_mib: float | None
    read_bytes: float | None
    write_bytes: float | None
    net_rx_bytes: float | None
    net_tx_bytes: float | None
    ib_rx_bytes: float | None
    ib_tx_bytes: float | None

    @property
    def cpus_busy(self) -> float | None:
        """Return the mean number of busy CPUs."""
        return self.cpu_s / self.watched_s if self.cpu_s is not None and self.watched_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def host_uses(hosts: Iterable[Host], records: Iterable[Record] = ()) -> list[HostUse]:
    """Combine records per node; if two segments overlap, use only the longer segment.

    `records` are the GPU records of the same segments. GPU records show overlaps more reliably: the times in
    host records come from the wall clock, which may have been set.
    """
    kept, doubled = resolve_double_watches(records)
    counted = {record.segment for record in kept}
    dropped = {item.dropped.segment for item in doubled} - counted
    by_node: dict[str, list[Host]] = {}
    for host in hosts:
        if host.segment not in dropped:
            by_node.setdefault(host.node, []).append(host)
    return [_merged(node, _apart(watches, counted)) for node, watches in sorted(by_node.items())]


def _apart(watches: Sequence[Host], counted: Set[str]) -> list[Host]:
    """Return the records of the segments in `counted`, and the other records that do not overlap with them.

    Overlaps within one boot are computed from the monotonic clock, since the wall clock may have been set.
    """
    span_of = {host.segment: span for host, span in zip(watches, spans(watches), strict=True)}
    kept = [host for host in watches if host.segment in counted]
    others = [host for host in watches if host.segment not in counted]
    for host in sorted(others, key=lambda host: (-span_of[host.segment].length_s, host.segment)):
        span = span_of[host.segment]
        if all(span.overlap_s(span_of[other.segment]) <= _TOUCHING_S for other in kept):
            kept.append(host)
    return kept


def _merged(node: str, watches: Sequence[Host]) -> HostUse:
    def over(name: str, merge: Callable[[list[float]], float] = math.fsum) -> float | None:
        measured = [value for host in watches if (value := getattr(host, name)) is not None]
        return merge(measured) if measured else None

    counters = (
        *("cpu_s", "read_bytes", "write_bytes"),
        *("net_rx_bytes", "net_tx_bytes", "ib_rx_bytes", "ib_tx_bytes"),
    )
    return HostUse(
        node=node,
        watched_s=float(sum(host.last_s - host.first_s for host in watches)),
        rss_max_mib=over("rss_max_mib", max),
        **{name: over(name) for name in counters},
    )
