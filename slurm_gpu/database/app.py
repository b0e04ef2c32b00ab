"""The HTTP interface of docs/contracts.md, section 5. Work that waits runs in threads."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import slurm_gpu
from slurm_gpu.clock import Clock
from slurm_gpu.database.arrivals import Arrivals
from slurm_gpu.database.detail import node_reports
from slurm_gpu.database.engine import Database
from slurm_gpu.database.identity import Authenticator, Caller, NotAuthenticatedError
from slurm_gpu.database.importer import Importer
from slurm_gpu.database.intake import Intake
from slurm_gpu.database.loans import with_lenders
from slurm_gpu.database.nodememory import LiveBoard, Wants
from slurm_gpu.database.queries import (
    RunFilter,
    WindowsFound,
    count_unmatched,
    find_job,
    find_runs,
    find_timelines,
    find_windows,
    show_live,
)
from slurm_gpu.database.results import Health, RunTimeline
from slurm_gpu.database.shipment import (
    MAX_BODY_BYTES,
    Shipment,
    ShipmentError,
    WireError,
    parse_shipment,
)
from slurm_gpu.database.slurmview import SlurmView
from slurm_gpu.errors import DatabaseError, MungedAwayError, OutsideError, SlurmError, UsageError
from slurm_gpu.records import WIRE_RANGE

log = logging.getLogger(__name__)

PEER_UID = "peer_uid"
"""Where the server leaves the uid of a Unix socket's peer, in the request's state."""
BODY_WITHIN_S = 30.0
RETRY_AFTER_S = 10
LIVE_EVERY_S = 5.0
LIVE_STREAM_S = 600.0
LIVE_STREAMS_OF_A_USER = 16
"""Each costs up to a tenth of a second of CPU for a thousand nodes, each LIVE_EVERY_S."""
SHIPMENTS_OF_AN_ADDRESS = 4
"""A node has one under way, and perhaps some on which it gave up: it must not take all threads."""
STORING_AT_ONCE = 100
"""As many shipments go into one transaction at most."""
NODES_TOLD_OF = 20_000
"""Whose versions are not spoken here; more are not told of."""
_OWN_ANSWER = {"Cache-Control": "private, no-cache"}
WINDOW_WITHIN_S = 10
"""A node ships its live values each 10 s, is asked then, and sends the window with the next ones."""


@dataclass(frozen=True, slots=True)
class Services:
    """All that requests are answered with."""

    cluster: str
    database: Database
    authenticator: Authenticator
    intake: Intake
    importer: Importer
    view: SlurmView
    arrivals: Arrivals
    board: LiveBoard
    wants: Wants
    clock: Clock
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops: answers that go on for long end then."""


