"""Describe the data that a diagnosis lacks. The web server uses this module, so it does not import numpy."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.text.cells import span
from slurm_gpu.wire.answers.runs import NodeWindow, Run

# The first record of a job arrives a minute after its start, or a few seconds after the end of a shorter job.
REPORTED_WITHIN_S = 120


def why_no_data(run: Run) -> str:
    """Return why a run has no GPU data."""
    n_gpus = run.n_gpus if run.has_started else run.n_gpus_requested
    if n_gpus == 0:
        return f"job {run.id} has no GPUs"
    if not run.has_started:
        return f"job {run.id} " + ("has not started yet" if run.end_s is None else "never started")
    if run.end_s is None and (run.elapsed_s is None or run.elapsed_s <= REPORTED_WITHIN_S):
        return f"job {run.id} has no GPU data yet; try again in a minute"
    if run.end_s is None:
        return (
            f"no node has reported GPUs of job {run.id}, which has run for {span(run.elapsed_s)}: run "
            f"slurm-gpu doctor as root on {run.nodes}"
        )
    return f"job {run.id} has no GPU data, possibly because it had no GPUs"


def stale_nodes(run: Run, windows: Sequence[NodeWindow]) -> Sequence[str]:
    """Return the nodes of a running job whose recent window has not arrived."""
    if run.end_s is not None:
        return ()
    answered = {item.node for item in windows if item.job_id == run.job_id}
    return sorted({record.node for record in run.devices or () if not record.final} - answered)
