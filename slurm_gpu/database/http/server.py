"""The HTTP server of slurm-gpudbd."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp

from slurm_gpu.http.connection_limits import ConnectionLimits
from slurm_gpu.http.server import FirstReader, HttpServer

# 4,000 connections: ten thousand nodes post a thousand times per second, and all wait while nothing is
# answered for a moment. 20 addresses with their maximum leave 668 of them. Each worker has as many.
LIMITS = ConnectionLimits(
    request_within_s=5.0,
    body_within_s=None,
    keep_alive_s=30,
    always_of_sender=8,
    share_of_sender=4,
    most_of_sender=200,
    is_unlimited=lambda sender: sender == 0,  # root, over the Unix socket
    # a node stops waiting after 20 s; in order of arrival, all would be served just after that
    backlog_s=8.0,
)


def make_server(
    app: ASGIApp, ingest_server: FirstReader, on_stop: Callable[[], None] = lambda: None
) -> HttpServer:
    """Return a server for `app` behind an ingest server."""
    return HttpServer(app, LIMITS, on_stop, first=ingest_server)
