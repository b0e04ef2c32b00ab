"""Implement SlurmClient with the commands scontrol, squeue and sacct, which every Slurm has."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm import sacct, scontrol, waiting
from slurm_gpu.slurm.client import (
    AccountingRun,
    QueuedJob,
    SlurmctldHost,
    SlurmNode,
    SlurmSettings,
    WaitingJob,
)
from slurm_gpu.slurm.runner import (
    ACCOUNTING_TIMEOUT_S,
    PING_TIMEOUT_S,
    QUERY_TIMEOUT_S,
    CommandRunner,
    Stream,
    in_one_piece,
    query_environment,
    run_command,
    stream_command,
)
from slurm_gpu.text.hostlist import compress

# Up to this number, jobs are requested one by one; for more jobs, a single call for all jobs puts less load
# on slurmctld.
_MAX_SINGLE_CALLS = 8

# 2100-01-01. Without an end, sacct leaves out jobs that become eligible later than now.
_FAR_S = 4102444800

# sacct refuses an epoch below a million; no Slurm is that old.
_EARLIEST_S = 86400 * 365

# Job ids per call of sacct or scontrol, well below the maximum length of a command line.
_BATCH = 500


class SlurmCommands:
    """The base class of clients that run Slurm's commands.

    The caller's environment does not affect the output of the commands. Methods of subclasses raise
    SlurmError on failure.
    """

    def __init__(self, run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ) -> None:
        self.run, self.environ = run, query_environment(environ)

    def _query(self, *argv: str) -> str:
        return self.run(argv, self.environ, QUERY_TIMEOUT_S)

    def _squeue(self, columns: Sequence[str], *which: str) -> list[list[str]]:
        """Return the rows that squeue prints. Each column ends with a mark that users cannot guess."""
        mark, n = _mark(), len(columns)
        form = ",".join(f"{name}:0{mark}" for name in columns)
        words = self._query("squeue", "--all", "--noheader", *which, f"--Format={form}").split(mark)
        if len(words) % n != 1:
            raise SlurmError(f"squeue printed {len(words) - 1} columns, not a multiple of {n}")
        return [words[at : at + n] for at in range(0, len(words) - 1, n)]


class CommandClient(SlurmCommands):
    """A SlurmClient that runs Slurm's own commands, of Slurm 22.05 and later."""

    def __init__(
        self,
        run: CommandRunner = run_command,
        environ: Mapping[str, str] = os.environ,
        stream: Stream | None = None,
    ) -> None:
        """Run sacct with `stream`. The default is `run`, or stream_command if `run` is run_command."""
        super().__init__(run, environ)
        self.stream = stream or (stream_command if run is run_command else in_one_piece(run))
        self._columns: list[str] | None = None
        self._reader = scontrol.JobReader()

    def version(self) -> str:
        """Return the version of the commands on this host, such as 22.05.8, without calling a daemon."""
        return self._query("scontrol", "--version").split()[-1]

    def ping(self) -> None:
        """Check that a slurmctld answers; other commands retry for half a minute if none does."""
        try:
            self.run(("scontrol", "ping"), self.environ, PING_TIMEOUT_S)
        except SlurmError as error:
            if " is UP" not in str(error):  # a backup controller may answer if the primary is down
                raise

    def controllers(self) -> Sequence[SlurmctldHost]:
        """Return the hosts of slurmctld, beginning with the primary. The first host that is up is active."""
        try:
            return scontrol.parse_ping(self.run(("scontrol", "ping"), self.environ, PING_TIMEOUT_S))
        except SlurmError as error:
            if found := scontrol.parse_ping(str(error)):  # scontrol fails if one of them is down
                return found
            raise

    def set_weight(self, nodes: Iterable[str], weight: int) -> None:
        """Set the Weight of nodes in one call. The caller must be root or SlurmUser."""
        names = compress(nodes)
        if names:
            self._query("scontrol", "update", f"NodeName={names}", f"Weight={weight}")

    def waiting(self) -> Sequence[WaitingJob] | None:
        """Return the eligible jobs that are not held; None if PriorityType has no factors."""
        try:
            factors = self._query(*waiting.SPRIO)
        except SlurmError as error:
            if waiting.has_no_factors(error):
                return None
            raise
        # squeue runs last, so that a job in both outputs is still waiting.
        return list(waiting.parse_waiting(self._query(*waiting.SQUEUE), factors))

    def set_site_factor(self, job_ids: Iterable[int], points: int) -> None:
        """Set the points that Slurm adds to the priority of jobs. The caller must be root.

        An error for one job does not affect the others.
        """
        ids = sorted(set(job_ids))
        failed: SlurmError | None = None
        for batch in (ids[n : n + _BATCH] for n in range(0, len(ids), _BATCH)):
            try:
                self._query(
                    "scontrol", "update", f"JobId={','.join(map(str, batch))}", f"SiteFactor={points}"
                )
            except SlurmError as error:
                failed = error
        if failed is not None:
            raise failed

    def settings(self) -> SlurmSettings:
        """Return the running configuration of slurmctld."""
        return scontrol.parse_config(self._query("scontrol", "show", "config"))

    def nodes(self) -> Sequence[SlurmNode]:
        """Return all nodes, in slurmctld's order."""
        return scontrol.parse_nodes(self._query("scontrol", "--all", "--details", "show", "node"))

    def jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        """Return all jobs in slurmctld's memory, or only those with these raw ids."""
        wanted = None if job_ids is None else sorted(set(job_ids))
        if wanted is not None and not wanted:
            return []
        labels = self._labels()
        if wanted is not None:
            labels = {job_id: labels[job_id] for job_id in wanted if job_id in labels}
            if len(labels) <= _MAX_SINGLE_CALLS:
                return self._read_singly(labels)
        text = self._query("scontrol", "--all", "--details", "show", "job")
        parse = self._reader.parse_jobs if wanted is None else scontrol.parse_jobs
        jobs, uncertain = parse(text, labels)
        return [*jobs, *self._read_singly({job_id: labels[job_id] for job_id in sorted(uncertain)})]

    def accounting(
        self, since_s: int, until_s: int | None = None, job_ids: Iterable[int] | None = None
    ) -> Iterator[AccountingRun]:
        """Return the runs of all users that were pending, running or ended within [since, until]."""
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
        output = self.stream(argv, self.environ, ACCOUNTING_TIMEOUT_S)
        try:
            with closing(output) as pieces:
                yield from sacct.parse_rows(pieces, columns, mark)
        except SlurmError as error:
            if "accounting storage is disabled" not in str(error):
                raise

    def _labels(self) -> dict[int, scontrol.JobTexts]:
        """Return the name and the AdminComment of all jobs, by raw ID."""
        return {
            int(job_id): scontrol.JobTexts(name, "" if comment == "(null)" else comment)
            for job_id, name, comment in self._squeue(("JobID", "Name", "admin_comment"), "--states=all")
        }

    def _read_singly(self, labels: Mapping[int, scontrol.JobTexts]) -> list[QueuedJob]:
        jobs = []
        for job_id, label in labels.items():
            try:
                text = self._query("scontrol", "--all", "--details", "show", "job", str(job_id))
            except SlurmError as error:
                if "Invalid job id" in str(error):
                    continue  # slurmctld has purged the job since
                raise
            job = scontrol.parse_single_job(text, job_id, label)
            if job is not None:
                jobs.append(job)
        return jobs


class RunSubsetClient(CommandClient):
    """Reads the runs of one QOS, or all preempted runs, from Slurm's accounting."""

    def of_qos(self, qos: str, since_s: int) -> list[AccountingRun]:
        """Return the runs of all users in a QOS that were pending, running or ended since `since_s`."""
        return self._runs(f"--qos={qos}", f"--starttime=uts{since_s}")

    def preempted(self, since_s: int, until_s: int) -> list[AccountingRun]:
        """Return the runs that ended by preemption within [since, until]."""
        found = self._runs("--state=PREEMPTED", f"--starttime=uts{since_s}", f"--endtime=uts{until_s}")
        return [one for one in found if one.end_s is not None and since_s <= one.end_s <= until_s]

    def _runs(self, *which: str) -> list[AccountingRun]:
        return list(self._rows(sacct.columns(""), which))


def _mark() -> str:
    """Return a random word that no user can have used in a job's name or comment."""
    return f"<{secrets.token_hex(8)}>"
