"""A small cluster with slurm-gpuweb's application and a viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from lab.synthetic import SyntheticCluster
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.cluster.attention import Attention
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.state import PageState, make_state
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.viewer import Viewer
from tests.database.samples import FakeClock

OPERATOR = Viewer("carol", 1000, operator=True)
N_GPUS = 64


class Here:
    """The application; `viewer` is the requesting user, and `poll` reads a new state from the cluster."""

    def __init__(self, churn: float = 0.1) -> None:
        self.source = SyntheticCluster(N_GPUS, churn=churn)
        self.board = Board()
        self.attention = Attention()
        self.viewer = OPERATOR
        self.clock = FakeClock(self.source.now_s)
        self.app = make_app(RouteContext(self.board, lambda _: self.viewer, lambda: self.source, self.clock))

    def poll(self) -> PageState:
        before = self.board.state
        source = self.source
        seen = DatabaseState(
            cluster=source.cluster(),
            live=source.live(),
            live_s=source.now_s,
            reports=source.nodes(),
            reservations=source.reservations(),
            running=source.running(),
            verdicts=source.verdicts(),
        )
        self.attention.update(seen.live_s, seen)
        version = 1 if before is None else before.version + 1
        state = make_state(version, "lab", seen, source.racks, before, self.attention)
        self.board.show(state)
        return state

    def any_user(self) -> str:
        """Return a user with running jobs."""
        return next(job.user for job in self.source.cluster().jobs if job.state == "RUNNING")

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the answer of the application."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())
