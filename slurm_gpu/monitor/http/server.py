"""The HTTP server of slurm-gpuweb."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

from starlette.types import ASGIApp

from slurm_gpu.http.connection_limits import ConnectionLimits
from slurm_gpu.http.networks import is_among
from slurm_gpu.http.server import HttpServer
from slurm_gpu.monitor.http.headers import HEADERS

# All users of a reverse proxy on this host share one address.
_THIS_HOST = ip_network("127.0.0.0/8"), ip_network("::1/128")
# A single address can use at most a third of 4,000 connections. Five addresses that use their maximum leave
# 500 connections.
LIMITS = ConnectionLimits(
    request_within_s=10.0,
    # An application that reads the body answers 408 before this time.
    body_within_s=15.0,
    keep_alive_s=75,
    # The number of connections that one or two browsers open.
    always_of_sender=16,
    share_of_sender=2,
    is_unlimited=lambda sender: is_among(str(sender), _THIS_HOST),
)


def make_server(app: ASGIApp, on_stop: Callable[[], None] = lambda: None) -> HttpServer:
    """Return a server for `app` that adds the headers for browsers to each answer."""
    return HttpServer(app, LIMITS, on_stop, headers=HEADERS)
