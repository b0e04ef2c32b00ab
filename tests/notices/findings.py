"""Jobs and findings for tests."""

from __future__ import annotations

from typing import Any

from slurm_gpu.notices.finding import JobFinding, NoticedJob, NoticedRun

NOW_S = 1_795_262_400.0


def make_job(job_id: int = 17, user: str = "alice", **changes: Any) -> NoticedJob:
    values: dict[str, Any] = {
        "run": NoticedRun(job_id, int(NOW_S) - 7200),
        "id": str(job_id),
        "user": user,
        "name": "train",
        "account": "vision",
        "qos": "normal",
        "partition": "gpu",
        "n_gpus": 2.0,
    }
    return NoticedJob(**{**values, **changes})


def make_finding(
    job_id: int = 17, user: str = "alice", kind: str = "never_used", **changes: Any
) -> JobFinding:
    values: dict[str, Any] = {
        "job": make_job(job_id, user),
        "kind": kind,
        "since_s": NOW_S - 3600,
        "coverage": 0.99,
        "n_devices": 2,
        "due_s": NOW_S - 1800,
    }
    return JobFinding(**{**values, **changes})
