"""Compute the derived columns of the table `run` from records, as defined in docs/contracts.md."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from slurm_gpu.database.accounting.allocated_time import SHIPPED_WITHIN_S, RunPart, device_time
from slurm_gpu.database.accounting.steady_clock import WatchSpan, spans
from slurm_gpu.wire import Host, Record, histogram_mean, merge_histograms, merge_means, merge_totals

# first_s and last_s are rounded, so consecutive segments may share a second.
_TOUCHING_S = 1
RESIZING = "RESIZING"
# The statistics of a record that derived columns depend on.
DERIVED_FROM = frozenset({"uptime_s", "util_hist_ms", "mem_used_frac", "energy_j"})
CONTINUED_STATES = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", RESIZING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Columns derived from records; None if not measured."""

    granted_mgpu: int | None
    ugpucore: float | None
    ugpumem: float | None
    coverage: float | None
    energy_j: float | None
    no_process_mgpu_s: int | None
    """Allocated GPU time without a process on the device, in thousandths of a GPU-second.

    Devices that do not report processes are left out.
    """


@dataclass(frozen=True, slots=True)
class DoubleWatch:
    """The records of two segments that observed one device for one run at the same time.

    Only the record `kept` counts.
    """

    kept: Record
    dropped: Record


def resolve_double_watches(records: Iterable[Record]) -> tuple[list[Record], list[DoubleWatch]]:
    """Drop each record of a run that overlaps a record of the same (node, device) with a greater sampled_s.

    Return the kept records, and the pairs of a kept and a dropped record.
    """
    kept: list[Record] = []
    doubled: list[DoubleWatch] = []

    def place(record: Record) -> tuple[str, str]:
        return record.node, record.device

    for _, same in groupby(sorted(records, key=place), key=place):
        some = list(same)
        # Ties are broken by name, because the result must not depend on the order of arrival.
        longest_first = sorted(
            zip(some, spans(some), strict=True), key=lambda item: (-item[0].sampled_s, item[0].segment)
        )
        # The kept spans that are longer than _TOUCHING_S overlap by at most _TOUCHING_S, so both their
        # beginnings and their ends are in ascending order.
        in_time: list[tuple[Record, WatchSpan]] = []
        for record, span in longest_first:
            if span.length_s <= _TOUCHING_S:
                kept.append(record)
                continue
            index = bisect_right(in_time, span.begin_s + _TOUCHING_S, key=lambda item: item[1].end_s)
            rival = in_time[index] if index < len(in_time) else None
            if rival is None or rival[1].begin_s >= span.end_s - _TOUCHING_S:
                kept.append(record)
                in_time.insert(index, (record, span))
            else:
                doubled.append(DoubleWatch(rival[0], record))
    return kept, doubled


def derive(records: Sequence[Record], *, parts: Sequence[RunPart], min_coverage: float) -> Derived:
    """Return the columns derived from a run's accounting rows and from its records without double watches.

    The granted GPUs are the GPUs of the last part. If Slurm does not account for GPUs, or reports no GPU in
    any part although nodes recorded some, the grants that the nodes recorded are used. Without records,
    coverage is None; `coverage_at` decides at the time of the request whether records can still arrive.

    Energy is None if it was measured for less than `min_coverage` of the time, as on a shared GPU, since a
    partial sum would be mistaken for the total.
    """
    last = parts[-1]
    granted_mgpu = last.allocated_mgpu
    if granted_mgpu is None or (records and all(part.allocated_mgpu == 0 for part in parts)):
        granted_mgpu = _granted_by_nodes([record for record in records if record.node in last.nodes])
    if not records:
        return Derived(
            granted_mgpu=granted_mgpu,
            ugpucore=None,
            ugpumem=None,
            coverage=None,
            energy_j=None,
            no_process_mgpu_s=None,
        )
    memory = merge_means(record.mem_used_frac for record in records)
    histogram = merge_histograms(record.util_hist_ms for record in records)
    energy = merge_totals(record.energy_j for record in records)
    time = device_time(records, parts)
    metered = time.allocated_s > 0 and time.metered_s / time.allocated_s >= min_coverage
    return Derived(
        granted_mgpu=granted_mgpu,
        ugpucore=None if histogram is None else histogram_mean(histogram),
        ugpumem=None if memory is None or memory.seconds == 0 else 100 * memory.mean,
        coverage=None if time.allocated_s == 0 else time.sampled_s / time.allocated_s,
        energy_j=energy.total if energy is not None and metered else None,
        no_process_mgpu_s=_no_process_mgpu_s(records),
    )


def coverage_at(
    now_s: float,
    *,
    coverage: float | None,
    granted_mgpu: int | None,
    end_s: int | None,
    elapsed_s: int | None,
) -> float | None:
    """Return `coverage` as of `now_s`: 0 if no record has arrived and none can arrive any more.

    For SHIPPED_WITHIN_S after the end of a run without records, return None, since records may be in transit.
    """
    if coverage is not None or granted_mgpu in (None, 0) or end_s is None or elapsed_s in (None, 0):
        return coverage
    return 0.0 if now_s - end_s > SHIPPED_WITHIN_S else None


def _no_process_mgpu_s(records: Iterable[Record]) -> int | None:
    seconds = [
        record.granted_mgpu * record.no_process_s
        for record in records
        if record.granted_mgpu is not None and record.no_process_s is not None
    ]
    return round(math.fsum(seconds)) if seconds else None


def _granted_by_nodes(records: Sequence[Record]) -> int | None:
    """Return the sum of granted_mgpu over all devices, or None if the grant of a device is unknown."""
    grants: dict[tuple[str, str], int] = {}
    for record in records:
        key = record.node, record.device
        if record.granted_mgpu is not None:
            grants[key] = record.granted_mgpu
    everywhere = {(record.node, record.device) for record in records}
    return sum(grants.values()) if grants and grants.keys() == everywhere else None


def application(hosts: Iterable[Host]) -> tuple[str | None, str | None]:
    """Return the most frequent (app, app_field) in the host records of a run.

    Nodes may report different applications if a script starts several programs. If several pairs are equally
    frequent, the pair with the latest record is returned. If their latest records have the same time, the
    pair that is last in alphabetical order is returned.
    """
    votes: dict[tuple[str, str | None], tuple[int, int]] = {}
    for host in hosts:
        if host.app is not None:
            count, last_s = votes.get((host.app, host.app_field), (0, 0))
            votes[host.app, host.app_field] = count + 1, max(last_s, host.last_s)
    if not votes:
        return None, None
    return max(votes, key=lambda app: (*votes[app], app[0], "" if app[1] is None else app[1]))


def first_submits(runs: Sequence[tuple[int, str]]) -> list[int]:
    """Return, for each row, the first submit time of its chain of requeues and resizes.

    `runs` contains (submit_s, state) of each row of one job, in chronological order.
    """
    firsts: list[int] = []
    for index, (submit_s, _) in enumerate(runs):
        continued = index > 0 and runs[index - 1][1] in CONTINUED_STATES
        firsts.append(firsts[-1] if continued else submit_s)
    return firsts
