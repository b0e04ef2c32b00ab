"""A simulated cluster with used and idle jobs, slurm-gpudbd, and channels; a minute takes no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_gpu.config.site import SiteConfig
from slurm_gpu.controller.duty import QueueView
from slurm_gpu.controller.notices.cancellations import Cancellations
from slurm_gpu.controller.notices.poll import ClusterPoll, poll_database
from slurm_gpu.controller.notices.reconciler import NoticeController
from slurm_gpu.controller.reporting.audit_reporter import AuditReporter
from slurm_gpu.errors import DatabaseError, NotFoundError, SlurmError
from slurm_gpu.notices.sending import Message, NotSentError
from slurm_gpu.notices.settings import Settings
from slurm_gpu.policy.lua.installed import CancelIdleInForce, PolicyInForce
from slurm_gpu.slurm.job_changes import JobTerminationClient
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.running import RecentXid, Running, RunningUse
from slurm_gpu.wire.answers.runs import AuditEvent, NodeReport
from slurm_gpu.wire.answers.verdicts import JobVerdict, Verdicts
from tests.controller.fakes import NOON_S, Clock, Slurm, make_job
from tests.monitor import clusters

RULE = CancelIdleInForce("enforce", "cancel", (1800, 3600), 7200, "Others wait.")
# Maximum age of a live value.
STEP_S = 30.0
SETTINGS = """\
mode: send
mail: {from: gpu-help@b.edu, to: "{user}@b.edu"}
"""


@dataclass
class WorldJob:
    """One job and its GPUs."""

    job_id: int
    user: str = "alice"
    id: str = ""
    start_s: int = NOON_S
    n_gpus: float = 2
    seen_gpus: int = 2
    """Number of the job's GPUs that are reported."""
    util_pct: float | None = 0.0
    used: bool | None = False
    coverage: float = 1.0
    """Coverage of the job's records."""
    state: str = "RUNNING"
    name: str = "train"


@dataclass
class World:
    directory: Path
    clock: Clock = field(default_factory=Clock)
    jobs: dict[int, WorldJob] = field(default_factory=dict)
    rule: CancelIdleInForce | None = RULE
    in_charge: bool = True
    is_down: bool = False
    """Whether slurm-gpudbd is down."""
    refuses: bool = False
    """Whether Slurm refuses to end a job."""
    mail_is_down: bool = False
    has_live: bool = True

    def __post_init__(self) -> None:
        self.slurm = Slurm(Clock(), str(self.directory / "slurm.conf"))
        self.sent: list[tuple[float, Message]] = []
        self.commands: list[tuple[float, list[str]]] = []
        self.acts: dict[str, AuditEvent] = {}
        self.xids: list[RecentXid] = []
        self.found: list[JobVerdict] | None = []
        """Verdicts of slurm-gpudbd; None if it is too old to provide verdicts."""
        self.settings = self.directory / "notices.yaml"
        self.settings.write_text(SETTINGS)
        self.start()

    def start(self) -> None:
        """Start another slurm-gpuctld with only the data on disk."""
        self._acts = AuditReporter(self.clock, self._record)
        ends = Cancellations("lab", JobTerminationClient(self._run, {}), self._acts, self.clock.wall)
        config = SiteConfig("lab")
        self.controller = NoticeController(
            config,
            self.settings,
            self.slurm,
            ends,
            self._poll,
            _at_once,
            self.directory,
            self.clock,
            self._channels,
        )

    def _channels(self, _: Settings) -> Mapping[str, World]:
        return {"mail": self}

    # Answers of slurm-gpudbd

    def _poll(self) -> ClusterPoll:
        if self.is_down:
            raise DatabaseError("no answer")
        return poll_database(self, self.clock.wall)

    def cluster(self) -> ClusterState:
        return clusters.cluster(
            [clusters.node("n1", *(clusters.holds(job_id) for job_id in self.jobs))],
            [
                clusters.job(
                    one.job_id,
                    one.user,
                    id=one.id or str(one.job_id),
                    start_s=one.start_s,
                    name=one.name,
                    n_gpus=float(one.n_gpus),
                    state=one.state,
                )
                for one in self.jobs.values()
            ],
        )

    def live(self, refresh: str = "all") -> dict[str, Live]:
        if not self.has_live:
            return {}
        devices = {
            f"GPU-{one.job_id}-{number}": LiveDevice(util_pct=one.util_pct, jobs=(one.job_id,))
            for one in self.jobs.values()
            for number in range(one.seen_gpus)
        }
        return {"n1": Live(at_s=self.clock.wall(), devices=devices)}

    def running(self) -> Running:
        uses = [
            RunningUse(
                job_id=one.job_id,
                start_s=one.start_s,
                coverage=one.coverage,
                used=one.used,
                util_p25=0.0,
                util_p95=0.0,
                mem_p25=None,
                mem_p95=None,
            )
            for one in self.jobs.values()
        ]
        return Running(as_of_s=self.clock.wall(), jobs=uses, xids=self.xids)

    def verdicts(self) -> Verdicts:
        if self.found is None:
            raise NotFoundError("there is no such page")
        return Verdicts(as_of_s=self.clock.wall(), watched=1, verdicts=self.found, suspects=())

    def nodes(self) -> list[NodeReport]:
        return []

    # Actions

    def send(self, message: Message) -> None:
        if self.mail_is_down:
            raise NotSentError("connection refused")
        self.sent.append((self.clock.wall(), message))

    def _run(self, argv: Sequence[str], environ: object, timeout_s: float) -> str:
        self.commands.append((self.clock.wall(), [*argv]))
        if self.refuses:
            raise SlurmError("scancel: error: Kill job error: Invalid job id")
        for job_id in [one.job_id for one in self.jobs.values() if argv[-1] in (one.id, str(one.job_id))]:
            del self.jobs[job_id]
        return ""

    def _record(self, acts: list[AuditEvent]) -> None:
        self.acts |= {act.id: act for act in acts}

    # Time

    def hold(self, job_id: int, **changes: Any) -> WorldJob:
        self.jobs[job_id] = WorldJob(job_id, start_s=int(self.clock.wall()), **changes)
        return self.jobs[job_id]

    def run_cycle(self) -> None:
        counted = [make_job(one.job_id, user=one.user, start_s=one.start_s) for one in self.jobs.values()]
        for _ in range(3):  # poll, handle the answer, finish sending
            policy = PolicyInForce(cancel_idle=self.rule)
            self.controller.run(
                QueueView(answered=True, in_charge=self.in_charge, jobs=counted, policy=policy)
            )

    def run_for(self, minutes: float) -> None:
        until_s = self.clock.wall() + 60 * minutes
        while self.clock.wall() < until_s:
            self.clock.advance(STEP_S)
            self.run_cycle()
        self._acts.close()

    def reported(self, user: str = "alice") -> list[tuple[int, str]]:
        """Return (minutes since the start, kind) of each notice to a user."""
        return [(round((at_s - NOON_S) / 60), one.kind) for at_s, one in self.sent if one.user == user]

    def ended(self) -> list[tuple[int, list[str]]]:
        return [(round((at_s - NOON_S) / 60), argv) for at_s, argv in self.commands]


def _at_once(task: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(task())
    except Exception as error:
        future.set_exception(error)
    return future
