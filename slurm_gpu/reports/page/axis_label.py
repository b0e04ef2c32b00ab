"""What stands above an axis."""

from __future__ import annotations

from slurm_gpu.reports.figure import Axis


def axis_label(axis: Axis) -> str:
    """Its name and its unit; once where the name tells the unit, as WAIT_h does."""
    return axis.name if not axis.unit or axis.name.endswith(f"_{axis.unit}") else f"{axis.name} / {axis.unit}"
