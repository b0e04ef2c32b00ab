"""What is not there to judge a run by, in words: made without numpy, for whoever serves pages too."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_gpu.text.cells import span
from slurm_gpu.wire.answers.runs import NodeWindow, Run

# The first record of a running job takes a minute, that of an ended one seconds.
REPORTED_WITHIN_S = 120


def why_untold(run: Run) -> str:
    """Why nothing of its GPUs is known of a run."""
    n_gpus = run.n_gpus if run.has_started else run.n_gpus_requested
    if n_gpus == 0:
        return f"job {run.id} has no GPUs"
    if not run.has_started:
        return f"job {run.id} " + ("has not started yet" if run.end_s is None else "never started")
    if run.end_s is None and (run.elapsed_s is None or run.elapsed_s <= REPORTED_WITHIN_S):
        return f"nothing was told of GPUs of job {run.id} yet: ask again in a minute"
    if run.end_s is None:
        return (
            f"no node has reported GPUs of job {run.id} in the {span(run.elapsed_s)} that it has run: "
            f"slurm-gpu doctor, as root on {run.nodes}, checks why"
        )
    return f"nothing was told of GPUs of job {run.id}, or it has none"


def stale_nodes(run: Run, windows: Sequence[NodeWindow]) -> Sequence[str]:
    """Nodes of a run that goes on of whose last minutes nothing has come so far."""
    if run.end_s is not None:
        return ()
    answered = {item.node for item in windows if item.job_id == run.job_id}
    return sorted({record.node for record in run.devices or () if not record.final} - answered)
