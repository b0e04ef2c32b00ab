"""Check at the end of bench/soak.py that each job is recorded once, for its whole allocation, correctly."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Any, NamedTuple

from lab.cluster import Lab
from lab.hooks import AllocatedInterval
from lab.truth import GpuShare
from slurm_gpu.client.database_client import DatabaseClient, Run
from slurm_gpu.config.site import load_config
from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.accounting.steady_clock import allocated_s
from slurm_gpu.wire import Record, histogram_mean

WITHIN_S = 300.0
COVERED = 0.999
MOST_POINTS = 1.0
"""The allowed difference of the mean of a completely observed run."""
STAMPED_WITHIN_S = 0.05
"""The uncertainty of timestamps: /proc/uptime, which the hooks read, has a resolution of 10 ms."""

BEFORE_S, AFTER_S = 30.0, 10.0
"""The seconds before and after a run for which faults are printed."""

History = Sequence[tuple[float, str]]
"""Times (epoch seconds) and kinds of faults."""


Place = tuple[str, str]
"""(node, UUID)."""


class GpuAllocation(NamedTuple):
    """The allocation of a GPU to a job, with times in epoch seconds."""

    job: int
    start_s: float
    end_s: float


def accounted(lab: Lab, jobs: Mapping[int, int]) -> dict[int, list[frozenset[str]]]:
    """Return the nodes of each run of each started job in Slurm's accounting."""
    shown = lab.output(
        ["sacct", "-aXnPD", "-S", "now-1days", "-E", "now+1days", "-o", "JobIDRaw,Start,NodeList"]
    )
    found: dict[int, list[frozenset[str]]] = defaultdict(list)
    for line in shown.splitlines():
        job, start, nodes = line.split("|")
        if int(job) in jobs and start[:1].isdigit():
            found[int(job)].append(node_set(nodes))
    return found


def judge(lab: Lab, jobs: Mapping[int, int], history: History = ()) -> dict[str, Any]:
    """Compare records with Slurm's accounting, the hooks' timestamps and the true use of the GPUs.

    The expected utilisation is that of the whole GPU if the GPU was allocated to the run alone (`true_pct`).
    A run that differs is printed to stderr with both values and the events of `history` around its time,
    because the lab no longer exists later.

    A killed slurmctld continues from a state saved seconds earlier, without the jobs that started since. It
    may start such a job again on another node, or reuse its ID; the right result is then undefined. A job
    that slurmctld forgot before accounting recorded its start remains pending there: the job is counted, but
    is not a run.
    """
    expected = accounted(lab, jobs)
    stamped = {job: lab.intervals(job) for job in jobs}
    allocations = _allocations(lab, stamped)
    with_strangers: list[int] = []
    forgotten: list[int] = []
    never_begun: list[int] = []
    lost: list[int] = []
    twice: list[int] = []
    points: list[float] = []
    over_limit: list[int] = []
    off_s: dict[tuple[int, Place], float] = {}
    unlike: list[int] = []
    client = DatabaseClient(load_config(lab.layout.site_file))
    until = time.monotonic() + WITHIN_S
    for job in sorted(jobs):
        nodes = frozenset[str]().union(*expected.get(job, ()))
        stamps = _by_place(lab, [one for one in stamped[job] if one.node in nodes])
        if any(one.positions and one.node not in nodes for one in stamped[job]):
            forgotten.append(job)
            continue
        runs, n_pending = runs_of(client, job, len(stamps), until)
        n_expected = len(expected.get(job, ()))
        if n_expected and n_pending:
            never_begun.append(job)
        if forgotten_after_start(runs):
            forgotten.append(job)
        wrong = record_error(n_expected, stamps.keys(), runs)
        if wrong is not None:
            {RecordError.LOST: lost, RecordError.TWICE: twice}[wrong].append(job)
            _print_runs(job, n_expected, stamps, runs, history)
        elif len(runs) == 1:
            shares = lab.truth(job)
            own = true_pct(shares, [False] * len(shares))
            true = true_pct(shares, [is_exclusive(job, share, allocations) for share in shares])
            if true is not None and own is not None and abs(true - own) > MOST_POINTS:
                with_strangers.append(job)
            for off, allowed in _off_by(runs[0], shares, true):
                points.append(off)
                if off > allowed:
                    over_limit.append(job)
                    _print_difference(job, off, runs[0], shares, allocations)
                    _print_history(history, stamps)
            for place, off, allowed_s in _off_s(runs[0], stamps):
                off_s[job, place] = off
                if abs(off) > allowed_s:
                    unlike.append(job)
                    print(f"job {job} on {place}: {off:+.3f} s; stamps {stamps[place]}", file=sys.stderr)
                    _print_records(runs[0], place)
                    _print_history(history, stamps)
    client.close()
    return {
        "jobs": len(jobs),
        "in_accounting": len(expected),
        "forgotten_by_slurmctld": forgotten,
        "forgotten_before_begun": never_begun,
        "lost": lost,
        "twice": twice,
        "allocations_compared": len(off_s),
        "allocations_worst_s": round(max(map(abs, off_s.values()), default=0.0), 3),
        "allocated_otherwise": sorted(set(unlike)),
        "compared": len(points),
        "worst_points": round(max(points, default=0.0), 2),
        "compared_with_all_that_the_gpu_did": with_strangers,
        "over_limit": over_limit,
    }