def make_app(services: Services) -> Starlette:
    """The ASGI application."""
    answers = _Answers(services)
    routes = [
        Route("/v1/node", answers.post_node, methods=["POST"]),
        Route("/v1/runs", answers.get_runs, methods=["GET"]),
        Route("/v1/runs/{job}", answers.get_job, methods=["GET"]),
        Route("/v1/runs/{job}/timeline", answers.get_timeline, methods=["GET"]),
        Route("/v1/runs/{job}/window", answers.get_window, methods=["GET"]),
        Route("/v1/live", answers.get_live, methods=["GET"]),
        Route("/v1/nodes", answers.get_nodes, methods=["GET"]),
        Route("/v1/health", answers.get_health, methods=["GET"]),
    ]
    handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
        NotAuthenticatedError: _not_authenticated,
        ShipmentError: _bad_shipment,
        UsageError: _bad_usage,
        DatabaseError: _try_later,
        MungedAwayError: _try_later,
        SlurmError: _try_later,
        HTTPException: _http_error,
        ClientDisconnect: _gone,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Answers:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._storing = CapacityLimiter(STORING_AT_ONCE)
        self._streams: Counter[int] = Counter()
        self._shipments: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._refused: set[str] = set()

    async def post_node(self, request: Request) -> Response:
        identify, body = await self._asked(request)
        encoding = request.headers.get("content-encoding", "").strip().lower()
        over_unix = hasattr(request.state, PEER_UID)
        address = None if over_unix or request.client is None else request.client.host

        def take(shipment: Shipment) -> bytes:
            answer = self._services.intake.take(shipment, address)
            if self._services.intake.may_speak(shipment.node, address):
                self._services.arrivals.heard(shipment.node, shipment.version)
            return json.dumps(answer, separators=(",", ":")).encode()

        with contextlib.ExitStack() as held:

            def read() -> Shipment | bytes:
                """The answer, where that is a matter of this moment."""
                if not identify().writes:
                    raise HTTPException(403, "only root and SlurmUser ship records")
                held.enter_context(self._one_shipment_more(address))
                try:
                    shipment = parse_shipment(body, encoding)
                except WireError as error:
                    self._tell_of(error)
                    raise
                return shipment if shipment.n_to_store else take(shipment)

            answer = await run_in_threadpool(read)
            if isinstance(answer, Shipment):
                # These wait for the database, and the others must not wait for them.
                answer = await to_thread.run_sync(take, answer, limiter=self._storing)
        return Response(answer, media_type="application/json")

    def _tell_of(self, error: WireError) -> None:
        """Once of each node and version: it asks again and again."""
        if str(error) not in self._refused and len(self._refused) < NODES_TOLD_OF:
            self._refused.add(str(error))
            log.log(logging.INFO if error.is_passing else logging.WARNING, "%s", error)

    @contextlib.contextmanager
    def _one_shipment_more(self, address: str | None) -> Iterator[None]:
        if address is None:
            yield
            return
        with self._counting:
            if self._shipments[address] >= SHIPMENTS_OF_AN_ADDRESS:
                why = f"{SHIPMENTS_OF_AN_ADDRESS} shipments from {address} are still being taken in"
                raise HTTPException(429, why, {"Retry-After": str(RETRY_AFTER_S)})
            self._shipments[address] += 1
        try:
            yield
        finally:
            with self._counting:
                self._shipments[address] -= 1
                if not self._shipments[address]:
                    del self._shipments[address]

    async def get_runs(self, request: Request) -> Response:
        caller, _ = await self._authenticated(request)
        wanted = RunFilter.from_query(_query(request))

        def find() -> dict[str, Any]:
            with self._services.database.reading() as connection:
                cluster, now_s = self._services.cluster, self._services.clock.wall()
                return find_runs(connection, cluster, wanted, caller, now_s).to_json()

        return JSONResponse(await run_in_threadpool(find))

    async def get_job(self, request: Request) -> Response:
        caller, _ = await self._authenticated(request)
        job = request.path_params["job"]

        def find() -> dict[str, Any]:
            with self._services.database.reading() as connection:
                cluster, now_s = self._services.cluster, self._services.clock.wall()
                min_coverage = self._services.importer.min_coverage
                page = find_job(connection, cluster, job, caller, now_s, min_coverage)
            return replace(page, runs=with_lenders(page.runs, self._services.view.queue)).to_json()

        found = await run_in_threadpool(find)
        if not found["runs"]:
            raise _unknown(job)
        return JSONResponse(found)

    async def get_timeline(self, request: Request) -> Response:
        caller, _ = await self._authenticated(request)
        job = request.path_params["job"]

        def find() -> list[RunTimeline]:
            with self._services.database.reading() as connection:
                return find_timelines(connection, self._services.cluster, job, caller)

        found = await run_in_threadpool(find)
        if not found:
            raise _unknown(job)
        return JSONResponse({"runs": [item.to_json() for item in found]})

    async def get_window(self, request: Request) -> Response:
        caller, _ = await self._authenticated(request)
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
                403, f"job {job} is another user's; its owner and operators may see its window"
            )
        for node, job_id in found.missing:
            self._services.wants.ask(node, job_id)
        if found.windows:
            return JSONResponse({"windows": [item.to_json() for item in found.windows]})
        if found.missing:
            headers = {"Retry-After": str(WINDOW_WITHIN_S)}
            return JSONResponse({"windows": [], "asked": found.asked()}, 202, headers=headers)
        raise HTTPException(404, f"no window of job {job} was kept, and it does not run")

    async def get_live(self, request: Request) -> Response:
        caller, _ = await self._authenticated(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            if self._streams[caller.uid] >= LIVE_STREAMS_OF_A_USER:
                why = f"you have {LIVE_STREAMS_OF_A_USER} streams of live values; end one first"
                raise HTTPException(429, why, {"Retry-After": str(RETRY_AFTER_S)})
            stream = self._live_events(caller)
            return StreamingResponse(stream, media_type="text/event-stream", headers=_OWN_ANSWER)
        body = await run_in_threadpool(self._live, caller)
        # Of the body, so that it also changes with what the caller may see.
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {"ETag": etag, **_OWN_ANSWER}
        asked = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in asked:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    def _live(self, caller: Caller) -> bytes:
        shown = show_live(self._services.board.values(), self._services.view.queue(), caller)
        return json.dumps({"nodes": shown}, separators=(",", ":")).encode()

    async def _live_events(self, caller: Caller) -> AsyncIterator[bytes]:
        """The values whenever they changed, until it is time to show a fresh credential, or we stop."""
        told = b""
        self._streams[caller.uid] += 1
        try:
            for _ in range(round(LIVE_STREAM_S / LIVE_EVERY_S)):
                body = await run_in_threadpool(self._live, caller)
                # A comment keeps proxies from taking the silence for an end.
                yield b":\n\n" if body == told else b"data: " + body + b"\n\n"
                told = body
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._services.stopping.wait(), LIVE_EVERY_S)
                    return
        finally:
            self._streams[caller.uid] -= 1
            if not self._streams[caller.uid]:
                del self._streams[caller.uid]

    async def get_nodes(self, request: Request) -> Response:
        await self._authenticated(request)

        def find() -> list[dict[str, Any]]:
            heard = {name: (item.at_s, item.version) for name, item in self._services.arrivals.last().items()}
            with self._services.database.reading() as connection:
                return [item.to_json() for item in node_reports(connection, heard)]

        return JSONResponse({"nodes": await run_in_threadpool(find)})

    async def get_health(self, request: Request) -> Response:
        await self._authenticated(request)
        return JSONResponse(await run_in_threadpool(self._health))

    def _health(self) -> dict[str, Any]:
        services = self._services
        now_s = services.clock.wall()
        with services.database.reading() as connection:
            watermark_s = services.importer.watermark(connection)
            unmatched = count_unmatched(connection)
        status = services.importer.status
        return Health(
            version=slurm_gpu.__version__,
            wire=WIRE_RANGE,
            schema=services.database.schema(),
            database=services.database.server(),
            cluster=services.cluster,
            now_s=now_s,
            import_interval_s=services.importer.interval_s,
            last_import_s=status.last_import_s,
            import_error=status.error,
            watermark_s=watermark_s,
            watermark_lag_s=None if watermark_s is None else now_s - watermark_s,
            unmatched=unmatched,
            silent_nodes=services.arrivals.silent(services.view.queue()),
        ).to_json()

    async def _authenticated(self, request: Request) -> tuple[Caller, bytes]:
        """The caller and the body."""
        identify, body = await self._asked(request)
        return await run_in_threadpool(identify), body

    async def _asked(self, request: Request) -> tuple[Callable[[], Caller], bytes]:
        """What finds out who the caller is, and waits for it, and the body.

        That is read only once there is a credential to check it with.
        """
        authenticator = self._services.authenticator
        uid: int | None = getattr(request.state, PEER_UID, None)
        authorization = request.headers.get("authorization")
        if uid is None and authorization is None:
            raise NotAuthenticatedError("send the header Authorization: MUNGE CREDENTIAL")
        body = await _body(request)
        if uid is not None:
            return partial(authenticator.by_uid, uid), body
        assert authorization is not None
        target = request.scope["raw_path"].decode("latin-1")
        if request.scope["query_string"]:
            target += "?" + request.scope["query_string"].decode("latin-1")
        return partial(authenticator.by_credential, authorization, request.method, target, body), body


