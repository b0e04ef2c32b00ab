"""Every error that slurm-gpu raises on purpose.

SlurmGpuError           exit code 3 unless a subclass says otherwise
├── UsageError          2: the command line or a request was wrong
├── InputError          2: a file is wrong; names file:line:column, the value, what would be right
│   └── InvalidFileError 2: several of them, in the order of the file
├── RecordError         a wire record is malformed; names the field
└── OutsideError        3: Slurm, the database, MUNGE or NVML failed
    ├── SlurmError
    │   └── SlurmRefusalError Slurm answered, and did not do it
    ├── DatabaseError
    │   ├── NotAllowedError 2: slurm-gpudbd knows the caller, who may not do or see that
│   └── NotFoundError   slurm-gpudbd knows nothing of what was asked for
    ├── MungeError
    │   └── MungedAwayError
    └── NvmlError
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence


class SlurmGpuError(Exception):
    """Base of all errors raised on purpose; `str()` is fit for a user's eyes."""

    exit_code = 3


class UsageError(SlurmGpuError):
    """The command line or a request cannot be carried out as written."""

    exit_code = 2


class InputError(SlurmGpuError):
    """A file holds something that cannot be used.

    `line` and `column` count from 1, as editors do; 0 means the whole file.
    """

    exit_code = 2

    def __init__(self, path: str, line: int, column: int, message: str) -> None:
        self.path, self.line, self.column, self.message = path, line, column, message
        where = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{where}: {message}")


class InvalidFileError(InputError):
    """All that is wrong with one file, so that it can be mended in one go."""

    def __init__(self, errors: Sequence[InputError]) -> None:
        first = errors[0]
        super().__init__(first.path, first.line, first.column, first.message)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class RecordError(SlurmGpuError):
    """A record on the wire is malformed; the message names the field and the value."""


class OutsideError(SlurmGpuError):
    """Something outside slurm-gpu failed: Slurm, the database, MUNGE or NVML."""


@contextlib.contextmanager
def outside(path: object = None, more: str = "") -> Iterator[None]:
    """Raise an OSError as an OutsideError that names its file, or else `path`, and ends with `more`."""
    try:
        yield
    except OSError as error:
        raise OutsideError(f"{error.filename or path}: {error.strerror}{more}") from error


class SlurmError(OutsideError):
    """A Slurm command failed or printed what we cannot read."""


class SlurmRefusalError(SlurmError):
    """Slurm answered, and did not do what it was told: none of its daemons is down."""


class DatabaseError(OutsideError):
    """slurm-gpudbd or its database could not be reached or refused the request."""


class NotAllowedError(DatabaseError):
    """Nothing failed: slurm-gpudbd knows the caller, and shows or does that for others only."""

    exit_code = 2


class NotFoundError(DatabaseError):
    """Nothing failed: slurm-gpudbd knows nothing of what was asked for."""


class MungeError(OutsideError):
    """MUNGE could not make or check a credential."""


class MungedAwayError(MungeError):
    """The local munged does not answer: no word about the credential."""


class NvmlError(OutsideError):
    """The NVIDIA driver library failed as a whole (not one reading of one GPU)."""


def exit_code_of(program: str, run: Callable[[], None]) -> int:
    """Run a daemon until it ends; tell in a line on standard error which error of ours ended it."""
    try:
        run()
    except SlurmGpuError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    return 0
