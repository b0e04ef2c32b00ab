"""Serve the runs that ended in the last 30 days: for users their own, for operators all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.clock import Clock
from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.responses import dump
from slurm_gpu.monitor.http.rate_limiter import RequestSlots
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.job.pages import is_job
from slurm_gpu.monitor.viewer import Viewer, ViewerOf
from slurm_gpu.wire.answers.runs import RunPage

PAGE = 50
DAYS = 30
# Sort keys of the page, and those of slurm-gpudbd.
SORTS = {
    "end": "end",
    "start": "start",
    "gpus": "nGPU",
    "ran": "RUN_h",
    "waited": "WAIT_h",
    "util": "uGPUcore",
}
ORDERS = ("desc", "asc")
FLAGS = ("false", "true")
# The filters that a search can name, such as account:vision, and their names in DatabaseClient.runs.
_KINDS = {"user": "user", "account": "accounts", "app": "app"}
# Fields of a run that lists do not contain.
_DETAILS: Mapping[str, None] = dict.fromkeys(("devices", "hosts", "events", "device_facts"))
_PARAMETERS = ("own", "find", "sort", "order", "cursor")
# The oldest list whose next page can be requested.
_CURSOR_AGE_S = 86400


@dataclass(frozen=True, slots=True)
class ListPosition:
    """The end of a page: the search of the first page, and slurm-gpudbd's cursor.

    Later pages repeat this search. Otherwise, they would lose runs that have left the 30 days since the first
    page. They would also continue with another kind if a run of a user with the found account's name ends.
    """

    since_s: int
    kind: str | None
    cursor: str

    @classmethod
    def read(cls, text: str) -> ListPosition:
        """Decode the parameter `cursor`; raise UsageError if it is invalid."""
        match = re.fullmatch(rf"(\d{{1,12}})\.({'|'.join(_KINDS)}|)\.([\w-]+)", text, re.ASCII)
        if match is None:
            raise UsageError(f"cursor: {text[:40]!r} is not the cursor of an earlier page")
        return cls(int(match[1]), match[2] or None, match[3])

    def write(self) -> str:
        """Return the encoded position with which a client requests the next page."""
        return f"{self.since_s}.{self.kind or ''}.{self.cursor}"


class EndedRunsPage:
    """An ASGI application that serves GET /api/v1/runs."""

    def __init__(
        self, connect: Callable[[], DatabaseClient], viewer_of: ViewerOf, clock: Clock, slots: RequestSlots
    ) -> None:
        self._connect, self._viewer_of, self._clock, self._slots = connect, viewer_of, clock, slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        viewer = self._viewer_of(request)
        query = _read(request.query_params)
        after = ListPosition.read(query["cursor"]) if query["cursor"] else None
        since_s = int(self._clock.wall()) - DAYS * 86400
        if after is not None:
            since_s = max(since_s - _CURSOR_AGE_S, min(since_s, after.since_s))

        def make() -> CachedResponse:
            with self._connect() as source:
                page, kind = find_runs(source, viewer, query, since_s, after)
            cursor = None if page.cursor is None else ListPosition(since_s, kind, page.cursor).write()
            body = {
                "runs": [run.to_json() for run in page.runs],
                "cursor": cursor,
                "matched": kind,
                "since_s": since_s,
            }
            headers = [(b"x-as-of-s", f"{self._clock.wall():.3f}".encode())]
            return CachedResponse(dump(body), JSON, headers)

        answer = await self._slots.run(viewer.user, make)
        await answer(scope, receive, send)


def find_runs(
    source: DatabaseClient,
    viewer: Viewer,
    query: Mapping[str, str],
    since_s: int,
    after: ListPosition | None = None,
) -> tuple[RunPage, str | None]:
    """Return a page of ended runs, and whether the search matched a job, user, account or application.

    With `own`, operators also get only their own runs. A name without a kind is searched as a user first,
    then as an account, and then as an application; the pages after the first search the kind that was found.
    """
    find, is_own = query["find"], query["own"] == "true" or not viewer.operator
    visibility = viewer.own if is_own else viewer.visibility
    if is_job(find):
        ended = [run for run in source.run(find) if run.end_s is not None]
        runs = [structs.replace(run, **_DETAILS) for run in ended if visibility.may_see(run.user, run.uid)]
        return RunPage(runs=runs, cursor=None), "job"
    page = RunPage(runs=(), cursor=None)
    found: str | None = None
    searches = list(_filters(find, viewer.user if is_own else None))
    if after is not None:
        searches = [search for search in searches if search[0] == after.kind]
        if not searches:
            raise UsageError("cursor: it belongs to another search; request the first page of this search")
    for kind, filters in searches:
        page, found = (
            source.runs(
                **filters,
                ended=True,
                since_s=since_s,
                sort=SORTS[query["sort"]],
                ascending=query["order"] == "asc",
                limit=PAGE,
                cursor=None if after is None else after.cursor,
            ),
            kind,
        )
        if page.runs:
            break
    runs = [run for run in page.runs if visibility.may_see(run.user, run.uid)]
    return RunPage(runs=runs, cursor=page.cursor), found


def _filters(find: str, user: str | None) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the filters to try in order, each with the kind of name that it searches.

    If `user` is given, all filters select only runs of this user.
    """
    own: dict[str, Any] = {} if user is None else {"user": user}
    if not find:
        yield None, own
        return
    kind, colon, name = find.partition(":")
    kinds = [kind] if colon and kind in _KINDS else list(_KINDS)
    name = name if colon and kind in _KINDS else find
    for each in kinds:
        if each != "user" or user is None:
            yield each, own | {_KINDS[each]: (name,) if each == "account" else name}
        elif name == user:
            yield each, own


def _read(given: Mapping[str, str]) -> dict[str, str]:
    for name in given:
        if name not in _PARAMETERS:
            raise UsageError(f"{name[:40]!r} is unknown; write one of {', '.join(_PARAMETERS)}")
    query = {"find": given.get("find", "").strip(), "cursor": given.get("cursor", "")}
    for name, allowed in (("own", FLAGS), ("sort", tuple(SORTS)), ("order", ORDERS)):
        query[name] = given.get(name, allowed[0])
        if query[name] not in allowed:
            raise UsageError(f"{name}: {query[name][:40]!r} must be one of {', '.join(allowed)}")
    return query
