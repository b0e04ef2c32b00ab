"""Serve answers from the state as ASGI applications.

Each answer is created once for all viewers who may see the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from slurm_gpu.errors import UsageError
from slurm_gpu.monitor.cluster.board import Board
from slurm_gpu.monitor.cluster.state import PageState
from slurm_gpu.monitor.http.response import JSON, CachedResponse
from slurm_gpu.monitor.http.response_cache import CacheKey
from slurm_gpu.monitor.viewer import ViewerOf, Visibility

# Returns the body for (state, visibility, the parameter's value); raises UsageError for an invalid value.
Make = Callable[[PageState, Visibility, str], bytes]


@dataclass(frozen=True, slots=True)
class ListingKind:
    """One kind of answer. `name` is its cache key; `parameter` is the only parameter of the query, if any."""

    name: str
    make: Make
    parameter: str | None = None
    default: str = ""
    media: bytes = JSON
    for_all: bool = False
    """Whether all users get the same answer."""
    of_metric: bool = False
    """Whether the answer contains the timestamp of the metric that the parameter names."""
    same_as: Callable[[PageState, str], str] = lambda _, value: value
    """Maps values with equal answers to one value; otherwise, arbitrary values could fill the cache.

    Raises UsageError if the value is invalid.
    """


class Listing:
    """An ASGI application that serves GET for one kind of answer."""

    def __init__(self, kind: ListingKind, board: Board, viewer_of: ViewerOf) -> None:
        self._kind, self._board, self._viewer_of = kind, board, viewer_of
        self._query = b"" if kind.parameter is None else kind.parameter.encode() + b"="

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        viewer = self._viewer_of(HTTPConnection(scope))
        self._board.is_viewed = True
        answer = self.answer(self._board.current(), viewer.visibility, self._value(scope["query_string"]))
        await answer(scope, receive, send)

    def answer(self, state: PageState, visibility: Visibility, value: str) -> CachedResponse:
        """Return the cached answer, or create it."""
        kind = self._kind
        seen_by = Visibility(True, "") if kind.for_all else visibility
        value = kind.same_as(state, value)
        key = CacheKey(kind.name, value, seen_by)
        answer = state.answers.get(key)
        if answer is None:
            body = kind.make(state, seen_by, value)
            as_of_s = state.as_of_s(value if kind.of_metric else None)
            headers = [
                (b"x-as-of-s", f"{as_of_s:.3f}".encode()),
                (b"x-layout", state.layout.id.encode()),
            ]
            answer = CachedResponse(body, kind.media, headers)
            state.answers.keep(key, answer)
        return answer

    def _value(self, query: bytes) -> str:
        """Return the parameter's value; raise UsageError if it is repeated."""
        kind = self._kind
        if not query:
            return kind.default
        if kind.parameter is not None and query.startswith(self._query) and b"&" not in query:
            text = query[len(self._query) :]
            if text.isalnum() or text.replace(b"_", b"").isalnum():
                return text.decode("ascii")
        try:
            given = parse_qs(query.decode("ascii"), keep_blank_values=True, max_num_fields=10)
        except ValueError:
            raise UsageError("the query cannot be read") from None
        values = given.get(kind.parameter, []) if kind.parameter is not None else []
        if len(values) > 1:
            raise UsageError(f"{kind.parameter!r} is given twice")
        return values[0] if values else kind.default
