"""What the watch says now, for whoever asks: one thread writes, requests read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slurm_gpu.database.http.request import authenticated
from slurm_gpu.http.identity import Authenticator, Caller
from slurm_gpu.wire.answers.verdicts import JobVerdict, ToldSuspect, Verdicts


@dataclass(frozen=True, slots=True)
class ShownVerdicts:
    """One moment. Each verdict has the uid of whose job it is."""

    as_of_s: float | None = None
    watched: int = 0
    verdicts: Sequence[tuple[int, JobVerdict]] = ()
    suspects: Sequence[ToldSuspect] = ()

    def seen_by(self, caller: Caller) -> Verdicts:
        """Of the caller's own jobs; operators see all, and who is a suspect."""
        return Verdicts(
            as_of_s=self.as_of_s,
            watched=self.watched,
            verdicts=[item for uid, item in self.verdicts if caller.may_see(uid)],
            suspects=self.suspects if caller.sees_all else (),
        )


class VerdictBoard:
    """The newest one."""

    def __init__(self) -> None:
        self.shown = ShownVerdicts()


class VerdictsPage:
    """GET /v1/verdicts."""

    def __init__(self, authenticator: Authenticator, board: VerdictBoard) -> None:
        self._authenticator, self._board = authenticator, board

    async def get(self, request: Request) -> Response:
        """Answer with what holds now."""
        caller = await authenticated(self._authenticator, request)
        return JSONResponse(self._board.shown.seen_by(caller).to_json())
