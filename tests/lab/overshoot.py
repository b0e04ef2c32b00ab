"""Submit against a limit while jobs are cancelled and slurmctld restarts, and count accepted jobs.

In a round, four submitters continue until the limit is reached. Then jobs are cancelled at random and `policy
apply` runs; then jobs are cancelled and slurmctld is restarted. Each step ends when the limit is reached.
Slurm enforces no limit of its own, so excess jobs stay in the queue.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lab.cluster import Lab
from lab.polling import wait_for

SUBMITTERS = 4
LOG_VARIABLE = "SLURM_GPU_TEST_OVERSHOOT_LOG"
"""The environment variable with the path of a log: one line of JSON per round."""

_HOLD_S = 2.5  # longer than the script remembers an admission without a job
_FULL_DEADLINE_S = 60.0
_PENDING = ("--begin=now+1hour", "--wrap=true")
_RUNNING = ("--wrap=sleep 300",)


@dataclass(frozen=True)
class Request:
    """A submission and the amount of each task; the job name contains the amount, for counting the queue."""

    options: tuple[str, ...]
    each: int = 1
    tasks: int = 1

    @property
    def amount(self) -> int:
        """Return the amount of all tasks."""
        return self.each * self.tasks


@dataclass(frozen=True)
class Kind:
    """A limit, its subject, and the requests that are submitted against it."""

    name: str
    limit: int
    rule: str
    """The `per:` and `limits:` of policy.yaml."""
    requests: tuple[Request, ...]
    users: tuple[str, ...] = ("alice",)
    needs_snapshot: bool = False
    """Whether the limit is on GPU-hours, which only a snapshot contains."""

    @property
    def least(self) -> int:
        """Return the smallest request; if less than that is left of the limit, no job may be accepted."""
        return min(request.amount for request in self.requests)

    def policy(self, why: str) -> str:
        """Return a policy.yaml."""
        return (
            "version: 1\nmode: enforce\n"
            "groups: {vision: {accounts: [vision]}}\n"
            f'rules: [{{id: {self.name}, for: vision, why: "{why}", {self.rule}}}]\n'
        )

    def amount_of(self, decision: dict[str, str]) -> int:
        """Return the amount in a line of decisions.log."""
        if self.name == "hours":
            committed = dict(one.split(":", 1) for one in decision["committed"].split(","))
            return round(float(committed["gpu_h"]))
        return int(decision["mgpu"]) // 1000 if self.name == "gpus" else int(decision["tasks"])


KINDS = (
    Kind("jobs", 5, "per: user, limits: {jobs_total: 5}", (Request(()),)),
    Kind(
        "gpus",
        7,
        "per: group, limits: {gpus_total: 7}",
        (
            Request(("--gpus=1",), each=1),
            Request(("--gres=gpu:2",), each=2),
            Request(("--gpus=a100:3",), each=3),
            Request(("--nodes=2", "--gpus-per-node=1"), each=2),
        ),
        users=("alice", "carol"),
    ),
    Kind(
        "arrays",
        9,
        "per: user, limits: {jobs_total: 9}",
        (
            Request(("--array=0-1",), tasks=2),
            Request(("--array=0-4:2%1",), tasks=3),
            Request(("--array=1,5,7-8",), tasks=4),
        ),
    ),
    Kind(
        "accounts",
        6,
        "per: account, limits: {jobs_total: 6}",
        (Request(()), Request(("--array=0-1",), tasks=2)),
        users=("alice", "carol"),
    ),
    # One job of eight hours fits in a budget of ten.
    Kind(
        "hours",
        10,
        "per: group, hard: true, on_error: deny, limits: {gpu_hours: {month: 10}}",
        (Request(("--gpus=1", "--time=8:00:00"), each=8),),
        users=("alice", "carol"),
        needs_snapshot=True,
    ),
)


@dataclass
class Round:
    """The result of one round."""

    kind: str
    counted_by: str
    number: int
    limit: int
    most: int = 0
    """The largest amount seen in the queue."""
    judged: int = 0
    """The number of accepted and refused submissions."""
    refused_with_room: int = 0
    """The number of refusals below the limit, because jobs had ended only moments before."""
    room_unused_s: float = 0.0
    """The longest time until a released amount was used."""
    seconds: float = 0.0

    @property
    def overshoot(self) -> int:
        """Return the amount by which the limit was exceeded."""
        return max(self.most - self.limit, 0)

    def __str__(self) -> str:
        return (
            f"{self.kind} by {self.counted_by}, round {self.number}: {self.most} of {self.limit} let in, "
            f"{self.judged} judged, {self.refused_with_room} refused with room "
            f"(for {self.room_unused_s:.1f} s at most), {self.seconds:.0f} s"
        )

    def log(self) -> None:
        """Append the round to the file that LOG_VARIABLE names."""
        if path := os.environ.get(LOG_VARIABLE):
            with Path(path).open("a") as file:
                file.write(json.dumps(asdict(self) | {"overshoot": self.overshoot}) + "\n")


class Submitters:
    """Processes that submit until they are stopped, each starting with another request."""

    def __init__(self, lab: Lab, kind: Kind, *, running: bool) -> None:
        self._processes = [self._start(lab, kind, number, running) for number in range(SUBMITTERS)]

    @staticmethod
    def _start(lab: Lab, kind: Kind, number: int, running: bool) -> subprocess.Popen[bytes]:
        first = number % len(kind.requests)
        commands = [
            shlex.join(
                [
                    *("sbatch", "--time=10", "--output=/dev/null", f"--job-name={request.each}"),
                    *request.options,
                    *(_RUNNING if running else _PENDING),
                ]
            )
            + " >/dev/null 2>&1"
            for request in (*kind.requests[first:], *kind.requests[:first])
        ]
        user = kind.users[number % len(kind.users)]
        return subprocess.Popen(
            [
                *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"),
                *("sh", "-c", f"while :; do {'; '.join(commands)}; done"),
            ],
            env=lab.environment_of(user),
            cwd="/",
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Submitters:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and its sbatch
        for process in self._processes:
            process.wait()


@dataclass
class Play:
    """A round in progress."""

    lab: Lab
    kind: Kind
    counted_by: str
    number: int
    policy: Path
    random: random.Random = field(init=False)
    round: Round = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.number)
        self.round = Round(self.kind.name, self.counted_by, self.number, self.kind.limit)

    def run(self) -> Round:
        """Run the round, and leave the queue as it is after the last step."""
        start = time.monotonic()
        self.apply()
        with Submitters(self.lab, self.kind, running=self.number % 2 == 0):
            self.until_full()
            self.free_jobs_and(self.apply)
            self.free_jobs_and(self.lab.daemons["slurmctld"].restart)
            if self.counted_by == "snapshot":
                self.free_jobs_and(self.outlive_slurm_gpuctld)
            self.observe(_HOLD_S)
        self.round.seconds = time.monotonic() - start
        return self.round

    # Steps

    def apply(self) -> None:
        """Apply the policy, each time with a different text, to generate a different script."""
        self.policy.write_text(self.kind.policy(f"Round {self.number} at {time.time():.3f}."))
        self.lab.run_as("root", ["slurm-gpu", "policy", "apply", str(self.policy)])

    def outlive_slurm_gpuctld(self) -> None:
        """Kill slurm-gpuctld; its last snapshot, with the limit reached, is used for half a minute."""
        self.lab.daemons["slurm-gpuctld"].kill9()
        self.observe(3.0)
        self.lab.daemons["slurm-gpuctld"].start()

    def free_jobs_and(self, disturb: Callable[[], None]) -> None:
        """Cancel some jobs, call a function, and wait until the limit is reached."""
        ids = [job for job, _ in self._queue()]
        self.lab.run_as("root", ["scancel", *self.random.sample(ids, self.random.randint(1, len(ids)))])
        begin, log = time.monotonic(), self._log.stat().st_size
        room = self.kind.limit - self.used()
        time.sleep(self.random.random() * 0.05)
        disturb()
        self.until_full()
        self.round.room_unused_s = max(self.round.room_unused_s, time.monotonic() - begin)
        self._count_decisions(log, room)

    # Observation

    @property
    def _log(self) -> Path:
        return self.lab.layout.controller_run / "decisions.log"

    def _queue(self) -> list[tuple[str, int]]:
        """Return id and amount of running and pending jobs, each array task separately."""
        states = "--states=PENDING,RUNNING,SUSPENDED"  # a cancelled job may still be completing
        users = f"--user={','.join(self.kind.users)}"
        shown = self.lab.output(["squeue", "--noheader", "--array", users, states, "--format=%i %j"])
        return [(line.split()[0], int(line.split()[1])) for line in shown.splitlines()]

    def used(self) -> int:
        """Return the jobs in the queue."""
        used = sum(amount for _, amount in self._queue())
        self.round.most = max(self.round.most, used)
        return used

    def until_full(self) -> None:
        """Wait until even the smallest request exceeds the limit."""
        wait_for(
            lambda: self.kind.limit - self.used() < self.kind.least,
            _FULL_DEADLINE_S,
            f"the limit of {self.kind.limit} {self.kind.name} is reached",
        )

    def observe(self, seconds: float) -> None:
        """Observe for `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.used()

    def _count_decisions(self, offset: int, room: int) -> None:
        """Read the decisions since `offset` of the log, given the amount left at that time."""
        with self._log.open() as file:
            file.seek(offset)
            lines = file.read().splitlines()
        for line in lines:
            words = line.split()
            amount = self.kind.amount_of(dict(word.split("=", 1) for word in words if "=" in word))
            self.round.judged += 1
            if words[3] == "allow":
                room -= amount
            elif amount <= room:
                self.round.refused_with_room += 1
