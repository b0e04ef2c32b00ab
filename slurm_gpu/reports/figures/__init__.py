"""Create the figures of a report, each with a table and a summary sentence, by pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_gpu.policy.language.model import Bundle
from slurm_gpu.reports.figure import Chapter
from slurm_gpu.reports.figures.allocation import allocation_over_time
from slurm_gpu.reports.figures.applications import usage_by_application, usage_by_field
from slurm_gpu.reports.figures.capacity_use import usage_by_server_type
from slurm_gpu.reports.figures.charges import charge_per_account
from slurm_gpu.reports.figures.coordinates import parallel_coordinates
from slurm_gpu.reports.figures.distributions import distributions
from slurm_gpu.reports.figures.hours import (
    gpu_hours_by_account,
    gpu_hours_by_server_type,
    gpu_hours_by_team,
    gpu_hours_by_user,
    gpu_hours_by_zone,
)
from slurm_gpu.reports.figures.lending import lent_gpu_hours
from slurm_gpu.reports.figures.low_priority import low_priority_small_jobs
from slurm_gpu.reports.figures.monthly import month_over_month
from slurm_gpu.reports.figures.past_forecasts import forecasts_against_outcomes
from slurm_gpu.reports.figures.utilisation import utilisation_by_zone_and_scale
from slurm_gpu.reports.figures.waiting import waiting_by_resource_type, waiting_by_scale
from slurm_gpu.reports.figures.waste import allocated_but_idle
from slurm_gpu.reports.load import ReportData


def chapters(
    data: ReportData, low_priority: Collection[str] = (), bundles: Sequence[Bundle] = ()
) -> list[Chapter]:
    """Return the chapters of the report with their figures.

    `low_priority` contains the QOS of preemptible jobs; jobs on loan are always counted as preemptible.
    `bundles` contains the bundles in policy.yaml, in the order of the file.
    """
    jobs, capacity = data.jobs, data.capacity
    return [
        Chapter(
            id="use",
            title="Use",
            figures=[
                usage_by_server_type(jobs, capacity),
                allocation_over_time(jobs, capacity, data.occupancy),
                month_over_month(data.months),
                gpu_hours_by_user(jobs),
                gpu_hours_by_account(jobs),
                gpu_hours_by_team(jobs),
                gpu_hours_by_server_type(jobs),
                gpu_hours_by_zone(jobs),
                usage_by_application(jobs),
                usage_by_field(jobs),
                parallel_coordinates(jobs),
                distributions(jobs),
            ],
        ),
        Chapter(
            id="waste",
            title="Waste",
            figures=[
                allocated_but_idle(jobs),
                utilisation_by_zone_and_scale(jobs),
                low_priority_small_jobs(jobs, capacity, low_priority),
            ],
        ),
        Chapter(
            id="waiting",
            title="Waiting",
            figures=[
                waiting_by_resource_type(jobs, bundles),
                waiting_by_scale(jobs),
                forecasts_against_outcomes(data.forecasts),
            ],
        ),
        Chapter(id="charge", title="Charge", figures=[charge_per_account(jobs), lent_gpu_hours(jobs)]),
    ]
