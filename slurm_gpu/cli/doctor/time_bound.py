"""One time bound for all that doctor asks: a daemon that hangs is waited for once."""

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
from slurm_gpu.slurm.commands import CommandRunner

T = TypeVar("T")

# All waits for daemons that do not answer, together; each further daemon gets at least _LEAST_S.
_TOTAL_S = 10.0
_LEAST_S = 4.0
_MUNGED, _SLURM_GPUDBD = "munged", "slurm-gpudbd"
_ASKED = {
    **dict.fromkeys(("scontrol", "squeue", "sprio"), "slurmctld"),
    **dict.fromkeys(("sacct", "sacctmgr"), "slurmdbd"),
}


class TimeBound:
    """The daemons that hang, and how long the next one may be waited for."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._left_s = _TOTAL_S
        self._hanging: dict[str, SlurmGpuError] = {}

    def ask(self, daemon: str, question: Callable[[float], T], timeout_s: float = math.inf) -> T:
        """Call `question` with the seconds that it may take; raise its error again if the daemon hangs."""
        self.require(daemon)
        limit_s = min(timeout_s, max(_LEAST_S, self._left_s))
        began_s = self._monotonic()
        try:
            return question(limit_s)
        except SlurmGpuError as error:
            took_s = self._monotonic() - began_s
            self._left_s -= took_s
            if took_s >= limit_s:
                self._hanging[daemon] = error
            raise

    def require(self, daemon: str) -> None:
        """Raise the error with which the daemon did not answer, if it hangs."""
        if (error := self._hanging.get(daemon)) is not None:
            raise error

    def run(self, run: CommandRunner) -> CommandRunner:
        """Return `run` within this bound."""

        def bounded(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
            daemon = _ASKED.get(argv[0])
            if daemon is None:
                return run(argv, environ, timeout_s)
            return self.ask(daemon, lambda limit_s: run(argv, environ, limit_s), timeout_s)

        return bounded


def bounded(site: CommandSite) -> CommandSite:
    """Return the site with everything that is asked of its daemons within one bound."""
    bound = TimeBound()
    encode, connect = site.encode, site.connect_database
    return dataclasses.replace(
        site,
        run=bound.run(site.run),
        # libmunge tries for 10 s, whatever the bound.
        encode=lambda payload, socket: bound.ask(_MUNGED, lambda _: encode(payload, socket)),
        connect_database=(lambda config: _Database(config, bound)) if connect is open_database else connect,
    )


class _Database(DatabaseClient):
    """slurm-gpudbd, asked within a bound."""

    def __init__(self, config: SiteConfig, bound: TimeBound) -> None:
        super().__init__(config)
        self._bound = bound
        if self.where == config.database:
            bound.require(_MUNGED)  # it signs each request

    def _response(self, method: str, path: str, **request: Any) -> httpx.Response:
        ask = super()._response
        return self._bound.ask(_SLURM_GPUDBD, lambda limit_s: ask(method, path, timeout=limit_s, **request))
