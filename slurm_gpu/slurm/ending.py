"""Ending a job, and taking that back, as root or SlurmUser. Jobs are named as users know them: 17, 17_3."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_gpu.slurm.commands import QUERY_TIMEOUT_S, CommandRunner, query_environment, run_command


class EndingClient:
    """Each method raises SlurmError.

    The raw number of an array's last task is that of the whole array: never end a job by its raw number.
    """

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._environ = run, query_environment(environ)

    def cancel(self, name: str) -> None:
        """End it."""
        self._run(["scancel", name], self._environ, QUERY_TIMEOUT_S)

    def hold(self, name: str) -> None:
        """Send it back into the queue, where it waits until it is released."""
        self._run(["scontrol", "requeuehold", name], self._environ, QUERY_TIMEOUT_S)

    def requeue(self, name: str) -> None:
        """Send one that has ended back into the queue."""
        self._run(["scontrol", "requeue", name], self._environ, QUERY_TIMEOUT_S)

    def release(self, name: str) -> None:
        """Let one that is held start again."""
        self._run(["scontrol", "release", name], self._environ, QUERY_TIMEOUT_S)
