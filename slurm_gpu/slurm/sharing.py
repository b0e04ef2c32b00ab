"""Jobs that share a GPU: giving one its place, its shards, or its turn again, as root or SlurmUser."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_gpu.slurm.commands import QUERY_TIMEOUT_S, CommandRunner, query_environment, run_command


class SharingClient:
    """Changes jobs with scontrol; each method raises SlurmError."""

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._environ = run, query_environment(environ)

    def start(self, job_id: int, node: str, gres: str) -> None:
        """Have a job that waits for its begin time start now, on this node, with `gres`, as gres:shard:2."""
        self._update(job_id, "StartTime=now", f"ReqNodeList={node}", f"TresPerNode={gres}")

    def let_go(self, job_id: int, gres: str) -> None:
        """Have a waiting job start on any node with `gres`, when Slurm likes."""
        self._update(job_id, "ReqNodeList=", f"TresPerNode={gres}")

    def requeue(self, job_id: int) -> None:
        """Send a job that runs, or has just ended, back into the queue."""
        self._run(["scontrol", "requeue", str(job_id)], self._environ, QUERY_TIMEOUT_S)

    def _update(self, job_id: int, *changes: str) -> None:
        self._run(["scontrol", "update", f"JobId={job_id}", *changes], self._environ, QUERY_TIMEOUT_S)
