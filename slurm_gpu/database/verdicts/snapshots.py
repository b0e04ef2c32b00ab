"""Read and write the data of the watch: slurm-gpudbd's memory, slurmctld's queue and the database."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection

from slurm_gpu.alerts.suspects import Statement
from slurm_gpu.clock import Clock
from slurm_gpu.database.accounting.slurm_view import SlurmView
from slurm_gpu.database.live.host_minutes import alone_since
from slurm_gpu.database.live.memory import LiveState
from slurm_gpu.database.queries.run_detail import node_reports
from slurm_gpu.database.queries.run_queries import find_job, find_windows
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.verdicts.job_series import groups_of, series_of_windows
from slurm_gpu.database.verdicts.purpose import adjusted
from slurm_gpu.database.verdicts.store import StoredVerdict, close_left, statements, store_verdict
from slurm_gpu.diagnose.peers import Groups
from slurm_gpu.diagnose.series import Series
from slurm_gpu.diagnose.verdict import Verdict
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.wire import DeviceFacts, Live
from slurm_gpu.wire.answers.node_minutes import NodeMinutes
from slurm_gpu.wire.answers.runs import Run

FACTS_EACH_S = 600.0
_FACTS_AGAIN_S = 60.0
_APP_AGAIN_S = 60.0
_OURSELVES = Caller(0, None, sees_all=True, writes=False)


class VerdictSnapshots:
    """Reads and writes data for the watch; `ask` requests a job's window from a node."""

    def __init__(
        self,
        cluster: str,
        database: Database,
        view: SlurmView,
        memory: LiveState,
        clock: Clock,
        ask: Callable[[str, int], None],
    ) -> None:
        self._cluster, self._database, self._view = cluster, database, view
        self._memory, self._clock, self._ask = memory, clock, ask
        self._facts: Mapping[tuple[str, str], DeviceFacts] = {}
        self._facts_s = -math.inf
        self._apps: dict[tuple[int, int | None], tuple[float, Run | None]] = {}

    def wall(self) -> float:
        """Return the wall-clock time."""
        return self._clock.wall()

    def queue(self) -> Mapping[int, QueuedJob] | None:
        """Return slurmctld's jobs by ID, or None if slurmctld has never answered."""
        queue = self._view.queue()
        return None if queue is None else queue.by_id

    def need_live(self, nodes: Collection[str]) -> None:
        """Request that these nodes send live values every 10 s."""
        self._memory.needs.ask(nodes)

    def live(self) -> Mapping[str, Live]:
        """Return the last live values of each node."""
        return self._memory.board.values()

    def facts(self, node: str, uuid: str) -> DeviceFacts | None:
        """Return the cached facts of a GPU; an unknown GPU causes the cache to be renewed sooner."""
        found = self._facts.get((node, uuid))
        age_s = self._clock.monotonic() - self._facts_s
        if age_s >= FACTS_EACH_S or (found is None and age_s >= _FACTS_AGAIN_S):
            self._facts_s = self._clock.monotonic()
            with self._database.reading() as connection:
                reports = node_reports(connection, {})
            self._facts = {(report.node, item.uuid): item for report in reports for item in report.devices}
            found = self._facts.get((node, uuid))
        return found

    def index_of(self, node: str, uuid: str) -> int | None:
        """Return the index that the node's driver assigns to a GPU, or None if the GPU is unknown."""
        found = self._facts.get((node, uuid))
        return None if found is None else found.index

    def ask(self, job: QueuedJob) -> None:
        """Request windows from a job's nodes; a node sends them in its second shipment after the request."""
        self.need_live(job.nodes)
        for node in job.nodes:
            self._ask(node, job.job_id)

    def series(self, job: QueuedJob, *, take_part: bool) -> tuple[Series, Groups | None] | None:
        """Return the series of a job's windows and its groups of equal workers, as in `slurm-gpu diagnose`.

        Return None until all nodes of the job have sent windows. If `take_part` is true, the windows of one
        node are enough. Also return None while accounting does not contain the run.
        """
        now_s = self._clock.wall()
        with self._database.reading() as connection:
            found = find_windows(connection, self._cluster, job.label, _OURSELVES, now_s)
            windows = [item for item in found.windows if item.job_id == job.job_id]
            missing = [node for node, job_id in found.missing if job_id == job.job_id]
            if not windows or (missing and not take_part):
                return None
            run = self._run(connection, job, now_s)
        if run is None or not run.devices:
            return None
        nodes = job.nodes or None  # nodes that the job released are not missing
        series = series_of_windows(run, windows, nodes, self._hosts(job))
        return series, groups_of(run, None, series.workers)

    def _hosts(self, job: QueuedJob) -> Sequence[NodeMinutes]:
        queue = self.queue()
        since_s = None if queue is None else alone_since(job, queue)
        return () if since_s is None else self._memory.board.minutes(job.nodes, since_s)

    def adjusted(self, job: QueuedJob, verdict: Verdict) -> Verdict:
        """Return the verdict adjusted for the job's application, which is cached for _APP_AGAIN_S."""
        now_s, key = self._clock.wall(), (job.job_id, job.start_s)
        read_s, run = self._apps.get(key, (-math.inf, None))
        if not 0 <= now_s - read_s < _APP_AGAIN_S:
            with self._database.reading() as connection:
                run = self._run(connection, job, now_s)
            self._apps = {one: kept for one, kept in self._apps.items() if now_s - kept[0] < _APP_AGAIN_S}
            self._apps[key] = now_s, run
        return verdict if run is None else adjusted(verdict, run.app, run.app_field, job.state)

    def _run(self, connection: Connection, job: QueuedJob, now_s: float) -> Run | None:
        runs = find_job(connection, self._cluster, job.label, _OURSELVES, now_s).runs
        return next((run for run in runs if run.job_id == job.job_id and run.end_s is None), None)

    def store(self, found: StoredVerdict) -> None:
        """Store a verdict."""
        self._database.write(partial(store_verdict, cluster=self._cluster, found=found))

    def close_left(self) -> None:
        """Close the verdicts that an earlier watch left open."""
        self._database.write(partial(close_left, cluster=self._cluster))

    def statements(self, since_s: float) -> list[Statement]:
        """Return the evidence about GPUs since `since_s`."""
        with self._database.reading() as connection:
            return statements(connection, self._cluster, since_s)
