"""Convert the runs that machines without Slurm report into rows of the table `run`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, or_

from slurm_gpu.database.storage.schema import NAME_LENGTH, run
from slurm_gpu.wire import HOST_CLUSTER, HostRun


def shown_here(cluster: str) -> ColumnElement[bool]:
    """Return a condition that selects runs of this cluster and of machines without Slurm."""
    return or_(run.c.cluster == cluster, run.c.cluster.startswith(HOST_CLUSTER, autoescape=True))


def host_run_row(host_run: HostRun, uid: int | None) -> dict[str, Any]:
    """Return the columns of `run` that Slurm's accounting would provide, and the seq of the report.

    The requested resources equal the allocated ones, and the run has no waiting time. A shared GPU counts as
    a whole GPU. `uid` is the user ID that the run's user name has on slurm-gpudbd's host when the run is
    stored. The user ID on the machine itself may belong to another person on slurm-gpudbd's host.
    """
    over = host_run.end_s is not None
    # A run has at least one device. An empty list means that the devices could not be read.
    n_gpus = len(host_run.devices) or None
    tres = {} if n_gpus is None else {"gres/gpu": float(n_gpus)}
    return {
        "cluster": host_run.cluster,
        "job_id": host_run.job_id,
        "submit_s": host_run.start_s,
        "sluid": None,
        "restart": 0,
        "array_job_id": None,
        "array_task": None,
        "het_job_id": None,
        "het_offset": None,
        "name": "",
        "user": host_run.user[:NAME_LENGTH],
        "uid": uid,
        "account": "",
        "qos": "",
        "partition": "",
        "state": "COMPLETED" if over else "RUNNING",
        "exit_code": "",
        "eligible_s": None,
        "start_s": host_run.start_s,
        "end_s": host_run.end_s,
        "elapsed_s": 0 if host_run.end_s is None else host_run.end_s - host_run.start_s,
        "suspended_s": 0,
        "time_limit_s": None,
        "n_nodes": 1,
        "nodes": host_run.node,
        "tres_requested": tres,
        "tres_allocated": tres,
        "admin_comment": "",
        "allocated_mgpu": None if n_gpus is None else 1000 * n_gpus,
        "gpu_type": None,
        "requested_mgpu": 1000 * len(host_run.devices),
        "reported_seq": host_run.seq,
    }
