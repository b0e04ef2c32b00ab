"""Reduce a run to the data that a viewer may see. Fields are hidden unless they are listed as public."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from slurm_gpu.monitor.viewer import Visibility
from slurm_gpu.wire.answers.runs import Run, RunTimeline

# The fields that slurm-gpudbd sends to all users for every run.
OCCUPANCY = frozenset(
    {
        *("id", "cluster", "job_id", "array_job_id", "array_task", "het_job_id", "het_offset"),
        *("user", "uid", "account", "qos", "partition", "state"),
        *("submit_s", "eligible_s", "start_s", "end_s", "elapsed_s", "suspended_s", "time_limit_s"),
        *("nodes", "gpu_type", "server_type", "zone", "n_nodes", "n_gpus", "n_gpus_requested"),
        *("wait_h", "submit_wait_h", "run_h", "lender", "returned_to", "returned_in_s"),
    }
)
_HIDDEN: dict[str, Any] = dict.fromkeys({*Run.__struct_fields__} - OCCUPANCY - {"full"})


def visible(run: Run, visibility: Visibility) -> Run:
    """Return the run as the viewer may see it."""
    if visibility.may_see(run.user, run.uid):
        return run
    return msgspec.structs.replace(run, full=False, **_HIDDEN)


def visible_timeline(timeline: RunTimeline, seen: bool) -> RunTimeline:
    """Return the timeline of a run, without its devices unless the run is shown in full."""
    return timeline if seen else replace(timeline, devices=None)
