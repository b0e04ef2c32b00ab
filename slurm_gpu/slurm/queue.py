"""Read the queue with a single call of squeue, in order to count GPUs.

`SlurmClient.jobs` returns more fields of each job, but requires two calls and takes far longer. Polls that
run every second therefore use this module. Columns end with a random mark, so that users cannot forge
columns.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.runner import QUERY_TIMEOUT_S, CommandRunner, query_environment, run_command
from slurm_gpu.text.hostlist import count_tasks
from slurm_gpu.text.units import parse_slurm_time


class JobPhase(Enum):
    """The phase of a job: pending, with an allocation, or ended."""

    PENDING = "pending"
    RUNNING = "running"
    """The job has an allocation. Suspended jobs are in this phase, because they keep their GPUs."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedJob:
    """A job in slurmctld's memory.

    Tasks of an array that are not split off are one job with `n_tasks` > 1. Texts of the request are stored
    as Slurm prints them, or as "" if absent. Times are epoch seconds.
    """

    job_id: int
    user: str
    uid: int
    account: str
    qos: str
    partition: str
    """The partition; a pending job can have several, separated by commas."""
    phase: JobPhase
    n_tasks: int
    n_nodes: int
    """The number of nodes; the upper end of the range if a pending job requests a range."""
    n_cpus: int
    per_job: str
    per_node: str
    per_socket: str
    tres: str
    """The allocation or, if the job never started, the request for the smallest allowed number of nodes."""
    exclusive: bool
    """Whether the job requested exclusive use of its nodes."""
    submit_s: int | None
    start_s: int | None
    """The start time; for a pending job, the start that Slurm expects."""
    end_s: int | None
    """The end time; for a job that has not ended, the end of its time limit."""
    nodes: str
    admin_comment: str
    cpus_per_gpu: str = ""
    """CpusPerTres, such as "gres:gpu:8"."""
    mib_per_gpu: str = ""
    """MemPerTres, such as "gres:gpu:6144"; a default that Slurm sets lacks "gres:"."""
    per_task: str = ""
    """The TRES per task; since 24.11, they include CPUs: "cpu=2,gres/gpu=1"."""
    is_suspended: bool = False
    limit_s: float | None = None
    """The time limit, infinite if there is none; None if the partition determines it."""
    name: str = ""
    is_array: bool = False
    """Whether the job is an array or a task of one."""


_COLUMNS = (
    "JobID",
    "ArrayTaskID",
    "UserName",
    "UserID",
    "Account",
    "QOS",
    "Partition",
    "State",
    "NumNodes",
    "NumCPUs",
    "tres-per-job",
    "tres-per-node",
    "tres-per-socket",
    "tres-alloc",
    "OverSubscribe",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "NodeList",
    "admin_comment",
    "cpus-per-tres",
    "mem-per-tres",
    "tres-per-task",
    "TimeLimit",
    "Name",
)

# The value of each column for a job with exclusive nodes. 26.05 has the column `Exclusive`, and its
# `OverSubscribe` is NO for other jobs too; 24.11 has no `Exclusive`.
_WHOLE_NODES = {"OverSubscribe": "NO", "Exclusive": "NODE"}
# squeue of 22.05 cannot list its columns.
_SURELY_LISTS_COLUMNS = (24, 11)

