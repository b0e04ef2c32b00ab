"""Limit the time for which doctor waits for daemons: it waits only once for a daemon that hangs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from slurm_gpu.cli.site import CommandSite, open_database
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.slurm.runner import CommandRunner

T = TypeVar("T")

# The total wait for daemons that do not answer; each further daemon gets at least _LEAST_S.
_TOTAL_S = 10.0
_LEAST_S = 4.0
_MUNGED, _SLURM_GPUDBD = "munged", "slurm-gpudbd"
_DAEMON_OF = {
    **dict.fromkeys(("scontrol", "squeue", "sprio"), "slurmctld"),
    **dict.fromkeys(("sacct", "sacctmgr"), "slurmdbd"),
}


class TimeBound:
    """The daemons that hang, and the time left to wait for other daemons."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._left_s = _TOTAL_S
        self._hanging: dict[str, SlurmGpuError] = {}

    def query(self, daemon: str, call: Callable[[float], T], timeout_s: float = math.inf) -> T:
        """Call `call` with its time limit in seconds; raise the earlier error if the daemon hung before."""
        self.require(daemon)
        limit_s = min(timeout_s, max(_LEAST_S, self._left_s))
        began_s = self._monotonic()
        try:
            return call(limit_s)
        except SlurmGpuError as error:
            took_s = self._monotonic() - began_s
            self._left_s -= took_s
            if took_s >= limit_s:
                self._hanging[daemon] = error
            raise

    def require(self, daemon: str) -> None:
        """Raise the earlier error of the daemon if it hung before."""
        if (error := self._hanging.get(daemon)) is not None:
            raise error

    def run(self, run: CommandRunner) -> CommandRunner:
        """Return a runner that calls `run` within this time limit."""

        def bounded(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
            daemon = _DAEMON_OF.get(argv[0])
            if daemon is None:
                return run(argv, environ, timeout_s)
            return self.query(daemon, lambda limit_s: run(argv, environ, limit_s), timeout_s)

        return bounded


def bounded(site: CommandSite) -> CommandSite:
    """Return a copy of the site whose queries of daemons share one time limit."""
    bound = TimeBound()
    encode, connect = site.encode, site.connect_database
    return dataclasses.replace(
        site,
        run=bound.run(site.run),
        # libmunge tries for 10 s, regardless of the bound.
        encode=lambda payload, socket: bound.query(_MUNGED, lambda _: encode(payload, socket)),
        connect_database=(lambda config: _Database(config, bound)) if connect is open_database else connect,
    )


class _Database(DatabaseClient):
    """A client of slurm-gpudbd whose requests take no longer than the time limit."""

    def __init__(self, config: SiteConfig, bound: TimeBound) -> None:
        super().__init__(config)
        self._bound = bound
        if self.where == config.database:
            bound.require(_MUNGED)  # munged signs each request

    def _response(self, method: str, path: str, **request: Any) -> httpx.Response:
        send = super()._response
        return self._bound.query(
            _SLURM_GPUDBD, lambda limit_s: send(method, path, timeout=limit_s, **request)
        )
