"""Serve runs, timelines, live values, nodes and health, as far as the caller may see them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any, get_args

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import slurm_gpu
from slurm_gpu.database.accounting.importer import read_until_s
from slurm_gpu.database.accounting.loans import with_lenders
from slurm_gpu.database.api.cluster import show_cluster
from slurm_gpu.database.forecasts.store import newest_model
from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.rate_limits import share_of
from slurm_gpu.database.http.request import RETRY_AFTER_S, authenticated, parameters
from slurm_gpu.database.live.host_minutes import alone_since
from slurm_gpu.database.queries.run_detail import node_reports
from slurm_gpu.database.queries.run_filter import RunFilter
from slurm_gpu.database.queries.run_queries import (
    WindowsFound,
    count_left_out,
    count_unmatched,
    find_job,
    find_runs,
    find_timelines,
    find_windows,
    show_live,
    unmatched_jobs,
)
from slurm_gpu.database.services import Services
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES
from slurm_gpu.wire import WIRE_RANGE
from slurm_gpu.wire.answers.runs import Health
from slurm_gpu.wire.live import Refresh

LIVE_EVERY_S = 5.0
LIVE_STREAM_S = 600.0
# With a thousand nodes, each stream uses up to 0.1 s of CPU time per LIVE_EVERY_S.
LIVE_STREAMS_OF_A_USER = 16
# A node whose live values are requested posts within 10 s, and sends the window with its next values.
WINDOW_WITHIN_S = 10
_JSON = "application/json"
_REFRESH = get_args(Refresh)
# The thread that reads the rows also encodes them: encoding 1,000 runs in the event loop would block all
# other requests.
encode = msgspec.json.encode
_OWN_ANSWER = {"Cache-Control": "private, no-cache"}


class Reads:
    """The endpoints for runs, live values, nodes and health, and a count of each user's open streams."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._streams: Counter[int] = Counter()

    async def get_runs(self, request: Request) -> Response:
        """Serve GET /v1/runs."""
        caller = await self._caller(request)
        wanted = RunFilter.from_query(parameters(request))

        def find() -> tuple[bytes, int]:
            with self._services.database.reading() as connection:
                cluster, now_s = self._services.cluster, self._services.clock.wall()
                page = find_runs(connection, cluster, wanted, caller, now_s)
            return encode(page.to_json()), len(page.runs)

        body, n_runs = await run_in_threadpool(find)
        share_of(request).spend(n_runs)
        return Response(body, media_type=_JSON)

    async def get_job(self, request: Request) -> Response:
        """Serve GET /v1/runs/{job}."""
        caller = await self._caller(request)
        job = request.path_params["job"]

        def find() -> tuple[bytes, int, int]:
            with self._services.database.reading() as connection:
                cluster, now_s = self._services.cluster, self._services.clock.wall()
                min_coverage = self._services.min_coverage
                page = find_job(connection, cluster, job, caller, now_s, min_coverage)
            page = replace(page, runs=with_lenders(page.runs, self._services.view.queue))
            return encode(page.to_json()), len(page.runs), page.unmatched

        body, n_runs, unmatched = await run_in_threadpool(find)
        share_of(request).spend(n_runs)
        if not n_runs and not unmatched:
            raise _unknown(job)
        return Response(body, media_type=_JSON)

    async def get_timeline(self, request: Request) -> Response:
        """Serve GET /v1/runs/{job}/timeline."""
        caller = await self._caller(request)
        job = request.path_params["job"]

        def find() -> tuple[bytes, int]:
            with self._services.database.reading() as connection:
                found = find_timelines(connection, self._services.cluster, job, caller)
                left_out = count_left_out(connection, self._services.cluster, job, len(found))
            return encode({"runs": found, "left_out": left_out}), len(found)

        body, n_runs = await run_in_threadpool(find)
        share_of(request).spend(n_runs)
        if not n_runs:
            raise _unknown(job)
        return Response(body, media_type=_JSON)

    async def get_window(self, request: Request) -> Response:
        """Serve GET /v1/runs/{job}/window: return the stored windows and request the missing ones."""
        caller = await self._caller(request)
        job = request.path_params["job"]

        def find() -> WindowsFound:
            with self._services.database.reading() as connection:
                cluster, now_s = self._services.cluster, self._services.clock.wall()
                return find_windows(connection, cluster, job, caller, now_s)

        found = await run_in_threadpool(find)
        if not found.runs:
            raise _unknown(job)
        if not found.visible:
            raise HTTPException(
                403, f"job {job} belongs to another user; only its owner and operators may see its window"
            )
        self._services.memory.needs.ask({node for node, _ in found.missing})
        for node, job_id in found.missing:
            self._services.memory.wants.ask(node, job_id)
        if found.windows:
            return Answer({"windows": found.windows})
        if found.missing:
            headers = {"Retry-After": str(WINDOW_WITHIN_S)}
            return Answer({"windows": [], "requested": found.nodes_to_request()}, 202, headers=headers)
        raise HTTPException(404, f"no window of job {job} is stored, and the job is not running")

    async def get_hosts(self, request: Request) -> Response:
        """Serve GET /v1/runs/{job}/hosts: return host metrics of a running job that is alone on its nodes."""
        caller = await self._caller(request)
        label = request.path_params["job"]
        queue = await run_in_threadpool(self._services.view.queue)
        jobs = {} if queue is None else queue.by_id
        found = []
        for job in jobs.values():
            since_s = alone_since(job, jobs) if label in (job.label, str(job.job_id)) else None
            if since_s is not None and caller.may_see(job.uid):
                self._services.memory.needs.ask(job.nodes)
                found += self._services.memory.board.minutes(job.nodes, since_s)
        return Answer({"hosts": found})

    async def get_live(self, request: Request) -> Response:
        """Serve GET /v1/live, once or as a stream of events."""
        caller = await self._caller(request)
        refresh = request.query_params.get("refresh", "all")
        if refresh not in _REFRESH:
            raise HTTPException(400, f"refresh: {refresh!r} must be one of {', '.join(_REFRESH)}")
        if "text/event-stream" in request.headers.get("accept", ""):
            if self._streams[caller.uid] >= LIVE_STREAMS_OF_A_USER:
                why = f"you have {LIVE_STREAMS_OF_A_USER} open streams of live values; close one first"
                raise HTTPException(429, why, {"Retry-After": str(RETRY_AFTER_S)})
            share_of(request).end()  # streams have their own limit
            stream = self._live_events(caller, refresh)
            return StreamingResponse(stream, media_type="text/event-stream", headers=_OWN_ANSWER)
        body = await run_in_threadpool(self._live, caller, refresh)
        # The ETag is a hash of the body, so it also changes with the caller's rights.
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": etag, **_OWN_ANSWER}
        asked = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in asked:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def _live(self, caller: Caller, refresh: str) -> bytes:
        memory, queue = self._services.memory, self._services.view.queue()
        if refresh == "all" and caller.sees_all:
            memory.needs.ask_all()
        elif refresh != "none" and queue is not None:
            # Users see only values of their own jobs' GPUs, so other nodes need not send values.
            memory.needs.ask(
                {
                    node
                    for node, jobs in queue.by_node.items()
                    if any(
                        job.state in ALLOCATED_STATES and caller.may_see(job.uid) and job.gpu_index.get(node)
                        for job in jobs
                    )
                }
            )
        shown = show_live(memory.board.values(), queue, caller)
        return encode({"nodes": shown})

    async def _live_events(self, caller: Caller, refresh: str) -> AsyncIterator[bytes]:
        """Yield the live values whenever they change, until the stream's time is over or the server stops."""
        last = b""
        self._streams[caller.uid] += 1
        try:
            for _ in range(round(LIVE_STREAM_S / LIVE_EVERY_S)):
                body = await run_in_threadpool(self._live, caller, refresh)
                # A comment prevents proxies from closing an idle connection.
                yield b":\n\n" if body == last else b"data: " + body + b"\n\n"
                last = body
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._services.stopping.wait(), LIVE_EVERY_S)
                    return
        finally:
            self._streams[caller.uid] -= 1
            if not self._streams[caller.uid]:
                del self._streams[caller.uid]

    async def get_nodes(self, request: Request) -> Response:
        """Serve GET /v1/nodes."""
        await self._caller(request)

        def find() -> list[dict[str, Any]]:
            arrivals = {
                name: (item.at_s, item.version)
                for name, item in self._services.memory.arrivals.last().items()
            }
            with self._services.database.reading() as connection:
                return [item.to_json() for item in node_reports(connection, arrivals)]

        return Answer({"nodes": await run_in_threadpool(find)})

    async def get_cluster(self, request: Request) -> Response:
        """Serve GET /v1/cluster."""
        caller = await self._caller(request)

        def find() -> bytes | None:
            nodes, queue = self._services.view.nodes_now(), self._services.view.queue_now()
            if nodes is None or queue is None:
                return None
            shown = show_cluster(nodes, queue, self._services.places, caller)
            return encode(shown)

        body = await run_in_threadpool(find)
        if body is None:
            why = "slurmctld has not answered since slurm-gpudbd started"
            raise HTTPException(503, why, {"Retry-After": str(RETRY_AFTER_S)})
        return Response(body, media_type="application/json", headers=_OWN_ANSWER)

    async def get_health(self, request: Request) -> Response:
        """Serve GET /v1/health."""
        await self._caller(request)
        return Answer(await run_in_threadpool(self._health))

    def _health(self) -> Health:
        services = self._services
        now_s = services.clock.wall()
        with services.database.reading() as connection:
            watermark_s = read_until_s(connection, services.cluster)
            unmatched = count_unmatched(connection, services.cluster)
            not_accounted = unmatched_jobs(connection, services.cluster, now_s)
            learned_s = newest_model(connection, services.cluster, now_s)
        status = services.importing.status
        return Health(
            version=slurm_gpu.__version__,
            wire=WIRE_RANGE,
            schema=services.database.schema(),
            database=services.database.server(),
            cluster=services.cluster,
            now_s=now_s,
            import_interval_s=services.importing.interval_s,
            last_import_s=status.last_import_s,
            import_error=status.error,
            watermark_s=watermark_s,
            watermark_lag_s=None if watermark_s is None else now_s - watermark_s,
            unmatched=unmatched,
            unmatched_jobs=not_accounted,
            stale_nodes=services.memory.arrivals.silent(services.view.queue()),
            rejected=services.memory.rejections.by_kind(),
            last_rejected_s=services.memory.rejections.last_s,
            learned_s=learned_s,
            web_refused=[asdict(refusal) for refusal in services.authenticator.web_refusals.recent()],
        )

    async def _caller(self, request: Request) -> Caller:
        return await authenticated(self._services.authenticator, request)


def _unknown(job: str) -> HTTPException:
    return HTTPException(404, f"no run of job {job} is stored")
