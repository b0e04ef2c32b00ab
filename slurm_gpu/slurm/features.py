"""Constraints of pending jobs: reading them, and writing them as root or SlurmUser."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import QUERY_TIMEOUT_S, CommandRunner, query_environment, run_command

_COLUMNS = ("JobID", "Feature", "Reason")
_AT_ONCE = 200
"""Jobs in one call of scontrol: slurmctld is held up for a tenth of a second."""


@dataclass(frozen=True, slots=True)
class ConstrainedJob:
    """A pending job, or an array whose tasks are not split off yet."""

    job_id: int
    features: str
    """What --constraint says; "" for nothing."""
    reason: str
    """Why it waits, as squeue prints it: Resources, Priority, ReqNodeNotAvail …"""


class FeatureClient:
    """Asks squeue, and changes jobs with scontrol; each method raises SlurmError."""

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._environ = run, query_environment(environ)

    def pending(self, job_ids: Collection[int]) -> list[ConstrainedJob]:
        """Those of these jobs that wait."""
        mark = f"<{secrets.token_hex(8)}>"
        columns = ",".join(f"{name}:0{mark}" for name in _COLUMNS)
        argv = ["squeue", "--all", "--noheader", "--states=PENDING", f"--Format={columns}"]
        words = self._run(argv, self._environ, QUERY_TIMEOUT_S).split(mark)
        n = len(_COLUMNS)
        if len(words) % n != 1:
            raise SlurmError(f"squeue printed {len(words) - 1} columns, not a multiple of {n}")
        rows = zip(words[0:-1:n], words[1::n], words[2::n], strict=True)
        return [
            ConstrainedJob(job_id, "" if features == "(null)" else features, reason)
            for number, features, reason in rows
            if (job_id := int(number)) in job_ids
        ]

    def write(self, job_ids: Sequence[int], features: str) -> None:
        """Give these jobs this constraint in place of theirs; their places in the queue stay.

        Where slurmctld refuses some, such as one that has started meanwhile, the others are changed all the
        same.
        """
        failed: list[SlurmError] = []
        for first in range(0, len(job_ids), _AT_ONCE):
            ids = ",".join(map(str, job_ids[first : first + _AT_ONCE]))
            try:
                self._run(
                    ["scontrol", "update", f"JobId={ids}", f"Features={features}"],
                    self._environ,
                    QUERY_TIMEOUT_S,
                )
            except SlurmError as error:
                failed.append(error)
        if failed:
            raise failed[0]
