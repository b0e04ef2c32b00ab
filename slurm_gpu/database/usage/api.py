"""Serve the cluster's usage over the last days."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.request import authenticated, parameters
from slurm_gpu.database.services import Services
from slurm_gpu.database.usage.store import read_usage
from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.usage import BINS_S, ClusterUsage

_DAYS = {str(days): days for days in BINS_S}


class UsagePage:
    """Serve GET /v1/usage."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """Return the usage of the last `days`; only operators see utilisation."""
        services = self._services
        caller = await authenticated(services.authenticator, request)
        query = parameters(request)
        for name in query:
            if name != "days":
                raise UsageError(f"{name[:40]!r} is unknown; the only parameter is days")
        text = query.get("days", "1")
        if text not in _DAYS:
            raise UsageError(f"days: {text[:40]!r} must be one of {', '.join(_DAYS)}")

        def find() -> ClusterUsage:
            with services.database.reading() as connection:
                return read_usage(connection, services.cluster, _DAYS[text], services.clock.wall())

        found = await run_in_threadpool(find)
        return Answer(found if caller.sees_all else found.without_utilisation())
