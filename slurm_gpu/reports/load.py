"""Read the data of a period from the database: the accounting table, the capacity and its allocation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, func, select

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.accounting.derived_columns import RESIZING
from slurm_gpu.database.accounting.resized import Row, find_parts
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import node_period, run, run_device
from slurm_gpu.reports.allocated_rows import AllocatedRows, allocated_rows
from slurm_gpu.reports.assembly import assemble
from slurm_gpu.reports.capacity import Capacity, capacity_of
from slurm_gpu.reports.category import Integers
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.months import MonthTotals, months_of
from slurm_gpu.reports.occupancy import OccupancySpans, distribute, occupancy
from slurm_gpu.reports.past_forecasts import PastForecasts, past_forecasts
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.placing import NodePeriod, Placing
from slurm_gpu.reports.rows import RunColumns, read_rows
from slurm_gpu.reports.shares import Weights, share_out
from slurm_gpu.reports.totals import PeriodTotals, totals_of

T = TypeVar("T")
_IDS_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The data of a report; `before` is None if the data do not cover the days before the period."""

    jobs: JobTable
    capacity: Capacity
    occupancy: OccupancySpans
    months: Sequence[MonthTotals]
    forecasts: Sequence[PastForecasts]
    before: PeriodTotals | None


@dataclass(frozen=True, slots=True)
class PeriodReader:
    """Reads periods from one database connection."""

    connection: Connection
    config: SiteConfig
    periods: Sequence[NodePeriod]
    placing: Placing
    now_s: float

    def jobs(self, rows: RunColumns, allocated: AllocatedRows, period: ReportPeriod) -> JobTable:
        """Return the accounting table."""

        def recorded(some: Integers) -> Weights:
            run_ids = rows.integers("run_id")[some].tolist()
            known = recorded_mgpu(self.connection, run_ids)
            return {
                row: known[run_id]
                for row, run_id in zip(some.tolist(), run_ids, strict=True)
                if run_id in known
            }

        portions = share_out(
            self.placing,
            nodes=rows.texts["nodes"],
            at_s=allocated.began_s,
            mgpu_s=allocated.mgpu_s,
            recorded=recorded,
        )
        return assemble(rows, allocated, portions, self.placing.groups, self.config, period, self.now_s)

    def rows(self, period: ReportPeriod) -> tuple[RunColumns, AllocatedRows]:
        """Return the rows of `run` and their allocations."""
        rows = read_rows(self.connection, self.config.cluster, period)
        return rows, allocated_rows(rows, resized_parts(self.connection, rows), period, self.now_s)

    def capacity(self, period: ReportPeriod) -> Capacity:
        """Return the nodes up to the time of the report."""
        until_s = max(period.since_s, min(period.until_s, int(self.now_s)))
        return capacity_of(self.periods, self.placing, period.since_s, until_s)

    def totals(self, period: ReportPeriod | None) -> PeriodTotals | None:
        """Return the totals of a period; None if the first run was submitted after its start."""
        first_s = self.connection.scalar(
            select(func.min(run.c.submit_s)).where(run.c.cluster == self.config.cluster)
        )
        if period is None or first_s is None or first_s > period.since_s:
            return None
        return totals_of(self.jobs(*self.rows(period), period), self.capacity(period))


def load(database: Database, config: SiteConfig, period: ReportPeriod, now_s: float) -> ReportData:
    """Read the runs and nodes of a period; runs that have not ended count up to `now_s`.

    Raise UsageError if slurm-gpu.yaml puts a node into two groups, and DatabaseError if the database is down.
    """
    places = Places.of(config)
    with database.reading() as connection:
        periods = read_periods(connection)
        reader = PeriodReader(connection, config, periods, Placing(periods, places), now_s)
        before = reader.totals(period.before())
        rows, allocated = reader.rows(period)
        jobs = reader.jobs(rows, allocated, period)
        months = months_of(
            connection,
            rows,
            periods,
            reader.placing,
            cluster=config.cluster,
            period=period,
            now_s=now_s,
            min_coverage=config.sampling.min_coverage,
        )
        forecasts = past_forecasts(connection, config.cluster, period, now_s)
    capacity = reader.capacity(period)
    on_nodes = distribute(
        rows.texts["nodes"],
        allocated.from_s,
        allocated.to_s,
        allocated.mgpu,
        rows.amounts("tres_allocated", "cpu"),
        rows.amounts("tres_allocated", "mem"),
    )
    return ReportData(
        jobs=jobs,
        capacity=capacity,
        occupancy=occupancy(capacity, on_nodes),
        months=months,
        forecasts=forecasts,
        before=before,
    )


def read_periods(connection: Connection) -> list[NodePeriod]:
    """Return all node periods in the database."""
    query = select(
        node_period.c.node,
        node_period.c.from_s,
        node_period.c.server_type,
        node_period.c.zone,
        node_period.c.gpus,
        node_period.c.cpus,
        node_period.c.memory_mib,
        node_period.c.state,
    )
    return [NodePeriod(**row) for row in connection.execute(query).mappings()]


def recorded_mgpu(connection: Connection, run_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return the mgpu of the distinct devices on each node, by run ID.

    Runs with a device whose granted share is unknown are left out.
    """
    found: dict[int, dict[tuple[str, str], int | None]] = defaultdict(dict)
    for some in _lots(run_ids):
        query = select(
            run_device.c.run_id, run_device.c.node, run_device.c.device, run_device.c.granted_mgpu
        ).where(run_device.c.run_id.in_(some))
        for run_id, node, device, mgpu in connection.execute(query.order_by(run_device.c.row_id)):
            devices = found[run_id]
            if mgpu is not None or (node, device) not in devices:
                devices[node, device] = mgpu
    known: dict[int, dict[str, int]] = {}
    for run_id, devices in found.items():
        by_node: dict[str, int] = defaultdict(int)
        for (node, _), mgpu in devices.items():
            if mgpu is None:
                break
            by_node[node] += mgpu
        else:
            known[run_id] = by_node
    return known


def resized_parts(connection: Connection, rows: RunColumns) -> list[Sequence[Row]]:
    """Return the parts, in chronological order, of each resized run whose last row is among the rows."""
    state = rows.texts["state"]
    if not state.is_(RESIZING).any():
        return []
    query = select(run.c.job_id).where(run.c.state == RESIZING).distinct()
    resized = {float(job_id) for job_id in connection.execute(query).scalars()}
    job_id, run_id = rows.numbers["job_id"], rows.integers("run_id").tolist()
    cluster = rows.texts["cluster"].texts()
    some = [
        {"run_id": run_id[i], "cluster": cluster[i], "job_id": int(job)}
        for i, job in enumerate(job_id.tolist())
        if job in resized
    ]
    return [parts for lot in _lots(some) for parts in find_parts(connection, lot).values() if len(parts) > 1]


def _lots(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _IDS_PER_STATEMENT):
        yield items[start : start + _IDS_PER_STATEMENT]
