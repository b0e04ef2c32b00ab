"""Headings of table columns and axes in words; pages show the name of the column in brackets behind them."""

from __future__ import annotations

from slurm_gpu.reports.figure import Axis

_HEADINGS = {
    # Columns of the accounting table
    "JobID": "Job",
    "JobName": "Job name",
    "user": "User",
    "account": "Account",
    "team": "Team",
    "qos": "QOS",
    "partition": "Partition",
    "State": "State",
    "Submit": "Submitted",
    "Start": "Started",
    "End": "Ended",
    "nNODE": "Nodes",
    "nGPU": "GPUs",
    "WAIT_h": "Wait",
    "RUN_h": "Run time",
    "uGPUcore": "GPU utilisation",
    "uGPUmem": "GPU memory",
    "coverage": "Coverage",
    "server_type": "Server type",
    "zone": "Zone",
    "scale": "Scale",
    "application": "Application",
    "field": "Field",
    "lender": "Lender",
    "gpu_h": "GPU-hours",
    "no_process_gpu_h": "GPU-hours without a process",
    "energy_kwh": "Energy",
    "charge": "Charge",
    # Use
    "from_s": "Start",
    "allocated_gpus": "Allocated GPUs",
    "stranded_gpus": "Stranded GPUs",
    "free_gpus": "Free GPUs",
    "out_of_service_gpus": "GPUs out of service",
    "capacity_gpus": "All GPUs",
    "allocation_rate_pct": "Allocated share",
    "capacity_gpu_h": "Capacity",
    "out_of_service_gpu_h": "Out of service",
    "share_pct": "Share",
    "gpu_share_pct": "Share of GPU-hours",
    "run_h": "Run time",
    "jobs": "Jobs",
    "users": "Users",
    "ugpucore": "GPU utilisation",
    "ugpumem": "GPU memory",
    "axis": "Axis",
    "value": "Value",
    "month": "Month",
    "change_pct": "Change",
    "low_priority_gpus": "GPUs of small jobs of low priority",
    "other_gpus": "GPUs of other jobs",
    "filled_pct": "Filled share of free GPUs",
    # Waste
    "measured_gpu_h": "Measured GPU-hours",
    "wasted_gpu_h": "Wasted GPU-hours",
    "no_process_cost": "Cost without a process",
    "wasted_cost": "Cost of the waste",
    # Waiting
    "resource_type": "Resource type",
    "mean_h": "Mean wait",
    "median_h": "Median wait",
    "p90_h": "90 % waited at most",
    "p95_h": "95 % waited at most",
    "max_h": "Longest wait",
    "within_a_minute_pct": "Started within a minute",
    "mean_wait_h": "Mean wait",
    "median_wait_h": "Median wait",
    "forecasts": "Forecasts",
    "within_2x_pct": "Within a factor of 2",
    "within_3x_pct": "Within a factor of 3",
    "in_interval_pct": "Within the interval",
    # Charge
    "unpriced_gpu_h": "GPU-hours without a rate",
    "borrower": "Borrower",
}


def heading(name: str) -> str:
    """Return the heading of a column, or its name if it has none."""
    return _HEADINGS.get(name, name)


def bracketed(axis: Axis) -> str:
    """Return the name of an axis in brackets, with the unit if it is per cent; values have other units."""
    return f"({axis.name}, %)" if axis.unit == "%" else f"({axis.name})"


def with_name(name: str) -> str:
    """Return the heading, followed by the name in brackets if it says more: "Wait (WAIT_h)", but "User"."""
    words = heading(name)
    return words if words.lower() == name.lower() else f"{words} ({name})"
