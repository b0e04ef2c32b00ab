"""Which jobs the caller has in Slurm now, asked so that a keystroke can wait for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from slurm_gpu.slurm.commands import CommandRunner, query_environment, run_command

_WITHIN_S = 2.0


def read_own_jobs(
    run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """State by id: 17, 17_3 of an array's task; 17 where tasks still wait. Raises SlurmError.

    slurmctld looks up one user's jobs without a walk through the others'.
    """
    argv = ("squeue", "--me", "--noheader", "--format=%i %T")
    lines = run(argv, query_environment(environ), _WITHIN_S).splitlines()
    jobs = (line.partition(" ") for line in lines)
    return {job.partition("_[")[0]: state for job, _, state in jobs}