class RecordError(Enum):
    """The possible errors of the records of a job."""

    LOST = "lost"
    TWICE = "twice"


def record_error(n_expected: int, places: Set[Place], runs: Sequence[Run]) -> RecordError | None:
    """Compare the runs of Slurm's accounting (0: unknown) and the hooks' stamps with the records."""
    recorded = {(record.node, record.device) for run in runs for record in run.devices or ()}
    n_recorded = len(runs) - len(forgotten_after_start(runs))
    if n_expected and n_recorded != n_expected:
        return RecordError.LOST if n_recorded < n_expected else RecordError.TWICE
    if places and recorded != places:
        return RecordError.LOST if recorded < places else RecordError.TWICE
    return None


def forgotten_after_start(runs: Sequence[Run]) -> Sequence[Run]:
    """Return runs that nodes recorded but accounting lacks, because another job got their number."""
    newest_s = max((run.submit_s for run in runs), default=0)
    return [run for run in runs if run.state == "PENDING" and run.submit_s < newest_s]


def _print_runs(
    job: int,
    n_expected: int,
    stamps: Mapping[Place, Sequence[AllocatedInterval]],
    runs: Sequence[Run],
    history: History,
) -> None:
    """Print the runs of a job that was lost or recorded twice."""
    print(f"job {job}: {len(runs)} runs of {n_expected}; stamps {dict(stamps)}", file=sys.stderr)
    for run in runs:
        print(f"  {run.state} on {run.nodes}, {run.start_s} to {run.end_s}", file=sys.stderr)
        _print_records(run)
    _print_history(history, stamps)


def _print_records(run: Run, of_place: Place | None = None) -> None:
    """Print all records of a run, or those of one device."""
    for record in run.devices or ():
        if of_place in (None, (record.node, record.device)):
            device, util = record.device_util_pct, histogram_mean(record.util_hist_ms or {})
            observed = f"prolog {record.prolog_s}, {record.first_s} to {record.last_s}"
            allocated = f"allocated {record.allocated_s} s"
            since = f"at uptime {record.uptime_s}, final {record.final}, seq {record.seq}"
            did = f"sampled {record.sampled_s} s, {util} % of its own, {device} by all"
            print(
                f"  {record.node} {record.device} {record.segment}: {observed}, {allocated}, {since}, {did}",
                file=sys.stderr,
            )


def _print_difference(
    job: int,
    off: float,
    run: Run,
    shares: Sequence[GpuShare],
    allocations: Mapping[str, Sequence[GpuAllocation]],
) -> None:
    """Print both sides of a utilisation that differs, by GPU, with its time."""
    print(f"job {job}: {run.ugpucore:.2f} %, off by {off:.2f} points", file=sys.stderr)
    for share in shares:
        when = f"{share.start_s:.2f} to {share.end_s:.2f} (unsure {share.unsure_s:.2f} s)"
        did = f"{share.usage.util_pct:.2f} % by {share.usage.processes} processes"
        by_all = f"{share.usage.device_util_pct:.2f} % by all"
        how = "alone" if is_exclusive(job, share, allocations) else "shared"
        print(f"  {share.gpu.uuid} {when}, {how}: {did}, {by_all}", file=sys.stderr)
    _print_records(run)


def _print_history(history: History, stamps: Mapping[Place, Sequence[AllocatedInterval]]) -> None:
    """Print the faults during a job's allocation, and shortly before and after."""
    stamped = [one for some in stamps.values() for one in some]
    begin_s = min((one.start_s for one in stamped), default=0.0)
    end_s = max((one.start_s if one.end_s is None else one.end_s for one in stamped), default=0.0)
    for at_s, what in history:
        if begin_s - BEFORE_S <= at_s <= end_s + AFTER_S:
            print(f"  {at_s - begin_s:+8.2f} s: {what}", file=sys.stderr)


