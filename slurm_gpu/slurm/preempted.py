"""Runs in one QOS, and runs that were preempted, from Slurm's accounting: few, asked for by themselves."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from slurm_gpu.slurm import sacct
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.commands import ACCOUNTING_TIMEOUT_S, CommandRunner, query_environment, run_command


class FewRuns:
    """Asks sacct; each method raises SlurmError, and yields nothing where Slurm has no accounting."""

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._environ = run, query_environment(environ)

    def of_qos(self, qos: str, since_s: int) -> list[AccountingRun]:
        """Runs of all users in it that were pending, running or ended since then."""
        return self._rows(f"--qos={qos}", f"--starttime=uts{since_s}")

    def preempted(self, since_s: int, until_s: int) -> list[AccountingRun]:
        """Runs that ended by preemption within [since, until]."""
        period = (f"--starttime=uts{since_s}", f"--endtime=uts{until_s}")
        found = self._rows("--state=PREEMPTED", *period)
        return [one for one in found if one.end_s is not None and since_s <= one.end_s <= until_s]

    def _rows(self, *which: str) -> list[AccountingRun]:
        mark, names = f"<{secrets.token_hex(8)}>", sacct.columns("")
        argv = ["sacct", "--allusers", "--allocations", "--duplicates", "--noconvert", "--noheader"]
        argv += ["--parsable", f"--delimiter={mark}", f"--format={','.join(names)}", *which]
        text = self._run(argv, self._environ, ACCOUNTING_TIMEOUT_S)
        return list(sacct.parse_rows([text], names, mark))
