"""Runs on machines without Slurm: their nodes tell what elsewhere Slurm's accounting does."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, or_

from slurm_gpu.database.storage.schema import NAME_LENGTH, run
from slurm_gpu.wire import HOST_CLUSTER, HostRun


def shown_here(cluster: str) -> ColumnElement[bool]:
    """Runs of this cluster, and those of machines without Slurm."""
    return or_(run.c.cluster == cluster, run.c.cluster.startswith(HOST_CLUSTER, autoescape=True))


def host_run_row(told: HostRun, uid: int | None) -> dict[str, Any]:
    """Return the columns of `run` that are imported for Slurm clusters, and the seq of this message.

    Nothing was asked for, and nothing waited; a shared GPU counts whole. `uid` is that of the user's name on
    slurm-gpudbd's host when it was stored: the machine's own uid may be another person's there.
    """
    over = told.end_s is not None
    # A stay has a device at least: none is what is left of a list that could not be read.
    n_gpus = len(told.devices) or None
    tres = {} if n_gpus is None else {"gres/gpu": float(n_gpus)}
    return {
        "cluster": told.cluster,
        "job_id": told.job_id,
        "submit_s": told.start_s,
        "sluid": None,
        "restart": 0,
        "array_job_id": None,
        "array_task": None,
        "het_job_id": None,
        "het_offset": None,
        "name": "",
        "user": told.user[:NAME_LENGTH],
        "uid": uid,
        "account": "",
        "qos": "",
        "partition": "",
        "state": "COMPLETED" if over else "RUNNING",
        "exit_code": "",
        "eligible_s": None,
        "start_s": told.start_s,
        "end_s": told.end_s,
        "elapsed_s": 0 if told.end_s is None else told.end_s - told.start_s,
        "suspended_s": 0,
        "time_limit_s": None,
        "n_nodes": 1,
        "nodes": told.node,
        "tres_requested": tres,
        "tres_allocated": tres,
        "admin_comment": "",
        "allocated_mgpu": None if n_gpus is None else 1000 * n_gpus,
        "gpu_type": None,
        "requested_mgpu": 1000 * len(told.devices),
        "reported_seq": told.seq,
    }
