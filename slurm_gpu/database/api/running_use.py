"""Serve GET /v1/running: the GPU use of each running job since its start."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from sqlalchemy import Connection, RowMapping, select, type_coerce
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.alerts.alert import AlertThresholds
from slurm_gpu.database.accounting.derived_columns import resolve_double_watches
from slurm_gpu.database.accounting.writer import RECORD_WITHOUT_TIMELINE, read_record, readable
from slurm_gpu.database.http.request import authenticated
from slurm_gpu.database.services import Services
from slurm_gpu.database.storage.packed import HISTOGRAMS, pack_statistics, unpacker
from slurm_gpu.database.storage.schema import PackedColumn, event, run, run_device
from slurm_gpu.http.identity import Caller
from slurm_gpu.text.hostlist import expand
from slurm_gpu.wire import Histogram, histogram_quantile, merge_histograms
from slurm_gpu.wire.answers.running import RecentXid, Running, RunningUse

# Lifetime of a cached answer; records of a running job arrive every five minutes.
KEPT_S = 20.0
XIDS_OF_S = 3600
# Number of runs whose rows are in memory at the same time.
_AT_ONCE = 500
_IDLE_PCT = AlertThresholds().idle_pct
_STATISTICS = PackedColumn(pack_statistics, unpacker((*HISTOGRAMS, "uptime_s")))
_COLUMNS = tuple(
    type_coerce(column, _STATISTICS).label(column.name) if column.name == "statistics" else column
    for column in RECORD_WITHOUT_TIMELINE
)


@dataclass(frozen=True, slots=True)
class RunningUseByOwner:
    """The answer to an operator, and the uid of each job's user by job ID (None if the uid is unknown)."""

    running: Running
    owners: Mapping[int, int | None]

    @classmethod
    def nothing(cls) -> RunningUseByOwner:
        """Return an empty answer."""
        return cls(Running(as_of_s=0.0, jobs=(), xids=()), {})

    def seen_by(self, caller: Caller) -> Running:
        """Return only the jobs that the caller may see in full."""
        own = {job_id for job_id, uid in self.owners.items() if caller.may_see(uid)}
        return replace(
            self.running,
            jobs=[use for use in self.running.jobs if use.job_id in own],
            xids=[xid for xid in self.running.xids if xid.job_id in own],
        )


