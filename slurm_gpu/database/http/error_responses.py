"""What an error is answered with."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from slurm_gpu.database.http.request import RETRY_AFTER_S
from slurm_gpu.errors import DatabaseError, MungedUnavailableError, SlurmError, UsageError
from slurm_gpu.http.identity import NotAuthenticatedError, NotPermittedError
from slurm_gpu.wire import WIRE_RANGE

_LONGEST = 4000


class ShipmentError(Exception):
    """The shipment as a whole cannot be taken: `status` is the HTTP answer.

    It may be taken after `retry_after_s`, where that is not None.
    """

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


TRY_LATER = DatabaseError, MungedUnavailableError, SlurmError
FORESEEN = (
    NotAuthenticatedError,
    NotPermittedError,
    ShipmentError,
    UsageError,
    HTTPException,
    ClientDisconnect,
    *TRY_LATER,
)
"""All others are mistakes of ours: 500."""


def answer_to(error: Exception) -> Response:
    """The answer to a request that ended with this error, one of FORESEEN; raises any other."""
    match error:
        case NotAuthenticatedError():
            return JSONResponse(_told(error), 401, headers={"WWW-Authenticate": "MUNGE"})
        case NotPermittedError():
            return JSONResponse(_told(error), 403)
        case ShipmentError():
            headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
            return JSONResponse({**_told(error), "wire": list(WIRE_RANGE)}, error.status, headers)
        case UsageError():
            return JSONResponse(_told(error), 400)
        case HTTPException():
            return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
        case ClientDisconnect():
            return Response(status_code=400)  # nobody is there to read it
        case DatabaseError() | MungedUnavailableError() | SlurmError():
            return JSONResponse(_told(error), 503, headers={"Retry-After": str(RETRY_AFTER_S)})
    raise error


def _told(error: Exception) -> dict[str, str]:
    """Return the error's text, truncated if it quotes a whole body."""
    text = str(error)
    return {"error": text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"}
