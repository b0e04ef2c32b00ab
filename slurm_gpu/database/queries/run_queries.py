"""Read runs in pages, with only the fields that the caller may see."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, RowMapping, and_, func, or_, select

from slurm_gpu.database.accounting.derived_columns import coverage_at, resolve_double_watches
from slurm_gpu.database.accounting.host_runs import shown_here
from slurm_gpu.database.accounting.importer import read_until_s, unmatched
from slurm_gpu.database.accounting.loans import lender_of, taken_back_by
from slurm_gpu.database.accounting.reconcile import DEFAULT_MIN_COVERAGE, derive_run
from slurm_gpu.database.accounting.resized import (
    Row,
    elapsed_s,
    find_parts,
    is_last_part,
    submitted_before,
    whole,
)
from slurm_gpu.database.accounting.slurm_view import QueueState
from slurm_gpu.database.queries.run_detail import Detail, details, nodes_without_window, timelines, windows
from slurm_gpu.database.queries.run_filter import MAX_LIMIT, SUBMIT, RunFilter, SortOrder, conditions
from slurm_gpu.database.storage.schema import run, run_device
from slurm_gpu.errors import UsageError
from slurm_gpu.http.identity import Caller
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.runs import NodeWindow, Run, RunPage, RunTimeline

_JOB = re.compile(r"(?P<job>\d{1,10})(?:_(?P<task>\d{1,10})|\+(?P<offset>\d{1,10}))?")
FRESH_S = 20.0
"""Maximum age of a window that is shown as the current use of a running job."""
_MAX_ASKED = 100
_LOST_AFTER_S = 3600.0
_LOST_UNTIL_S = 7 * 86400.0


def find_runs(
    connection: Connection, cluster: str, wanted: RunFilter, caller: Caller, now_s: float
) -> RunPage:
    """Return one page of runs in the requested order; by default, the latest submission comes first."""
    order = SortOrder.of(wanted, caller, now_s)
    where = [shown_here(cluster), is_last_part(), *conditions(wanted, caller)]
    if wanted.until_s is not None:
        where.append(submitted_before(connection, wanted.until_s))
    places = _places(connection, order, where, wanted)
    cursor = order.place(places[wanted.limit - 1]).cursor() if len(places) > wanted.limit else None
    ids = [place["run_id"] for place in places[: wanted.limit]]
    chosen = select(run).where(run.c.run_id.in_(ids))
    rows = {row["run_id"]: row for row in connection.execute(chosen).mappings()}
    page = [rows[run_id] for run_id in ids if run_id in rows]
    if wanted.sort == SUBMIT and not wanted.ascending:
        page.sort(key=_newest_first)
    parts_of = find_parts(connection, page)
    runs = [show_run(whole(parts_of[row["run_id"]], now_s), caller, now_s) for row in page]
    return RunPage(runs=runs, cursor=cursor)


def _places(
    connection: Connection, order: SortOrder, where: Sequence[ColumnElement[bool]], wanted: RunFilter
) -> list[RowMapping]:
    """Return `run_id` and `sort_key` of the runs on a page and of the run after it, if any.

    Only these two columns are sorted. Whole rows are read only for the page, since a million whole rows take
    half a gigabyte.
    """
    found: list[RowMapping] = []
    for step in order.steps(wanted.after):
        missing = wanted.limit + 1 - len(found)
        if missing:
            query = select(run.c.run_id, order.key.label("sort_key")).where(*where, *step.where)
            found += connection.execute(query.order_by(*step.order).limit(missing)).mappings()
    return found


def find_job(
    connection: Connection,
    cluster: str,
    job: str,
    caller: Caller,
    now_s: float,
    min_coverage: float = DEFAULT_MIN_COVERAGE,
) -> RunPage:
    """Return the runs of JOBID, JOBID_TASK or JOBID+OFFSET, with the details that the caller may see.

    The JOBID of an array or a heterogeneous job selects all of its tasks or components, as in sacct. The page
    contains the newest MAX_LIMIT runs and the number of older ones. Raise UsageError if `job` does not have
    one of these forms.
    """
    rows = rows_of_job(connection, cluster, job)
    parts_of = find_parts(connection, rows)
    wholes = [whole(parts_of[row["run_id"]], now_s) for row in rows]
    visible = [row for row in wholes if caller.may_see(row["uid"])]
    found, events_left_out = details(connection, visible)
    runs = []
    for row in wholes:
        shown = show_run(row, caller, now_s, found.get(row["run_id"]))
        if shown.devices:
            shown = _derived_from_records(shown, parts_of[row["run_id"]], min_coverage)
        runs.append(_as_its_loan_ended(connection, shown, row))
    return RunPage(
        runs=runs,
        cursor=None,
        left_out=count_left_out(connection, cluster, job, len(rows)),
        events_left_out=events_left_out,
        unmatched=count_unmatched(connection, cluster, int(job)) if job.isdecimal() else 0,
    )


def _as_its_loan_ended(connection: Connection, shown: Run, row: Mapping[str, Any]) -> Run:
    other = taken_back_by(connection, row)
    if other is None:
        return shown
    eligible_s = other["submit_s"] if other["eligible_s"] is None else other["eligible_s"]
    return msgspec.structs.replace(
        shown, returned_to=job_name(other), returned_in_s=other["start_s"] - eligible_s
    )


def _derived_from_records(shown: Run, parts: Sequence[Row], min_coverage: float) -> Run:
    """Derive the columns from the records that are shown with them.

    The stored columns may be outdated, because the import updates them some time after records arrive.
    """
    kept, _ = resolve_double_watches(shown.devices or ())
    derived = derive_run(parts, kept, min_coverage)
    return msgspec.structs.replace(
        shown,
        n_gpus=_gpus(derived.granted_mgpu) if len(parts) == 1 else shown.n_gpus,
        ugpucore=derived.ugpucore,
        ugpumem=derived.ugpumem,
        coverage=derived.coverage,
        energy_j=derived.energy_j,
    )


def rows_of_job(connection: Connection, cluster: str, job: str) -> list[RowMapping]:
    """Return the rows of `run` that find_job selects, newest first; raise UsageError if `job` is invalid.

    Return at most MAX_LIMIT rows. A resized run has several rows; only the last one is returned.
    """
    return sorted(_newest(connection, _of_job(cluster, job), MAX_LIMIT), key=_newest_first)


def count_left_out(connection: Connection, cluster: str, job: str, n_rows: int) -> int:
    """Return how many runs of a job `rows_of_job` omitted when it returned `n_rows` rows."""
    if n_rows < MAX_LIMIT:
        return 0
    query = select(func.count()).select_from(run).where(*_of_job(cluster, job))
    return int(connection.execute(query).scalar_one()) - n_rows


def _of_job(cluster: str, job: str) -> list[ColumnElement[bool]]:
    match = _JOB.fullmatch(job)
    if match is None:
        raise UsageError(f"{job[:100]!r} is not a job; write JOBID, JOBID_TASK or JOBID+OFFSET")
    job_id = int(match["job"])
    if match["task"] is not None:
        which = and_(run.c.array_job_id == job_id, run.c.array_task == int(match["task"]))
    elif match["offset"] is not None:
        which = and_(run.c.het_job_id == job_id, run.c.het_offset == int(match["offset"]))
    else:
        which = or_(run.c.job_id == job_id, run.c.array_job_id == job_id, run.c.het_job_id == job_id)
    return [shown_here(cluster), which, is_last_part()]


def find_timelines(connection: Connection, cluster: str, job: str, caller: Caller) -> list[RunTimeline]:
    """Return the timelines of each run of `job`; `devices` is None if the caller may not see the run."""
    rows = rows_of_job(connection, cluster, job)
    found = timelines(connection, [row["run_id"] for row in rows if caller.may_see(row["uid"])])
    parts_of = find_parts(connection, rows)
    return [
        RunTimeline(
            id=job_name(row),
            job_id=row["job_id"],
            submit_s=parts_of[row["run_id"]][0]["submit_s"],
            devices=found.get(row["run_id"]),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsFound:
    """The windows of a job with `runs` runs; the caller may see `visible` of these runs.

    While the job is running, `windows` contains only windows that are at most FRESH_S old. `missing` contains
    the (node, job ID) pairs whose windows must be requested.
    """

    runs: int
    visible: int
    windows: Sequence[NodeWindow]
    missing: Collection[tuple[str, int]]

    def nodes_to_request(self) -> list[str]:
        """Return all nodes from which windows must be requested."""
        return sorted({node for node, _ in self.missing})


def find_windows(
    connection: Connection, cluster: str, job: str, caller: Caller, now_s: float
) -> WindowsFound:
    """Return the available windows of a job and, for a running job, the nodes without a recent window."""
    rows = rows_of_job(connection, cluster, job)
    visible = [row for row in rows if caller.may_see(row["uid"])]
    running = [row for row in visible if row["start_s"] is not None and row["end_s"] is None]
    parts_of = find_parts(connection, rows)
    wholes = [whole(parts_of[row["run_id"]], now_s) for row in running or visible]
    there = windows(connection, wholes)
    if running:
        there = [item for item in there if item.at_s > now_s - FRESH_S]
    # Jobs whose windows were requested by earlier calls now have recent windows, so each call requests
    # windows of other jobs.
    without = ((row["job_id"], nodes) for row in running if (nodes := nodes_without_window(row, there)))
    missing = {(node, job_id) for job_id, nodes in islice(without, _MAX_ASKED) for node in nodes}
    return WindowsFound(
        runs=len(rows),
        visible=len(visible),
        windows=there,
        missing=missing,
    )


def show_live(values: Mapping[str, Live], queue: QueueState | None, caller: Caller) -> dict[str, Any]:
    """Return the live values that `caller` may see.

    Users see the values of devices that run only their own jobs. Only operators see the values of other
    devices and of whole nodes.
    """

    def own(node: str, job_id: int) -> bool:
        queued = None if queue is None else queue.by_id.get(job_id)
        return queued is not None and queued.uid == caller.uid and node in queued.nodes

    def show(node: str, live: Live) -> dict[str, Any]:
        devices = {
            uuid: item
            if caller.sees_all or (item.jobs and all(own(node, job_id) for job_id in item.jobs))
            else LiveDevice(jobs=item.jobs)
            for uuid, item in live.devices.items()
        }
        return replace(live, devices=devices, host=live.host if caller.sees_all else {}).to_wire()

    return {node: show(node, live) for node, live in values.items()}


def count_unmatched(connection: Connection, cluster: str, job_id: int | None = None) -> int:
    """Return the number of records, of one job or of all, that match no run."""
    where = unmatched(cluster)
    if job_id is not None:
        where = run_device.c.run_id.is_(None), run_device.c.cluster == cluster, run_device.c.job_id == job_id
    return connection.execute(select(func.count()).select_from(run_device).where(*where)).scalar_one()


def unmatched_jobs(connection: Connection, cluster: str, now_s: float) -> list[int]:
    """Return up to ten jobs without a run whose final records ended 1 h to 7 days ago, newest first.

    slurmdbd stores most jobs within seconds, but loses a job if MariaDB dies while committing its row. While
    the import of accounting is late, the hour is counted back from the end of its last pass. Jobs with runs
    are left out, because a record can also be unmatched for other reasons, such as a wrong clock.
    """
    read_s = read_until_s(connection, cluster)
    if read_s is None:
        return []
    ended = run_device.c.last_s.between(now_s - _LOST_UNTIL_S, min(now_s, read_s) - _LOST_AFTER_S)
    of_job = and_(run.c.cluster == cluster, run.c.job_id == run_device.c.job_id)
    query = (
        select(run_device.c.job_id)
        .outerjoin(run, of_job)
        .where(*unmatched(cluster), run_device.c.final, ended, run.c.run_id.is_(None))
        .distinct()
        .order_by(run_device.c.job_id.desc())
        .limit(10)
    )
    return list(connection.execute(query).scalars())


def show_run(row: Row, caller: Caller, now_s: float, detail: Detail | None = None) -> Run:
    """Convert a row of `run` to a Run as of `now_s` that contains only the fields that `caller` may see."""
    start_s, end_s, eligible_s = row["start_s"], row["end_s"], row["eligible_s"]
    run_s = None if start_s is None else elapsed_s(row, now_s)
    requested = _gpus(row["requested_mgpu"])
    coverage = coverage_at(
        now_s,
        coverage=row["coverage"],
        granted_mgpu=row["granted_mgpu"],
        end_s=end_s,
        elapsed_s=row["elapsed_s"],
    )
    full = caller.may_see(row["uid"])
    private = (
        "name",
        "exit_code",
        "restart",
        "tres_requested",
        "tres_allocated",
        "admin_comment",
        "ugpucore",
        "ugpumem",
        "energy_j",
        "app",
        "app_field",
    )
    public = (
        "cluster",
        "job_id",
        "array_job_id",
        "array_task",
        "het_job_id",
        "het_offset",
        "user",
        "uid",
        "account",
        "qos",
        "partition",
        "state",
        "submit_s",
        "eligible_s",
        "start_s",
        "end_s",
        "suspended_s",
        "time_limit_s",
        "nodes",
        "gpu_type",
        "server_type",
        "zone",
        "n_nodes",
    )
    return Run(
        id=job_name(row),
        full=full,
        elapsed_s=run_s,
        coverage=coverage if full else None,
        n_gpus=requested if start_s is None else _gpus(row["granted_mgpu"]),
        n_gpus_requested=requested,
        wait_h=_hours(eligible_s, start_s),
        submit_wait_h=_hours(row["first_submit_s"], start_s),
        run_h=None if run_s is None else run_s / 3600,
        lender=lender_of(row["admin_comment"]),
        devices=None if detail is None else detail.records,
        hosts=None if detail is None else detail.hosts,
        events=None if detail is None else detail.events,
        device_facts=None if detail is None else detail.facts,
        **{name: row[name] for name in public},
        **({name: row[name] for name in private} if full else {}),
    )


def job_name(row: Row) -> str:
    """Return the job ID of a run in Slurm's notation."""
    if row["array_task"] is not None:
        return f"{row['array_job_id']}_{row['array_task']}"
    if row["het_offset"] is not None:
        return f"{row['het_job_id']}+{row['het_offset']}"
    return str(row["job_id"])


def _newest(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], limit: int
) -> list[RowMapping]:
    query = select(run).where(*conditions).order_by(run.c.submit_s.desc(), run.c.run_id.desc()).limit(limit)
    return list(connection.execute(query).mappings())


def _newest_first(row: RowMapping) -> tuple[int, ...]:
    """Return a sort key that puts the latest submission first.

    Runs with equal submission times, such as array tasks, are sorted by ID, the highest first.
    """
    numbers = (
        row["array_job_id"] or row["het_job_id"] or row["job_id"],  # job IDs begin at 1
        -1 if row["array_task"] is None else row["array_task"],
        -1 if row["het_offset"] is None else row["het_offset"],
        row["run_id"],
    )
    return (-row["submit_s"], *(-number for number in numbers))


def _gpus(granted_mgpu: int | None) -> float | None:
    return None if granted_mgpu is None else granted_mgpu / 1000


def _hours(from_s: int | None, to_s: int | None) -> float | None:
    # A start before `from_s` belongs to an accounting row that no longer exists.
    return None if from_s is None or to_s is None or to_s < from_s else (to_s - from_s) / 3600
