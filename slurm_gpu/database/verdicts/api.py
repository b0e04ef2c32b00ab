"""Serve the verdicts on running jobs."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from slurm_gpu.database.http.answer import Answer
from slurm_gpu.database.http.request import authenticated
from slurm_gpu.database.live.verdict_board import VerdictBoard
from slurm_gpu.http.identity import Authenticator


class VerdictsPage:
    """Serve GET /v1/verdicts."""

    def __init__(self, authenticator: Authenticator, board: VerdictBoard) -> None:
        self._authenticator, self._board = authenticator, board

    async def get(self, request: Request) -> Response:
        """Return the current verdicts that the caller may see."""
        caller = await authenticated(self._authenticator, request)
        return Answer(self._board.shown.seen_by(caller))
