"""Run slurm-gpuweb with a synthetic cluster, for viewing the page and for bench/monitor.py.

    python bench/monitor_server.py --gpus 10240 --port 8080

All requests are signed in as an operator, or as --user; the server listens on this host only. With
--sessions, a request needs the cookie that the server prints, and is verified as by slurm-gpuweb.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import cast

from starlette.types import ASGIApp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.arguments import number, seconds
from lab.synthetic import SyntheticCluster, uid_of
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.value_types import Address
from slurm_gpu.http.server import run
from slurm_gpu.http.sockets import listen_tcp
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.cluster.attention import Attention
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.database_state import DatabaseState
from slurm_gpu.monitor.cluster.state import PageState, make_state
from slurm_gpu.monitor.http.server import make_server
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.signin.guard import Cookie, Guard
from slurm_gpu.monitor.signin.rights import Right, Rights
from slurm_gpu.monitor.signin.sessions import Sessions, session_key
from slurm_gpu.monitor.viewer import Viewer, ViewerOf, viewer_of


class Synthetic:
    """A synthetic cluster that changes over time, and its states."""

    def __init__(self, n_gpus: int, seed: int = 1) -> None:
        self.source = SyntheticCluster(n_gpus, seed, now_s=time.time())
        self._reports = self.source.nodes()
        self._attention = Attention()
        self.state: PageState | None = None

    def poll(self, step_s: float = 5.0) -> PageState:
        """Return the next state."""
        if self.state is not None:
            self.source.step(step_s)
        source = self.source
        seen = DatabaseState(
            cluster=source.cluster(),
            live=source.live(),
            live_s=source.now_s,
            reports=self._reports,
            reservations=source.reservations(),
            running=source.running(),
        )
        version = int(source.now_s * 1000) if self.state is None else self.state.version + 1
        self._attention.update(seen.live_s, seen)
        self.state = make_state(version, "synthetic", seen, source.racks, self.state, self._attention)
        return self.state


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=number(8), default=10_240)
    parser.add_argument("--port", type=number(0, 65535), default=8080, help="0 for any free port")
    parser.add_argument("--every", type=seconds(0.1), default=5.0, help="seconds between states")
    parser.add_argument("--user", help="the signed-in user (default: an operator)")
    parser.add_argument("--sessions", action="store_true", help="reject requests without a session")
    parser.add_argument("--seed", type=number(0), default=1)
    options = parser.parse_args()
    uid = 1000 if options.user is None else uid_of(options.user)
    viewer = Viewer(options.user or "operator", uid, operator=options.user is None, by_link=options.sessions)
    board, synthetic = Board(), Synthetic(options.gpus, options.seed)
    board.show(synthetic.poll())
    clock = SystemClock()
    who: ViewerOf = viewer_of if options.sessions else lambda _: viewer
    # Synthetic has the methods of the client that the page calls.
    source = cast(DatabaseClient, synthetic.source)
    app: ASGIApp = make_app(RouteContext(board, who, lambda: source, clock))
    cookies = []
    if options.sessions:
        sessions, cookie = Sessions(session_key(None), clock.wall), Cookie.of("http://127.0.0.1")
        rights = Rights(lambda _: Right(viewer.uid, viewer.operator), clock.monotonic)
        app = Guard(app, sessions, cookie, rights, None)
        cookies.append(f"{cookie.name}={sessions.seal(sessions.begin(viewer.user, uid))}")
    asyncio.run(_serve(app, board, synthetic, options.port, options.every, cookies))


async def _serve(
    app: ASGIApp, board: Board, synthetic: Synthetic, port: int, every_s: float, cookies: list[str]
) -> None:

    async def live() -> None:
        while True:
            await asyncio.sleep(every_s)
            board.show(await asyncio.to_thread(synthetic.poll, every_s))

    living = asyncio.create_task(live())
    listener = listen_tcp(Address("127.0.0.1", port))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/", *cookies, sep="\n", flush=True)
    try:
        await run(make_server(app, board.stop), [listener])
    finally:
        living.cancel()


if __name__ == "__main__":
    main()
