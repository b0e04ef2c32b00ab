"""What is left of a run for who may not see it in full: by the names of what may be told, not of what not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from slurm_gpu.monitor.viewer import Flavour
from slurm_gpu.wire.answers.runs import Run, RunTimeline

OCCUPANCY = frozenset(
    {
        *("id", "cluster", "job_id", "array_job_id", "array_task", "het_job_id", "het_offset"),
        *("user", "uid", "account", "qos", "partition", "state"),
        *("submit_s", "eligible_s", "start_s", "end_s", "elapsed_s", "suspended_s", "time_limit_s"),
        *("nodes", "gpu_type", "server_type", "zone", "n_nodes", "n_gpus", "n_gpus_requested"),
        *("wait_h", "submit_wait_h", "run_h", "lender", "returned_to", "returned_in_s"),
    }
)
"""As slurm-gpudbd tells everybody of every run."""
_HIDDEN: dict[str, Any] = dict.fromkeys({*Run.__struct_fields__} - OCCUPANCY - {"full"})


def visible(run: Run, flavour: Flavour) -> Run:
    """The run as whoever asks may see it."""
    if flavour.may_see(run.user, run.uid):
        return run
    return msgspec.structs.replace(run, full=False, **_HIDDEN)


def visible_timeline(timeline: RunTimeline, seen: bool) -> RunTimeline:
    """The course of a run, without its devices where it is not shown in full."""
    return timeline if seen else replace(timeline, devices=None)