def _by_place(lab: Lab, intervals: Sequence[AllocatedInterval]) -> dict[Place, list[AllocatedInterval]]:
    """Return the allocations of each GPU, by the timestamps of the lab's own hooks."""
    places: dict[Place, list[AllocatedInterval]] = defaultdict(list)
    for one in intervals:
        for position in one.positions:
            places[one.node, lab.nodes[one.node].at_position(position).uuid].append(one)
    return places


def runs_of(client: DatabaseClient, job: int, n_devices: int, until: float) -> tuple[Sequence[Run], int]:
    """Return the started runs as slurm-gpudbd shows them, and the number of others.

    Waits for the last record of each device, for a limited time.
    """
    while True:
        shown = client.run(str(job))
        runs = [run for run in shown if run.start_s is not None]
        records = [record for run in runs for record in run.devices or ()]
        final = {(record.node, record.device) for record in records if record.final}
        # slurmctld may never report the end of an earlier job with that id.
        newest = max(runs, key=lambda run: run.submit_s, default=None)
        over = newest is not None and newest.end_s is not None
        if (over and len(final) == n_devices) or time.monotonic() > until:
            return runs, len(shown) - len(runs)
        time.sleep(2)


def _off_s(
    run: Run, stamps: Mapping[Place, Sequence[AllocatedInterval]]
) -> Iterator[tuple[Place, float, float]]:
    """Return how much each device's allocated seconds differ from the stamps, and the allowed difference."""
    places: dict[Place, list[Record]] = defaultdict(list)
    kept, _ = resolve_double_watches(run.devices or ())
    for record in kept:
        places[record.node, record.device].append(record)
    for place, records in places.items():
        stamped = [(one.start_s, one.end_s, one.unsure_s) for one in stamps.get(place, ())]
        seconds = [end_s - start_s for start_s, end_s, _ in stamped if end_s is not None]
        if len(seconds) == len(stamped) == 1:
            yield place, allocated_s(records) - seconds[0], STAMPED_WITHIN_S + stamped[0][2]


def _allocations(
    lab: Lab, stamped: Mapping[int, Sequence[AllocatedInterval]]
) -> dict[str, list[GpuAllocation]]:
    """Return the allocations of each GPU by UUID."""
    found: dict[str, list[GpuAllocation]] = defaultdict(list)
    for job, intervals in stamped.items():
        for one in intervals:
            for position in one.positions:
                end_s = float("inf") if one.end_s is None else one.end_s
                uuid = lab.nodes[one.node].at_position(position).uuid
                found[uuid].append(GpuAllocation(job, one.start_s, end_s + one.unsure_s))
    return found


def is_exclusive(job: int, share: GpuShare, allocations: Mapping[str, Sequence[GpuAllocation]]) -> bool:
    """Return whether the GPU was allocated to no other job in that time."""
    return not any(
        one.job != job and one.start_s < share.end_s and one.end_s > share.start_s
        for one in allocations.get(share.gpu.uuid, ())
    )


def true_pct(shares: Sequence[GpuShare], alone: Sequence[bool]) -> float | None:
    """Return the expected uGPUcore in percent; None without GPUs.

    As defined for `util_hist_ms` in docs/metrics.md, only the job's own processes count on a shared GPU. If a
    GPU is allocated to the job `alone`, all processes count, including a process that outlived another job's
    slurmstepd.
    """
    seconds = [share.end_s - share.start_s for share in shares]
    if sum(seconds) <= 0:
        return None
    did = [
        share.usage.device_util_pct if is_alone else share.usage.util_pct
        for share, is_alone in zip(shares, alone, strict=True)
    ]
    return sum(pct * length_s for pct, length_s in zip(did, seconds, strict=True)) / sum(seconds)


def _off_by(run: Run, shares: Sequence[GpuShare], true: float | None) -> Iterator[tuple[float, float]]:
    """Return the error of a completely observed run in percentage points, and the allowed error.

    The run starts and ends at an unknown time within the run time of our hooks (`unsure_s`).
    """
    seconds = sum(share.end_s - share.start_s for share in shares)
    if run.coverage is None or run.coverage < COVERED or run.ugpucore is None:
        return
    if true is None or seconds < 1:
        return
    unsure_s = sum(share.unsure_s for share in shares)
    yield abs(run.ugpucore - true), MOST_POINTS + 100 * unsure_s / seconds
