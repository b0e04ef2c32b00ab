"""Read a period from the database: the accounting table, what there was, and what was held of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.reports.allocated_rows import held_rows
from slurm_gpu.reports.assembly import assemble
from slurm_gpu.reports.capacity import Capacity, capacity_of
from slurm_gpu.reports.category import Integers
from slurm_gpu.reports.job_table import JobTable
from slurm_gpu.reports.months import MonthTotals, months_of
from slurm_gpu.reports.occupancy import OccupancySpans, occupancy, spread
from slurm_gpu.reports.past_forecasts import PastForecasts, past_forecasts
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.placing import Placing
from slurm_gpu.reports.recorded import read_periods, recorded_mgpu, resized_parts
from slurm_gpu.reports.rows import read_rows
from slurm_gpu.reports.shares import Weights, share_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """All that a report on a period is made of."""

    jobs: JobTable
    capacity: Capacity
    occupancy: OccupancySpans
    months: Sequence[MonthTotals]
    forecasts: Sequence[PastForecasts]


def load(database: Database, config: SiteConfig, period: ReportPeriod, now_s: float) -> Accounts:
    """Read the runs and nodes of a period; what goes on counts up to `now_s`.

    Raises UsageError where slurm-gpu.yaml puts a node into two groups, and DatabaseError when the database is
    away.
    """
    places = Places.of(config)
    with database.reading() as connection:
        periods = read_periods(connection)
        placing = Placing(periods, places)
        rows = read_rows(connection, config.cluster, period)
        held = held_rows(rows, resized_parts(connection, rows), period, now_s)

        def recorded(some: Integers) -> Weights:
            run_ids = rows.integers("run_id")[some].tolist()
            known = recorded_mgpu(connection, run_ids)
            return {
                row: known[run_id]
                for row, run_id in zip(some.tolist(), run_ids, strict=True)
                if run_id in known
            }

        portions = share_out(
            placing, nodes=rows.texts["nodes"], at_s=held.began_s, mgpu_s=held.mgpu_s, recorded=recorded
        )
        months = months_of(
            connection,
            rows,
            periods,
            placing,
            cluster=config.cluster,
            period=period,
            now_s=now_s,
            min_coverage=config.sampling.min_coverage,
        )
        forecasts = past_forecasts(connection, config.cluster, period, now_s)
    until_s = max(period.since_s, min(period.until_s, int(now_s)))
    capacity = capacity_of(periods, placing, period.since_s, until_s)
    on_nodes = spread(
        rows.texts["nodes"],
        held.from_s,
        held.to_s,
        held.mgpu,
        rows.amounts("tres_allocated", "cpu"),
        rows.amounts("tres_allocated", "mem"),
    )
    occupied = occupancy(capacity, on_nodes)
    del on_nodes
    jobs = assemble(rows, held, portions, placing.groups, config, period, now_s)
    return Accounts(jobs=jobs, capacity=capacity, occupancy=occupied, months=months, forecasts=forecasts)
