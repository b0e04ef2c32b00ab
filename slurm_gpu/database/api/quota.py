"""Serve GET /v1/quota[/USER]: the limits of users and their use, as sent by slurm-gpuctld."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.request import authenticated, parameters
from slurm_gpu.database.services import Services
from slurm_gpu.database.storage.schema import NAME_LENGTH
from slurm_gpu.errors import UsageError


class QuotaPages:
    """The endpoints under /v1/quota."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """Serve GET /v1/quota/{user}."""
        caller = await authenticated(self._services.authenticator, request)
        if parameters(request):
            raise UsageError("this path has no parameters")
        user = str(request.path_params["user"])
        if not (caller.sees_all or user == caller.user):
            raise HTTPException(403, f"only {user} and operators may see the limits of {user}")
        if len(user) > NAME_LENGTH or not user.isprintable():
            raise UsageError(f"{user[:40]!r} is not a user name")
        quota = self._services.quotas.ask(user)
        if not caller.sees_all:
            quota = quota.seen_by(caller.uid)
        return Answer(quota, headers={"Cache-Control": "private, no-cache"})

    async def wanted(self, request: Request) -> Response:
        """Serve GET /v1/quota."""
        caller = await authenticated(self._services.authenticator, request)
        if not caller.writes:
            raise HTTPException(
                403, "only slurm-gpuctld may use this path; your own limits are at /v1/quota/USER"
            )
        return Answer({"wanted": self._services.quotas.wanted()})