def _unknown(job: str) -> HTTPException:
    return HTTPException(404, f"no run of job {job} is known here")


async def _body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
        raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes; send less at once")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes; send less at once")
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_WITHIN_S:g} s") from None
    return bytes(body)


def _query(request: Request) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query:
            raise UsageError(f"{name!r} is given twice")
        query[name] = value
    return query


async def _not_authenticated(_: Request, error: NotAuthenticatedError) -> Response:
    return JSONResponse({"error": str(error)}, 401, headers={"WWW-Authenticate": "MUNGE"})


async def _bad_shipment(_: Request, error: ShipmentError) -> Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return JSONResponse({"error": str(error), "wire": list(WIRE_RANGE)}, error.status, headers)


async def _bad_usage(_: Request, error: UsageError) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _try_later(_: Request, error: OutsideError) -> Response:
    return JSONResponse({"error": str(error)}, 503, headers={"Retry-After": str(RETRY_AFTER_S)})


async def _http_error(request: Request, error: HTTPException) -> Response:
    why = error.detail
    if error.status_code == 405 or "endpoint" not in request.scope:
        why = f"slurm-gpudbd {slurm_gpu.__version__} has no {request.method} {request.url.path}"
    return JSONResponse({"error": why}, error.status_code, headers=error.headers)


async def _gone(_: Request, __: ClientDisconnect) -> Response:
    return Response(status_code=400)  # nobody is there to read it