_PENDING = frozenset(
    {
        "EXPEDITING",
        "PENDING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "STAGE_OUT", "TIMEOUT"}
)
_SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
_GAP = "\0"
_ABSENT = frozenset({"N/A", "(null)", "n/a"})
# This limit exceeds any number of nodes. Slurm's values for "not set" and "no limit" are larger.
_UNLIMITED_NODES = 2**31


class QueueReader:
    """Reads jobs from squeue. A job that is unchanged since the last call is returned as the same object."""

    def __init__(
        self,
        run: CommandRunner = run_command,
        environ: Mapping[str, str] = os.environ,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._environ, self._wall = run, query_environment(environ), wall
        self._before: dict[str, CountedJob] = {}  # keys: rows of the last call
        self._whole_nodes: str | None = None  # the column of _WHOLE_NODES that this squeue has

    def read(self) -> list[CountedJob]:
        """Return all jobs in slurmctld's memory; raise SlurmError if it does not answer."""
        mark = f"<{secrets.token_hex(8)}>"
        if self._whole_nodes is None:
            self._whole_nodes = self._column_of_whole_nodes()
        names = (self._whole_nodes if name == "OverSubscribe" else name for name in _COLUMNS)
        columns = ",".join(f"{name}:0{mark}" for name in names)
        argv = ["squeue", "--all", "--noheader", "--states=all", f"--Format={columns}"]
        rows = _rows(self._run(argv, self._environ, QUERY_TIMEOUT_S), mark)
        before, now_s = self._before, self._wall()
        whole = _WHOLE_NODES[self._whole_nodes]
        self._before = {row: before[row] if row in before else _job(row, now_s, whole) for row in rows}
        return list(self._before.values())

    def _column_of_whole_nodes(self) -> str:
        def ask(question: str) -> str:
            return self._run(["squeue", question], self._environ, QUERY_TIMEOUT_S)

        version = re.search(r"(\d+)\.(\d+)", ask("--version"))
        if version is None or tuple(map(int, version.groups())) < _SURELY_LISTS_COLUMNS:
            return "OverSubscribe"
        return "Exclusive" if "Exclusive" in ask("--helpFormat").split() else "OverSubscribe"


def _rows(text: str, mark: str) -> list[str]:
    """Return one text for each job, with columns separated by NUL, which squeue never prints."""
    columns = text.replace(mark, _GAP)
    n, n_columns = len(_COLUMNS), columns.count(_GAP)
    if n_columns % n or columns.rpartition(_GAP)[2].strip():
        raise SlurmError(f"squeue printed {n_columns} columns, not a multiple of {n}")
    rows = columns.split(f"{_GAP}\n")[:-1]
    if len(rows) * n == n_columns:
        return rows
    words = columns.split(_GAP)  # some column begins with a newline
    return [
        _GAP.join((words[start].lstrip("\n"), *words[start + 1 : start + n]))
        for start in range(0, n_columns, n)
    ]


def _job(row: str, now_s: float, whole_nodes: str) -> CountedJob:
    value = dict(zip(_COLUMNS, row.split(_GAP), strict=True))
    try:
        task, end_s = _text(value["ArrayTaskID"]), _epoch(value["EndTime"])
        return CountedJob(
            job_id=int(value["JobID"]),
            user=value["UserName"],
            uid=int(value["UserID"]),
            account=_text(value["Account"]),
            qos=_text(value["QOS"]),
            partition=_text(value["Partition"]),
            phase=_phase(value["State"], end_s, now_s),
            n_tasks=count_tasks(task) if task and not task.isdigit() else 1,
            n_nodes=_number(value["NumNodes"]),  # squeue of 26.05 prints the number of tasks as MaxNodes
            n_cpus=_number(value["NumCPUs"]),
            per_job=_text(value["tres-per-job"]),
            per_node=_text(value["tres-per-node"]),
            per_socket=_text(value["tres-per-socket"]),
            tres=_text(value["tres-alloc"]),
            exclusive=value["OverSubscribe"] == whole_nodes,
            submit_s=_epoch(value["SubmitTime"]),
            start_s=_epoch(value["StartTime"]),
            end_s=end_s,
            nodes=_text(value["NodeList"]),
            admin_comment=_text(value["admin_comment"]),
            cpus_per_gpu=_text(value["cpus-per-tres"]),
            mib_per_gpu=_text(value["mem-per-tres"]),
            per_task=_text(value["tres-per-task"]),
            is_suspended=value["State"] in _SUSPENDED,
            limit_s=_limit(value["TimeLimit"]),
            name=value["Name"],
            is_array=task != "",
        )
    except ValueError as error:
        raise SlurmError(f"squeue: job {value['JobID']}: {error}") from None


def _phase(state: str, end_s: int | None, now_s: float) -> JobPhase:
    # Until its nodes are clean, a requeued job is COMPLETING and its end is in the future.
    requeued = state == "COMPLETING" and (end_s is None or end_s > now_s)
    if state in _PENDING or requeued:
        return JobPhase.PENDING
    # States that later versions of Slurm add count as running.
    return JobPhase.ENDED if state in _ENDED else JobPhase.RUNNING


def _text(value: str) -> str:
    return "" if value in _ABSENT else value


def _number(text: str) -> int:
    """Return a number of nodes or CPUs, or the upper end of a range such as "2-4"; 0 if it is not set."""
    digits = text.rpartition("-")[2]
    number = int(digits) if digits.isdigit() else 0
    return number if number < _UNLIMITED_NODES else 0


def _limit(text: str) -> float | None:
    if text == "UNLIMITED":
        return math.inf
    try:
        return parse_slurm_time(text)
    except ValueError:  # NOT_SET or Partition_Limit
        return None


def _epoch(text: str) -> int | None:
    return int(text) if text.isdigit() and text != "0" else None


_OWN_JOBS_TIMEOUT_S = 2.0


def read_own_jobs(run: CommandRunner) -> dict[str, str]:
    """Return the states of the caller's jobs; this is fast enough for shell completion.

    The keys are ids: 17 for a job or for the pending tasks of an array, and 17_3 for an array task. Raise
    SlurmError on failure.
    """
    # slurmctld finds the jobs of one user without reading the others.
    argv = ("squeue", "--me", "--noheader", "--format=%i %T")
    lines = run(argv, query_environment(os.environ), _OWN_JOBS_TIMEOUT_S).splitlines()
    jobs = (line.partition(" ") for line in lines)
    return {job.partition("_[")[0]: state for job, _, state in jobs}
