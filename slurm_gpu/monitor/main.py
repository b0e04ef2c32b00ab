"""slurm-gpuweb: show the whole cluster and every job, using data from slurm-gpudbd."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import slurm_gpu
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock, SystemClock
from slurm_gpu.config.node_groups import group_by_node
from slurm_gpu.config.site import load_config
from slurm_gpu.config.value_types import listen_option
from slurm_gpu.daemon.heap import giving_back
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.daemon.systemd import Notifier
from slurm_gpu.errors import OutsideError, exit_code_of
from slurm_gpu.http.server import run
from slurm_gpu.http.sockets import listen_tcp
from slurm_gpu.monitor.app import make_app
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.poller import Poller
from slurm_gpu.monitor.footer import FooterLinks
from slurm_gpu.monitor.http.server import make_server
from slurm_gpu.monitor.job.diagnosis import DiagnosisSettings
from slurm_gpu.monitor.routes import RouteContext
from slurm_gpu.monitor.settings import load_settings
from slurm_gpu.monitor.signin.assembly import SignIn
from slurm_gpu.monitor.viewer import viewer_of

log = logging.getLogger("slurm-gpuweb")

_BEAT_S = 1.0
# All requests of a poll together take less time than this, so a poll that takes longer is stuck.
_STUCK_S = 300.0
_TIMEOUT_S = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon and return the exit code."""
    options = make_parser().parse_args(argv)
    os.umask(0o077)
    log_to_stderr(for_people=options.foreground or options.once)
    for name in ("uvicorn", "httpx"):
        # By default, uvicorn and httpx log each request.
        logging.getLogger(name).setLevel(logging.ERROR)
    return exit_code_of("slurm-gpuweb", lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    config = load_config(options.config)
    settings = load_settings(options.web_config)
    address = settings.listen
    if options.listen is not None:
        address = listen_option(options.listen)
    notifier, clock, board = Notifier(os.environ), SystemClock(), Board()
    kept = os.environ.get("STATE_DIRECTORY")
    sign_in = SignIn(config, settings, clock, None if kept is None else Path(kept))

    def connect() -> DatabaseClient:
        return DatabaseClient(config, timeout_s=_TIMEOUT_S, needs_all=True)

    poller = Poller(connect, board, config.cluster, group_by_node("racks", config.racks), clock)
    if options.once:
        state = poller.poll()
        if state is None:
            raise OutsideError(str(poller.error))
        log.info("%d GPUs on %d nodes", state.layout.n_squares, len(state.layout.nodes))
        return
    listener = listen_tcp(address)
    stop = threading.Event()
    thread = threading.Thread(target=poller.run, args=(settings.refresh_s, stop), name="poller", daemon=True)
    thread.start()
    log.info(
        "slurm-gpuweb %s serves cluster %s at %s", slurm_gpu.__version__, config.cluster, settings.base_url
    )

    def stopping() -> None:
        notifier.stopping()
        stop.set()
        board.stop()

    notifier.ready()
    beat = _beat(notifier, poller, board, clock) if notifier.listens else None
    diagnosis_settings = DiagnosisSettings(config.sampling.min_coverage, config.timezone)
    app = sign_in.guarded(
        make_app(
            RouteContext(
                board,
                viewer_of,
                connect,
                clock,
                diagnosis_settings=diagnosis_settings,
                links=FooterLinks(settings.contact, settings.documentation),
            ),
            sign_in.routes(),
        )
    )
    with giving_back():
        asyncio.run(run(make_server(app, stopping), [listener], beat))
    sign_in.close()
    log.info("stopped")


def _beat(notifier: Notifier, poller: Poller, board: Board, clock: Clock) -> Callable[[], float]:
    def beat() -> float:
        now = clock.monotonic()
        if now - poller.last_poll_s < _STUCK_S:
            state = board.state
            status = "waiting for slurm-gpudbd"
            if state is not None:
                status = f"shows {state.layout.n_squares} GPUs as of {_clock_time(state.as_of_s())}"
            notifier.turned(now, status if poller.error is None else f"{status}; {poller.error}")
        return _BEAT_S

    return beat


def _clock_time(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="slurm-gpuweb", description=__doc__)
    parser.add_argument("--version", action="version", version=f"slurm-gpuweb {slurm_gpu.__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="slurm-gpu.yaml (default: /etc/slurm-gpu)"
    )
    parser.add_argument("--web-config", type=Path, metavar="FILE", help="slurm-gpuweb.yaml")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="TCP address (default: as in slurm-gpuweb.yaml)"
    )
    parser.add_argument(
        "--foreground", action="store_true", help="log with timestamps, for use outside systemd"
    )
    parser.add_argument("--once", action="store_true", help="read slurm-gpudbd once, then exit")
    return parser


if __name__ == "__main__":
    sys.exit(main())
