"""Create the HTTP server of slurm-gpudbd."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp

from slurm_gpu.http.connection_limits import ConnectionLimits
from slurm_gpu.http.server import FirstReader, HttpServer

# The server and each worker accept up to 4,000 connections. Ten thousand nodes post a thousand times per
# second, and all of them wait if answers pause for a moment. If 20 addresses use their maximum, 668
# connections remain.
LIMITS = ConnectionLimits(
    request_within_s=5.0,
    body_within_s=None,
    keep_alive_s=30,
    always_of_sender=8,
    share_of_sender=4,
    most_of_sender=200,
    is_unlimited=lambda sender: sender == 0,  # root has no limit over the Unix socket
    # Nodes stop waiting after 20 s. If connections were served in order of arrival, every answer might come
    # shortly after that.
    backlog_s=8.0,
)


def make_server(
    app: ASGIApp, ingest_server: FirstReader, on_stop: Callable[[], None] = lambda: None
) -> HttpServer:
    """Return a server for `app` that first passes each connection to an ingest server."""
    return HttpServer(app, LIMITS, on_stop, first=ingest_server)
