"""Answers of the state as ASGI applications: made once for all who may see the same, and kept with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.state import PageState
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.http.response_cache import CacheKey
from slurm_gpu.monitor.viewer import Flavour, ViewerOf

RETRY_AFTER_S = 5
Make = Callable[[PageState, Flavour, str], bytes]
"""(state, who may see it, the parameter's value) to a body; raises UsageError for a value that is none."""


@dataclass(frozen=True, slots=True)
class ListingKind:
    """One kind of answer: by its name it is kept; `parameter` is the query's only one, if there is one."""

    name: str
    make: Make
    parameter: str | None = None
    default: str = ""
    media: bytes = JSON
    for_all: bool = False
    """Whether everybody gets the same."""
    of_metric: bool = False
    """Whether it is as old as the metric that its parameter names."""
    same_as: Callable[[PageState, str], str] = lambda _, value: value
    """A value that is answered alike: what may be anything must not be kept under each; raises UsageError."""


class Listing:
    """GET of one kind of answer."""

    def __init__(self, told: ListingKind, board: Board, viewer_of: ViewerOf) -> None:
        self._told, self._board, self._viewer_of = told, board, viewer_of
        self._query = b"" if told.parameter is None else told.parameter.encode() + b"="

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        viewer = self._viewer_of(HTTPConnection(scope))
        self._board.is_viewed = True
        state = self._board.state
        if state is None:
            why = "slurm-gpudbd has not told of the cluster since slurm-gpuweb started"
            raise HTTPException(503, why, {"Retry-After": str(RETRY_AFTER_S)})
        answer = self.answer(state, viewer.flavour, self._value(scope["query_string"]))
        await answer(scope, receive, send)

    def answer(self, state: PageState, flavour: Flavour, value: str) -> CachedResponse:
        """The one that is kept, or a new one."""
        told = self._told
        seen_by = Flavour(True, "") if told.for_all else flavour
        value = told.same_as(state, value)
        key = CacheKey(told.name, value, seen_by)
        answer = state.answers.get(key)
        if answer is None:
            body = told.make(state, seen_by, value)
            as_of_s = state.as_of_s(value if told.of_metric else None)
            headers = [
                (b"x-as-of-s", f"{as_of_s:.3f}".encode()),
                (b"x-layout", state.layout.id.encode()),
            ]
            answer = CachedResponse(body, told.media, headers)
            state.answers.keep(key, answer)
        return answer

    def _value(self, query: bytes) -> str:
        """The parameter's, once at most; raises UsageError."""
        told = self._told
        if not query:
            return told.default
        if told.parameter is not None and query.startswith(self._query) and b"&" not in query:
            text = query[len(self._query) :]
            if text.isalnum() or text.replace(b"_", b"").isalnum():
                return text.decode("ascii")
        try:
            given = parse_qs(query.decode("ascii"), keep_blank_values=True, max_num_fields=10)
        except ValueError:
            raise UsageError("the query cannot be read") from None
        values = given.get(told.parameter, []) if told.parameter is not None else []
        if len(values) > 1:
            raise UsageError(f"{told.parameter!r} is given twice")
        return values[0] if values else told.default
