"""Map errors to HTTP responses."""

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
    """Raised if a whole shipment is rejected; `status` is the HTTP status code of the response.

    Unless `retry_after_s` is None, the shipment may be accepted after this time.
    """

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


TRY_LATER = DatabaseError, MungedUnavailableError, SlurmError
# Errors of any other class are bugs and result in status 500.
EXPECTED = (
    NotAuthenticatedError,
    NotPermittedError,
    ShipmentError,
    UsageError,
    HTTPException,
    ClientDisconnect,
    *TRY_LATER,
)


def answer_to(error: Exception) -> Response:
    """Return the response to an expected error; raise any other error."""
    match error:
        case NotAuthenticatedError():
            return JSONResponse(_body(error), 401, headers={"WWW-Authenticate": "MUNGE"})
        case NotPermittedError():
            return JSONResponse(_body(error), 403)
        case ShipmentError():
            headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
            return JSONResponse({**_body(error), "wire": list(WIRE_RANGE)}, error.status, headers)
        case UsageError():
            return JSONResponse(_body(error), 400)
        case HTTPException():
            return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
        case ClientDisconnect():
            return Response(status_code=400)  # the client has disconnected
        case DatabaseError() | MungedUnavailableError() | SlurmError():
            return JSONResponse(_body(error), 503, headers={"Retry-After": str(RETRY_AFTER_S)})
    raise error


def _body(error: Exception) -> dict[str, str]:
    """Return a body with the error's text, truncated to _LONGEST since it may quote a whole request body."""
    text = str(error)
    return {"error": text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"}
