"""Combine the accounting rows of a resized run; all rows but the last have the state RESIZING.

After a resize, Slurm 22.05 writes a row whose submission time is the time of the resize, and whose start time
is often the start of the whole run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, not_, or_, select

from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.accounting.matching import node_set
from slurm_gpu.database.storage.schema import run
from slurm_gpu.text.hostlist import compress

# A row of the table `run`.
Row = Mapping[Any, Any]


def in_time(row: Row) -> tuple[bool, int, int]:
    """Return the key that sorts a job's rows by time; no two rows have the same submission time."""
    return row["start_s"] is None, began_s(row), row["submit_s"]


def runs_of(rows: Iterable[Row]) -> list[list[Row]]:
    """Group the rows of one (cluster, job ID) by run, in chronological order.

    Runs that have not started come last.
    """
    runs: list[list[Row]] = []
    for row in sorted(rows, key=in_time):
        if runs and runs[-1][-1]["state"] == RESIZING:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def is_last_part() -> ColumnElement[bool]:
    """Return a condition that excludes rows after which the run continued on other nodes."""
    after = run.alias()
    same = and_(after.c.cluster == run.c.cluster, after.c.job_id == run.c.job_id)
    continues = exists().where(same, after.c.submit_s > run.c.submit_s)
    return not_(and_(run.c.state == RESIZING, continues))


def submitted_before(connection: Connection, until_s: int) -> ColumnElement[bool]:
    """Return a condition for the last parts of runs whose first part was submitted before `until_s`."""
    across = (run.c.state == RESIZING, run.c.submit_s < until_s, run.c.end_s >= until_s)
    query = select(run.c.cluster, run.c.job_id).where(*across)
    jobs = {(cluster, job_id) for cluster, job_id in connection.execute(query)}
    resized_since: set[int] = set()
    for parts in _runs(connection, jobs):
        last = parts[-1]
        if parts[0]["submit_s"] < until_s <= last["submit_s"]:
            resized_since.add(last["run_id"])
    before = run.c.submit_s < until_s
    return or_(before, run.c.run_id.in_(resized_since)) if resized_since else before


def find_parts(connection: Connection, rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return all rows of the runs whose last rows are `rows`, by the run_id of the last row.

    The rows of each run are in chronological order.
    """
    parts_of: dict[int, list[Row]] = {row["run_id"]: [row] for row in rows}
    jobs = {(row["cluster"], row["job_id"]) for row in rows}
    ids = {job_id for _, job_id in jobs}
    resized = select(run.c.job_id).where(run.c.job_id.in_(ids), run.c.state == RESIZING).distinct()
    some = set(connection.execute(resized).scalars())
    for parts in _runs(connection, {job for job in jobs if job[1] in some}):
        if parts[-1]["run_id"] in parts_of:
            parts_of[parts[-1]["run_id"]] = parts
    return parts_of


def _runs(connection: Connection, jobs: Set[tuple[str, int]]) -> Iterator[list[Row]]:
    """Yield all runs of these jobs as lists of their parts."""
    rows_of: dict[tuple[str, int], list[Row]] = defaultdict(list)
    if jobs:
        ids = {job_id for _, job_id in jobs}
        for row in connection.execute(select(run).where(run.c.job_id.in_(ids))).mappings():
            rows_of[row["cluster"], row["job_id"]].append(row)
    for job in jobs & rows_of.keys():
        yield from runs_of(rows_of[job])


def whole(parts: Sequence[Row], now_s: float) -> Row:
    """Combine parts into one run: the last part with the start of the first part and the nodes of all parts.

    The number of GPUs is the mean over the run's time, which makes the GPU-hours correct.
    """
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    seconds = [part_s(part, elapsed_s(part, now_s)) for part in parts]
    nodes = frozenset[str]().union(*(node_set(part["nodes"]) for part in parts))
    return {
        **last,
        **{name: first[name] for name in ("submit_s", "eligible_s", "start_s")},
        "elapsed_s": _sum(seconds),
        "suspended_s": _sum([part["suspended_s"] for part in parts]),
        "nodes": compress(nodes),
        "n_nodes": len(nodes),
        "granted_mgpu": _mean_mgpu([part["granted_mgpu"] for part in parts], seconds),
    }


def _sum(amounts: Sequence[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def part_s(row: Row, seconds: int | None) -> int | None:
    """Return the seconds of a row's elapsed time that belong to its own part, not to earlier parts."""
    if seconds is None:
        return None
    before_s = 0 if row["start_s"] is None else began_s(row) - int(row["start_s"])
    return max(0, seconds - before_s)


def elapsed_s(row: Row, now_s: float) -> int | None:
    """Return Slurm's elapsed time or, for a running job, the time up to `now_s`; None if unknown."""
    if row["start_s"] is None or row["end_s"] is not None or row["state"] != "RUNNING":
        return None if row["elapsed_s"] is None else int(row["elapsed_s"])
    if row["suspended_s"] is None:
        return None
    return max(0, int(now_s - row["start_s"] - row["suspended_s"]))


def began_s(row: Row) -> int:
    """Return the time at which a part began, or at which it was submitted if it has not begun."""
    start_s: int = row["submit_s"] if row["start_s"] is None else row["start_s"]
    return max(start_s, int(row["submit_s"]))


def _mean_mgpu(grants: Sequence[int | None], seconds: Sequence[int | None]) -> int | None:
    known = [(m, s) for m, s in zip(grants, seconds, strict=True) if m is not None and s is not None]
    if len(known) < len(grants):
        return None
    total_s = sum(s for _, s in known)
    return round(sum(m * s for m, s in known) / total_s) if total_s else known[-1][0]
