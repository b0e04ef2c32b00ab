"""Define all errors that slurm-gpu raises deliberately. The exit code is 3 unless another is listed.

- SlurmGpuError
  - UsageError (2): invalid command line or request
  - InputError (2): invalid file, with file:line:column, value and hint
    - InvalidFileError: several errors of one file, in file order
  - RecordError: malformed wire record, with the field
  - OutsideError: failure of Slurm, the database, MUNGE or NVML
    - SlurmError
      - SlurmRefusalError: Slurm rejected the request
    - DatabaseError
      - NotAllowedError (2): the caller has no permission
      - NotFoundError: slurm-gpudbd has no such object
    - MungeError
      - MungedUnavailableError
    - NvmlError
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence


class SlurmGpuError(Exception):
    """The base class of all deliberate errors; `str()` returns a message for users."""

    exit_code = 3


class UsageError(SlurmGpuError):
    """The command line or a request is invalid."""

    exit_code = 2


class InputError(SlurmGpuError):
    """A file has an invalid value.

    `line` and `column` count from 1; 0 means the whole file.
    """

    exit_code = 2

    def __init__(self, path: str, line: int, column: int, message: str) -> None:
        self.path, self.line, self.column, self.message = path, line, column, message
        where = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{where}: {message}")


class InvalidFileError(InputError):
    """All errors of one file, which users can fix before they try again."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        first = errors[0]
        super().__init__(first.path, first.line, first.column, first.message)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class RecordError(SlurmGpuError):
    """A wire record is malformed; the message names the field and the value."""


class OutsideError(SlurmGpuError):
    """Something outside slurm-gpu failed: Slurm, the database, MUNGE or NVML."""


@contextlib.contextmanager
def outside(path: object = None, more: str = "") -> Iterator[None]:
    """Convert an OSError to an OutsideError whose message names the file or `path` and ends with `more`."""
    try:
        yield
    except OSError as error:
        raise OutsideError(f"{error.filename or path}: {error.strerror}{more}") from error


class SlurmError(OutsideError):
    """A Slurm command failed, or its output is invalid."""


class SlurmRefusalError(SlurmError):
    """Slurm rejected the request, although its daemons are running."""


class DatabaseError(OutsideError):
    """slurm-gpudbd or its database is unreachable, or rejected the request."""


class NotAllowedError(DatabaseError):
    """The caller lacks a permission that slurm-gpudbd requires."""

    exit_code = 2


class NotFoundError(DatabaseError):
    """slurm-gpudbd has no such object."""


class MungeError(OutsideError):
    """MUNGE could not create or check a credential."""


class MungedUnavailableError(MungeError):
    """The local munged does not answer, so no credential was created or checked."""


class NvmlError(OutsideError):
    """The NVIDIA driver library failed, not only a single reading of one GPU."""


def exit_code_of(program: str, run: Callable[[], None]) -> int:
    """Run a daemon and return its exit code; if a SlurmGpuError ends it, print the error to stderr."""
    try:
        run()
    except SlurmGpuError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    return 0
