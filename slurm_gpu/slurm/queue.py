"""The queue as counting needs it: one call of squeue, whatever the number of jobs.

`SlurmClient.jobs` tells much more of each job and takes two calls and far longer; what is asked each second
is asked here. Columns end with a random mark, so that nothing a user writes can forge one.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.commands import QUERY_TIMEOUT_S, CommandRunner, query_environment, run_command
from slurm_gpu.text.hostlist import count_tasks


class JobPhase(Enum):
    """Whether a job waits, holds resources, or has ended."""

    PENDING = "pending"
    RUNNING = "running"
    """Suspended jobs too: they keep their GPUs."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedJob:
    """A job in slurmctld's memory; an array whose tasks are not split off yet is one, with `n_tasks` > 1.

    The texts of what is asked for are as Slurm prints them, "" where there is none. Times are epoch seconds.
    """

    job_id: int
    user: str
    uid: int
    account: str
    qos: str
    partition: str
    """Of a pending job perhaps several, with commas."""
    phase: JobPhase
    n_tasks: int
    n_nodes: int
    """Of a pending job with a range of nodes the upper end."""
    n_cpus: int
    per_job: str
    per_node: str
    per_socket: str
    tres: str
    """What was allocated; of a job that never started the total that it asks for, with the fewest nodes."""
    exclusive: bool
    """Asked to have its nodes to itself."""
    submit_s: int | None
    start_s: int | None
    """Of a pending job, when Slurm expects it to start."""
    end_s: int | None
    """Of a job that has not ended, when its time limit ends it."""
    nodes: str
    admin_comment: str
    cpus_per_gpu: str = ""
    """As "gres:gpu:8"."""
    mib_per_gpu: str = ""
    """As "gres:gpu:6144"; without "gres", what Slurm gives where nothing is said."""
    per_task: str = ""
    """From 24.11 on CPUs too: "cpu=2,gres/gpu=1"."""
    is_suspended: bool = False
    """Whether it holds what it has and does nothing."""


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
)

# What a column shows of a job that asked to have its nodes to itself. Where there is `Exclusive` (in 26.05,
# not in 24.11), `OverSubscribe` says NO of other jobs too.
_WHOLE_NODES = {"OverSubscribe": "NO", "Exclusive": "NODE"}
# The squeue of 22.05 cannot be asked for its columns.
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
# No such number of nodes exists: Slurm's marks for "not said" and "no limit" lie above.
_UNLIMITED_NODES = 2**31


class QueueReader:
    """Asks squeue; of a job that did not change since the last answer, the same object is returned."""

    def __init__(
        self,
        run: CommandRunner = run_command,
        environ: Mapping[str, str] = os.environ,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._environ, self._wall = run, query_environment(environ), wall
        self._before: dict[str, CountedJob] = {}
        """By the row of the last answer."""
        self._whole_nodes: str | None = None
        """The column of _WHOLE_NODES to ask for, once known."""

    def read(self) -> list[CountedJob]:
        """All jobs that slurmctld knows; raises SlurmError when it does not answer."""
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
    """One text for each job, in which NULs, of which squeue prints none, part the columns."""
    columns = text.replace(mark, _GAP)
    n, n_columns = len(_COLUMNS), columns.count(_GAP)
    if n_columns % n or columns.rpartition(_GAP)[2].strip():
        raise SlurmError(f"squeue printed {n_columns} columns, not a multiple of {n}")
    rows = columns.split(f"{_GAP}\n")[:-1]
    if len(rows) * n == n_columns:
        return rows
    words = columns.split(_GAP)  # some column begins with the end of a line
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
            n_nodes=_number(value["NumNodes"]),  # 26.05 makes MaxNodes the number of tasks
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
        )
    except ValueError as error:
        raise SlurmError(f"squeue: job {value['JobID']}: {error}") from None


def _phase(state: str, end_s: int | None, now_s: float) -> JobPhase:
    # A job that was requeued is shown as completing until its nodes are clean, with an end yet to come.
    requeued = state == "COMPLETING" and (end_s is None or end_s > now_s)
    if state in _PENDING or requeued:
        return JobPhase.PENDING
    return (
        JobPhase.ENDED if state in _ENDED else JobPhase.RUNNING
    )  # what a later Slurm may add holds resources


def _text(value: str) -> str:
    return "" if value in _ABSENT else value


def _number(text: str) -> int:
    """A count of nodes or CPUs, the upper end of "2-4"; 0 where none is said."""
    digits = text.rpartition("-")[2]
    number = int(digits) if digits.isdigit() else 0
    return number if number < _UNLIMITED_NODES else 0


def _epoch(text: str) -> int | None:
    return int(text) if text.isdigit() and text != "0" else None


_OWN_WITHIN_S = 2.0


def read_own_jobs(
    run: CommandRunner = run_command, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The state of each of the caller's jobs, asked so that a keystroke can wait for it.

    By id: 17, 17_3 of an array's task; 17 where tasks still wait. Raises SlurmError.

    slurmctld looks up one user's jobs without a walk through the others'.
    """
    argv = ("squeue", "--me", "--noheader", "--format=%i %T")
    lines = run(argv, query_environment(environ), _OWN_WITHIN_S).splitlines()
    jobs = (line.partition(" ") for line in lines)
    return {job.partition("_[")[0]: state for job, _, state in jobs}
