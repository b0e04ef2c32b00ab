"""Convert the waits of the model to JSON with stable keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy is installed only where reports are built
    from slurm_gpu.reports.recommend.waits import GroupWaits, Reproduction


def waits_json(waits: GroupWaits) -> dict[str, Any]:
    """Return the waits of one group in hours."""
    return {
        "jobs": waits.jobs,
        "mean_h": waits.mean_h,
        "median_h": waits.median_h,
        "p90_h": waits.p90_h,
        "typical_user_h": waits.user_h,
        "delayed_by_limits_h": waits.by_limits_h,
    }


def reproduction_json(found: Reproduction) -> dict[str, Any]:
    """Return how closely the model reproduces the recorded waits."""
    return {
        "jobs": found.jobs,
        "recorded_h": found.recorded_h,
        "modelled_h": found.modelled_h,
        "within_2x": found.within_2x,
    }
