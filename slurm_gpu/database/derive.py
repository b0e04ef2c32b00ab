"""What a run's records say about it: the derived columns of `run`, as docs/contracts.md defines them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from slurm_gpu.records import Host, Record, histogram_mean, merge_histograms, merge_means, merge_totals

# first_s and last_s are rounded, so segments that follow each other may share a second.
_TOUCHING_S = 1
SHIPPED_WITHIN_S = 720.0
"""Two shipments of a running job, which come each 300 ± 60 s: as long as a node is not called silent."""
CONTINUED_STATES = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Columns that follow from records; None is a gap."""

    granted_mgpu: int | None
    ugpucore: float | None
    ugpumem: float | None
    coverage: float | None
    energy_j: float | None


@dataclass(frozen=True, slots=True)
class DoubleWatch:
    """Two segments that watched one device for one run at the same time; only `kept` counts."""

    kept: Record
    dropped: Record


def resolve_double_watches(records: Iterable[Record]) -> tuple[list[Record], list[DoubleWatch]]:
    """One run's records without those that overlap one with more sampled_s on the same (node, device)."""
    kept: list[Record] = []
    doubled: list[DoubleWatch] = []

    def place(record: Record) -> tuple[str, str]:
        return record.node, record.device

    for _, same in groupby(sorted(records, key=place), key=place):
        # Ties go by name, so that the outcome does not depend on the order of arrival.
        longest_first = sorted(same, key=lambda record: (-record.sampled_s, record.segment))
        chosen: list[Record] = []
        for record in longest_first:
            rival = next((other for other in chosen if _overlap(other, record)), None)
            if rival is None:
                chosen.append(record)
            else:
                doubled.append(DoubleWatch(rival, record))
        kept.extend(chosen)
    return kept, doubled


def _overlap(a: Record, b: Record) -> bool:
    return min(a.last_s, b.last_s) - max(a.first_s, b.first_s) > _TOUCHING_S


def derive(
    records: Sequence[Record],
    *,
    allocated_mgpu: int | None,
    start_s: int | None,
    elapsed_s: int | None,
    min_coverage: float,
) -> Derived:
    """The derived columns from one run's records, double watches resolved.

    `allocated_mgpu` is what Slurm's accounting tells, None where it cannot (shards of nodes that are gone);
    0 means that no GPU was granted, and then there is nothing to derive. `elapsed_s` is None while the run
    goes on: then coverage counts up to the newest record, as what was not shipped yet is not lost. Without
    records it is None: whether any can still come is a matter of the time at which somebody asks
    (coverage_at).
    Energy is a sum: that of less than `min_coverage` of the time, as of a GPU shared meanwhile, would
    pass for the whole, and is a gap.
    """
    granted_mgpu = allocated_mgpu if allocated_mgpu is not None else _granted_by_nodes(records)
    if granted_mgpu == 0 or not records:
        return Derived(granted_mgpu=granted_mgpu, ugpucore=None, ugpumem=None, coverage=None, energy_j=None)
    if elapsed_s is None and start_s is not None:
        elapsed_s = max(record.last_s for record in records) - start_s - round(_suspended_s(records))
    memory = merge_means(record.mem_used_frac for record in records)
    histogram = merge_histograms(record.util_hist_ms for record in records)
    energy = merge_totals(record.energy_j for record in records)
    devices = len({(record.node, record.device) for record in records})
    if granted_mgpu is not None:
        devices = max(devices, math.ceil(granted_mgpu / 1000))
    sampled_s = math.fsum(record.sampled_s for record in records)
    metered = None if energy is None else _coverage(energy.seconds, records, devices, elapsed_s)
    return Derived(
        granted_mgpu=granted_mgpu,
        ugpucore=None if histogram is None else histogram_mean(histogram),
        ugpumem=None if memory is None or memory.seconds == 0 else 100 * memory.mean,
        coverage=_coverage(sampled_s, records, devices, elapsed_s),
        energy_j=None if energy is None or metered is None or metered < min_coverage else energy.total,
    )


def coverage_at(
    now_s: float, *, coverage: float | None, granted_mgpu: int | None, end_s: int | None, elapsed_s: int
) -> float | None:
    """The derived `coverage` as it is to be read at `now_s`: 0 where nothing came, and nothing will any more.

    A gap for SHIPPED_WITHIN_S from the end of a run, while its records may be under way.
    """
    if coverage is not None or granted_mgpu in (None, 0) or end_s is None or elapsed_s <= 0:
        return coverage
    return 0.0 if now_s - end_s > SHIPPED_WITHIN_S else None


def _suspended_s(records: Sequence[Record]) -> float:
    """For how long the run was suspended, as its nodes saw it: Slurm's elapsed time leaves that out."""
    told: dict[tuple[str, str], float] = defaultdict(float)
    for record in records:
        told[record.node, record.device] += record.suspended_s if record.suspended_s is not None else 0.0
    return max(told.values())


def _coverage(seconds: float, records: Sequence[Record], devices: int, elapsed_s: int | None) -> float | None:
    """Σ seconds measured / (devices × elapsed_s), at most 1: hooks watch a little longer than Slurm counts.

    Slurm counts whole seconds: where it says 0, the longest time that a node saw a device held stands for it.
    """
    if elapsed_s is None or elapsed_s <= 0:
        elapsed: float = max(record.held_s for record in records)
    else:
        elapsed = elapsed_s
    if elapsed == 0 or devices == 0:
        return None
    return min(1.0, seconds / (devices * elapsed))


def _granted_by_nodes(records: Sequence[Record]) -> int | None:
    """Σ granted_mgpu over devices; None unless every device knows its own."""
    grants: dict[tuple[str, str], int] = {}
    for record in records:
        key = record.node, record.device
        if record.granted_mgpu is not None:
            grants[key] = record.granted_mgpu
    everywhere = {(record.node, record.device) for record in records}
    return sum(grants.values()) if grants and grants.keys() == everywhere else None


def application(hosts: Iterable[Host]) -> tuple[str | None, str | None]:
    """(app, its field) of one run: what most of its host records tell, those that tell none not counted.

    Of a script that starts several programs, the nodes may disagree: ties go to the later record, then by
    name.
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
    """The first submit of each run's chain of requeues; `runs` are one job's (submit_s, state) in order."""
    firsts: list[int] = []
    for index, (submit_s, _) in enumerate(runs):
        continued = index > 0 and runs[index - 1][1] in CONTINUED_STATES
        firsts.append(firsts[-1] if continued else submit_s)
    return firsts
