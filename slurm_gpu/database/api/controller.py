"""Serve POST /v1/controller, and GET /v1/audit and /v1/decisions[/TOKEN] for the stored data."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.database.api.audit import MOST_SHOWN, find_audit, store_audit
from slurm_gpu.database.api.controller_body import parse_report
from slurm_gpu.database.api.decisions import find_decisions, find_refusals, has_decision, store_decisions
from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.rate_limits import share_of
from slurm_gpu.database.http.request import authenticated, parameters, posted, whole_parameter
from slurm_gpu.database.reservations.store import store_reports
from slurm_gpu.database.services import Services
from slurm_gpu.errors import UsageError
from slurm_gpu.wire.answers.codec import to_json
from slurm_gpu.wire.answers.runs import AuditEvent, Decision


class ControllerPages:
    """The endpoints for controller reports, audit events and decisions."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get_audit(self, request: Request) -> Response:
        """Serve GET /v1/audit."""
        caller = await authenticated(self._services.authenticator, request)
        if not caller.sees_all:
            raise HTTPException(403, "only operators may see audit events")
        limit = _limit(parameters(request))

        def find() -> list[AuditEvent]:
            with self._services.database.reading() as connection:
                return find_audit(connection, limit)

        found = await run_in_threadpool(find)
        share_of(request).spend(len(found))
        return Answer({"audit": found})

    async def get_refusals(self, request: Request) -> Response:
        """Serve GET /v1/decisions."""
        caller = await authenticated(self._services.authenticator, request)
        if not caller.sees_all:
            raise HTTPException(403, "only operators may see refusals")
        query = parameters(request)
        rule = query.pop("rule", None)
        limit = _limit(query, "rule, limit")

        def find() -> list[Decision]:
            with self._services.database.reading() as connection:
                return find_refusals(connection, self._services.cluster, rule, limit)

        found = await run_in_threadpool(find)
        share_of(request).spend(len(found))
        return Answer({"decisions": found})

    async def get_decisions(self, request: Request) -> Response:
        """Serve GET /v1/decisions/{token}."""
        caller = await authenticated(self._services.authenticator, request)
        token = request.path_params["token"]

        def find() -> list[Decision]:
            with self._services.database.reading() as connection:
                return find_decisions(connection, self._services.cluster, token)

        found = await run_in_threadpool(find)
        if not found:
            raise HTTPException(404, f"no decision with token {token} is stored")
        own = [decision for decision in found if caller.sees_all or decision.uid == caller.uid]
        if not own:
            raise HTTPException(403, f"decision {token} concerns another user's job; operators may see it")
        # slurm-gpuctld 0.2 reads the reasons of urgent jobs, and requires `asked`.
        return Answer({"decisions": [{**to_json(one), "asked": one.operation} for one in own]})

    async def post_controller(self, request: Request) -> Response:
        """Serve POST /v1/controller."""
        caller, body = await posted(self._services.authenticator, request)

        def store() -> dict[str, Any]:
            if not (caller.writes or caller.is_web):
                raise HTTPException(403, "only root and SlurmUser may report changes")
            report, who = parse_report(body), caller.user or str(caller.uid)
            if caller.is_web and (report.decisions or report.reservations or report.quotas):
                raise HTTPException(403, "slurm-gpuweb may report only audit events")
            self._services.quotas.put(item.quota for item in report.quotas or ())
            if not (report.audit or report.decisions or report.reservations):
                return {"stored": 0, "lacks": []}

            def work(connection: Connection) -> dict[str, Any]:
                now_s = int(self._services.clock.wall())
                store_reports(connection, self._services.cluster, report.reservations or (), now_s)
                after = report.decisions_after
                lacks = [] if after is None or has_decision(connection, after) else ["decisions"]
                stored = store_audit(connection, report.audit or (), who)
                stored += store_decisions(connection, report.decisions or (), self._services.cluster)
                return {"stored": stored, "lacks": lacks}

            return self._services.database.write(work)

        return Answer(await run_in_threadpool(store))


def _limit(query: dict[str, str], allowed: str = "limit") -> int:
    text = query.pop("limit", "100")
    if query:
        raise UsageError(f"{next(iter(query))!r} is not a parameter here; allowed: {allowed}")
    return whole_parameter("limit", text, 1, MOST_SHOWN)
