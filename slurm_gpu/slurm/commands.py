"""The command backend: SlurmClient over scontrol, squeue and sacct, which every Slurm has."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Protocol

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm import sacct, scontrol
from slurm_gpu.slurm.client import AccountingRun, QueuedJob, SlurmNode, SlurmSettings

PING_TIMEOUT_S = 5.0
QUERY_TIMEOUT_S = 60.0
ACCOUNTING_TIMEOUT_S = 600.0

_SINGLY = 8
"""Up to so many jobs are asked for one by one; for more, one call for all is kinder to slurmctld."""

_FAR_S = 4102444800
"""2100-01-01: without an end, sacct leaves out jobs that become eligible later than now."""

_EARLIEST_S = 86400 * 365
"""sacct refuses an epoch below a million; no Slurm is that old."""

_SHOWN_CHARACTERS = 80
"""Of a command in an error: enough to know it, not the whole list of columns."""

_BATCH = 500
"""Job ids per call of sacct, well below the longest command line."""

_ENVIRONMENT = {
    "SLURM_TIME_FORMAT": "%s",
    "SLURM_BITSTR_LEN": "0",  # array expressions in full, not cut at 64 characters
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
}
_FOREIGN = ("SACCT_", "SCONTROL_", "SQUEUE_", "SLURM_CLUSTERS", "SLURM_JOB_ID", "SLURM_FEDERATION")


def query_environment(environ: Mapping[str, str]) -> Mapping[str, str]:
    """The caller's environment, less what would change what Slurm's commands print, more what we rely on."""
    return {k: v for k, v in environ.items() if not k.startswith(_FOREIGN)} | _ENVIRONMENT


class Run(Protocol):
    """Runs a command and gives its standard output; raises SlurmError with command and stderr."""

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        """Run `argv` with exactly this environment."""


def run_command(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """Run a Slurm command for real."""
    command = shorten(" ".join(argv), _SHOWN_CHARACTERS, placeholder=" …")
    try:
        done = subprocess.run(
            argv, env=environ, timeout=timeout_s, capture_output=True, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not on the PATH; install Slurm's client commands") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"`{command}` gave no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise SlurmError(f"`{command}` cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")
        raise SlurmError(f"`{command}` failed ({done.returncode}): {said or 'it printed nothing'}")
    return done.stdout.decode("utf-8", "replace")


class CommandClient:
    """SlurmClient over Slurm's own commands, correct on 22.05 and later."""

    def __init__(self, run: Run = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self.run = run
        self.environ = query_environment(environ)
        self._columns: list[str] | None = None

    def version(self) -> str:
        """The version of the commands on this host, such as 22.05.8; asks no daemon."""
        return self._query("scontrol", "--version").split()[-1]

    def ping(self) -> None:
        """Return where a slurmctld answers; the others would try for half a minute where none does."""
        try:
            self.run(("scontrol", "ping"), self.environ, PING_TIMEOUT_S)
        except SlurmError as error:
            if " is UP" not in str(error):  # a backup controller may answer for a primary that is down
                raise

    def settings(self) -> SlurmSettings:
        """The configuration that slurmctld runs with."""
        return scontrol.parse_config(self._query("scontrol", "show", "config"))

    def nodes(self) -> Sequence[SlurmNode]:
        """All nodes, in slurmctld's order."""
        return scontrol.parse_nodes(self._query("scontrol", "--all", "--details", "show", "node"))

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        """Jobs in slurmctld's memory, all or the named raw ids."""
        wanted = None if job_ids is None else sorted(set(job_ids))
        if wanted is not None and not wanted:
            return []
        labels = self._labels()
        if wanted is not None:
            labels = {job_id: labels[job_id] for job_id in wanted if job_id in labels}
            if len(labels) <= _SINGLY:
                return self._singly(labels)
        jobs, uncertain = scontrol.parse_jobs(
            self._query("scontrol", "--all", "--details", "show", "job"), labels
        )
        return [*jobs, *self._singly({job_id: labels[job_id] for job_id in sorted(uncertain)})]

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        """Runs of all users that were pending, running or ended within [since, until], from slurmdbd."""
        wanted = None if job_ids is None else sorted(set(job_ids))
        if self._columns is None:
            self._columns = sacct.columns(self._query("sacct", "--helpformat"))
        period = [
            f"--starttime=uts{max(_EARLIEST_S, since_s)}",
            f"--endtime=uts{_FAR_S if until_s is None else until_s}",
        ]
        if wanted is None:
            yield from self._rows(self._columns, period)
        else:
            for batch in (wanted[n : n + _BATCH] for n in range(0, len(wanted), _BATCH)):
                yield from self._rows(self._columns, [*period, f"--jobs={','.join(map(str, batch))}"])

    def _rows(self, columns: Sequence[str], which: Iterable[str]) -> Iterator[AccountingRun]:
        mark = _mark()
        argv = ["sacct", "--allusers", "--allocations", "--duplicates", "--noconvert", "--noheader"]
        argv += ["--parsable", f"--delimiter={mark}", f"--format={','.join(columns)}", *which]
        try:
            text = self.run(argv, self.environ, ACCOUNTING_TIMEOUT_S)
        except SlurmError as error:
            if "accounting storage is disabled" in str(error):
                return iter(())
            raise
        return sacct.parse_rows(text, columns, mark)

    def _query(self, *argv: str) -> str:
        return self.run(argv, self.environ, QUERY_TIMEOUT_S)

    def _labels(self) -> dict[int, scontrol.Label]:
        mark = _mark()
        columns = ",".join(f"{column}:0{mark}" for column in scontrol.LABEL_COLUMNS)
        text = self._query("squeue", "--all", "--noheader", "--states=all", f"--Format={columns}")
        return scontrol.parse_labels(text, mark)

    def _singly(self, labels: Mapping[int, scontrol.Label]) -> list[QueuedJob]:
        jobs = []
        for job_id, label in labels.items():
            try:
                text = self._query("scontrol", "--all", "--details", "show", "job", str(job_id))
            except SlurmError as error:
                if "Invalid job id" in str(error):
                    continue  # slurmctld has forgotten it meanwhile
                raise
            job = scontrol.parse_single_job(text, job_id, label)
            if job is not None:
                jobs.append(job)
        return jobs


def _mark() -> str:
    """A word that no user can have put into a job's name or comment beforehand."""
    return f"<{secrets.token_hex(8)}>"