class RunningPage:
    """Serve GET /v1/running."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._until, self._found, self._body = 0.0, RunningUseByOwner.nothing(), b""

    async def get(self, request: Request) -> Response:
        """Return all jobs to operators, and only their own jobs to other users."""
        caller = await authenticated(self._services.authenticator, request)
        body = await run_in_threadpool(self._answer, caller)
        return Response(body, media_type="application/json")

    def _answer(self, caller: Caller) -> bytes:
        found, body = self._newest()
        return body if caller.sees_all else msgspec.json.encode(found.seen_by(caller))

    def _newest(self) -> tuple[RunningUseByOwner, bytes]:
        """Return the cached answer; if it has expired, one request at a time renews it."""
        services = self._services
        with self._lock:
            if not self._body or services.clock.monotonic() >= self._until:
                with services.database.reading() as connection:
                    now_s = services.clock.wall()
                    self._found = find_running(connection, services.cluster, now_s, services.min_coverage)
                self._body = msgspec.json.encode(self._found.running)
                self._until = services.clock.monotonic() + KEPT_S
            return self._found, self._body


def find_running(
    connection: Connection, cluster: str, now_s: float, min_coverage: float
) -> RunningUseByOwner:
    """Return the GPU use of all runs that have started and not ended."""
    goes_on = run.c.cluster == cluster, run.c.end_s.is_(None), run.c.start_s.is_not(None)
    columns = run.c.run_id, run.c.job_id, run.c.start_s, run.c.coverage, run.c.uid, run.c.nodes
    query = select(*columns).where(*goes_on)
    rows = connection.execute(query).mappings().all()
    starts = {row["run_id"]: row["start_s"] for row in rows}
    measured = _measured(connection, starts, min_coverage)
    running = Running(
        as_of_s=now_s,
        jobs=[_use(row, measured.get(row["run_id"], _NOTHING), min_coverage) for row in rows],
        xids=_xids(connection, {row["job_id"]: row["nodes"] for row in rows}, int(now_s) - XIDS_OF_S),
    )
    return RunningUseByOwner(running, {row["job_id"]: row["uid"] for row in rows})


@dataclass(frozen=True, slots=True)
class _Measured:
    """Histograms over all devices of a run, and the devices that never computed although others did."""

    util: Histogram | None = None
    memory: Histogram | None = None
    unused: Sequence[str] = ()


_NOTHING = _Measured()


def _use(row: RowMapping, measured: _Measured, min_coverage: float) -> RunningUse:
    util, memory = measured.util, measured.memory
    coverage = 0.0 if row["coverage"] is None else min(1.0, row["coverage"])
    ever = None if util is None else _has_computed(util)
    return RunningUse(
        job_id=row["job_id"],
        start_s=row["start_s"],
        coverage=coverage,
        # Only complete coverage can show that a device never computed.
        used=ever if ever or coverage >= min_coverage else None,
        util_p25=_quantile(util, 0.25),
        util_p95=_quantile(util, 0.95),
        mem_p25=_quantile(memory, 0.25),
        mem_p95=_quantile(memory, 0.95),
        unused_devices=measured.unused,
    )


def _has_computed(util: Histogram) -> bool:
    return any(ms for percent, ms in util.items() if percent > _IDLE_PCT)


def _quantile(histogram: Histogram | None, q: float) -> float | None:
    return None if histogram is None else histogram_quantile(histogram, q)


def _measured(connection: Connection, starts: Mapping[int, int], min_coverage: float) -> dict[int, _Measured]:
    """Return the measured use by run ID; `starts` contains the start time of each run."""
    found: dict[int, _Measured] = {}
    run_ids = list(starts)
    for first in range(0, len(run_ids), _AT_ONCE):
        query = select(*_COLUMNS).where(run_device.c.run_id.in_(run_ids[first : first + _AT_ONCE]))
        by_run: dict[int, list[RowMapping]] = defaultdict(list)
        for row in connection.execute(query).mappings():
            by_run[row["run_id"]].append(row)
        for run_id, some in by_run.items():
            kept = list(_each_time_once(some))
            util, memory = (
                merge_histograms(_histogram(row["statistics"].get(name)) for row in kept)
                for name in HISTOGRAMS
            )
            used = util is not None and _has_computed(util)
            unused = _unused(kept, starts[run_id], min_coverage) if used else ()
            found[run_id] = _Measured(util, memory, unused)
    return found


def _unused(rows: Sequence[RowMapping], start_s: int, min_coverage: float) -> Sequence[str]:
    """Return the devices that never computed, if their coverage since the run's start is sufficient."""
    by_place: dict[tuple[str, str], list[RowMapping]] = defaultdict(list)
    for row in rows:
        by_place[row["node"], row["device"]].append(row)
    unused = []
    for (_, device), some in by_place.items():
        util = merge_histograms(_histogram(row["statistics"].get(HISTOGRAMS[0])) for row in some)
        if util is None or _has_computed(util):
            continue
        allocated_s = max(row["last_s"] for row in some) - start_s
        if allocated_s > 0 and sum(util.values()) / 1000 >= min_coverage * allocated_s:
            unused.append(device)
    return unused


def _each_time_once(rows: Sequence[RowMapping]) -> Iterable[RowMapping]:
    """Yield a run's records, keeping only one record of each double watch."""
    by_place: dict[tuple[str, str], list[RowMapping]] = defaultdict(list)
    for row in rows:
        by_place[row["node"], row["device"]].append(row)
    for some in by_place.values():
        if len(some) > 1:
            records = [record for row in some if (record := readable(read_record, row)) is not None]
            kept = {record.segment for record in resolve_double_watches(records)[0]}
            some = [row for row in some if row["segment"] in kept]
        yield from some


def _histogram(value: object) -> Histogram | None:
    return {int(percent): ms for percent, ms in value.items()} if isinstance(value, dict) else None


def _xids(connection: Connection, nodes_of: Mapping[int, str], since_s: int) -> list[RecentXid]:
    """Return the recent Xids that a node of the affected job reported.

    Events from other nodes are ignored, since machines without Slurm may use the same job IDs.
    """
    query = select(event).where(event.c.kind == "xid", event.c.at_s >= since_s, event.c.job_id.is_not(None))
    return [
        RecentXid(job_id=row["job_id"], device=row["device"], at_s=row["at_s"], code=row["data"].get("code"))
        for row in connection.execute(query.order_by(event.c.at_s)).mappings()
        if row["device"] is not None and row["node"] in _expanded(nodes_of.get(row["job_id"], ""))
    ]


def _expanded(nodes: str) -> Sequence[str]:
    try:
        return expand(nodes)
    except ValueError:  # Slurm never writes an invalid hostlist
        return ()
