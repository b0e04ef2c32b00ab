"""Call NVML's functions without pynvml's wrappers, and interpret return codes.

The wrappers allocate memory, convert values and raise exceptions, so each sample calls the functions
directly.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from slurm_gpu.node.gpu.reading import ReadError

T = TypeVar("T")

SUCCESS = pynvml.NVML_SUCCESS
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
INSUFFICIENT_SIZE = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN

# After these errors, the devices must be searched for again.
_ERRORS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: ReadError.LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: ReadError.LOST,
    pynvml.NVML_ERROR_UNINITIALIZED: ReadError.DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ReadError.DRIVER,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ReadError.DRIVER,
}
_LISTS = frozenset(
    (
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    )
)
# After these errors, the pause before the next call doubles, up to this number of skipped calls.
_MAX_PAUSE = 1024
NEVER = frozenset(
    (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_DEPRECATED,
    )
)

# The consequence of a missing function, in words that admins understand.
_NO_GPM = (
    "does not measure SM activity (GPM requires Hopper or later): sm_active_frac, sm_occupancy_frac, "
    "tensor_frac and dram_frac are gaps;"
)
_WITHOUT = {
    "GPM": _NO_GPM,
    "nvmlGpmQueryDeviceSupport": _NO_GPM,
    "nvmlDeviceGetSamples": "has no utilisation samples, only a current value;",
    "nvmlDeviceGetProcessUtilization": (
        "does not report utilisation by process: the utilisation of jobs that share it is unknown;"
    ),
    "nvmlDeviceGetComputeRunningProcesses_v3": "does not list its processes;",
}

_MAX_LOGGED = 1000

# Logs a message with a syslog priority.
LogFunction = Callable[[int, str], None]
INFO, WARNING = 6, 4


def once(log: LogFunction) -> LogFunction:
    """Return a log function that drops repeated messages."""
    logged: set[str] = set()

    def log_once(priority: int, text: str) -> None:
        # A faulty driver may fail with a different message each time.
        if text not in logged and len(logged) < _MAX_LOGGED:
            logged.add(text)
            log(priority, text)

    return log_once


class GoneError(Exception):
    """The device is gone, and its handle is no longer valid."""

    def __init__(self, kind: ReadError, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


def meaning(code: int) -> str:
    """Return NVML's text for a return code."""
    return explained(pynvml.NVMLError(code))


def explained(error: Exception) -> str:
    """Return the text of an exception that the binding raised; getting the text calls NVML and may fail."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} {getattr(error, 'value', '')}".strip()


def twice(ask: Callable[..., T], *arguments: Any) -> T:
    """Call the binding and retry once after any error, because drivers occasionally fail."""
    try:
        return ask(*arguments)
    except Exception:
        return ask(*arguments)


def check_gone(code: int) -> None:
    """Raise GoneError if the code means that the device or the driver is gone."""
    kind = _ERRORS.get(code)
    if kind is not None:
        raise GoneError(kind, meaning(code))


def address(handle: Any) -> int | None:
    """Return the address to which a handle points, so that handles can be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value


@functools.cache
def function(name: str) -> Callable[..., int] | None:
    """Return a function of the library, or None if it does not exist; call this after nvmlInit."""
    found: Callable[..., int] | None = getattr(pynvml.nvmlLib, name, None)
    return found


class NvmlCalls:
    """Calls functions on one device; `log` is a function returned by `once`.

    Functions reported as unsupported are retried after growing pauses, because the report may be a driver
    error.
    """

    def __init__(self, handle: Any, uuid: str, log: LogFunction) -> None:
        self.handle = handle
        self._uuid, self._log = uuid, log
        self._never: frozenset[str] = frozenset()
        # The number of calls still to skip and the length of the whole pause in calls, by function or
        # feature.
        self._pauses: dict[str, tuple[int, int]] = {}

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function and return its code; raise GoneError if the device is gone.

        NOT_FOUND and INSUFFICIENT_SIZE are valid codes of functions that return a list. Other failures are
        retried once and then logged, because drivers occasionally fail.
        """
        if self.skips(name):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = function(name)
        code = SUCCESS
        for _ in range(2):
            code = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND if found is None else found(self.handle, *arguments)
            if code == SUCCESS or (code in (NOT_FOUND, INSUFFICIENT_SIZE) and name in _LISTS):
                self._pauses.pop(name, None)
                return int(code)
        check_gone(code)
        self.failed(name, code)
        return int(code)

    def gives(self, name: str, *arguments: Any) -> bool:
        """Call a function and return whether it succeeded."""
        return bool(self.call(name, *arguments) == SUCCESS)

    def failed(self, what: str, code: int) -> None:
        """Log the failure of a function or feature; if it is unsupported, pause the calls to it."""
        lacks = "has no"
        if code in NEVER:
            _, pause = self._pauses.get(what, (0, 0))
            pause = min(_MAX_PAUSE, max(1, 2 * pause))
            self._pauses[what] = pause, pause
            lacks = _WITHOUT.get(what, lacks)
        self._log(INFO, f"GPU {self._uuid} {lacks} {what}: {meaning(code)}")

    def leave_out(self, *names: str) -> None:
        """Skip all calls to these functions from now on."""
        self._never = frozenset(names)

    def skips(self, what: str) -> bool:
        """Return whether to skip this call, and count it as part of the pause."""
        if what in self._never:
            return True
        left, pause = self._pauses.get(what, (0, 0))
        if left > 0:
            self._pauses[what] = left - 1, pause
        return left > 0

    def is_out(self, what: str) -> bool:
        """Return whether calls to this function or feature are paused or excluded."""
        return what in self._never or what in self._pauses

    def try_again(self) -> None:
        """End all pauses."""
        self._pauses.clear()
