"""Calls of NVIDIA's library: what its return codes mean, and functions by name without pynvml's wrappers.

pynvml's wrappers allocate, convert and raise; what is called for each look goes to the functions themselves.
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

# After these the device says nothing more: it has to be found anew.
_TROUBLE = {
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
# After these the same is asked again ever less often: the longest pause is so many calls.
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

# What a device lacks that cannot do this, for those whom the name of a function tells nothing.
_NO_GPM = (
    "does not measure what its SMs do (GPM needs Hopper or newer): sm_active_frac, sm_occupancy_frac, "
    "tensor_frac and dram_frac are gaps;"
)
_WITHOUT = {
    "GPM": _NO_GPM,
    "nvmlGpmQueryDeviceSupport": _NO_GPM,
    "nvmlDeviceGetSamples": "keeps no samples of its utilization, and is asked for its current value;",
    "nvmlDeviceGetProcessUtilization": (
        "does not tell what each process does: jobs that share it have no utilization of their own;"
    ),
    "nvmlDeviceGetComputeRunningProcesses_v3": "does not show its processes;",
}

_MAX_SAID = 1000

# Says something to the admin; the priority is syslog's.
Tell = Callable[[int, str], None]
INFO, WARNING = 6, 4


def once(tell: Tell) -> Tell:
    """The same, but silent about what it has said already."""
    said: set[str] = set()

    def tell_once(priority: int, text: str) -> None:
        # A driver that returns nonsense is able to fail in ever new words.
        if text not in said and len(said) < _MAX_SAID:
            said.add(text)
            tell(priority, text)

    return tell_once


class GoneError(Exception):
    """The handle is worthless from now on."""

    def __init__(self, trouble: ReadError, why: str) -> None:
        super().__init__(why)
        self.trouble, self.why = trouble, why


def meaning(code: int) -> str:
    """Return NVML's own words for a return code."""
    return explained(pynvml.NVMLError(code))


def explained(error: Exception) -> str:
    """Return what an exception of the binding says, which asks NVML and may fail itself."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return f"{type(error).__name__} {getattr(error, 'value', '')}".strip()


def twice(ask: Callable[..., T], *arguments: Any) -> T:
    """Ask the binding, once more where it raises: drivers err now and then."""
    try:
        return ask(*arguments)
    except Exception:
        return ask(*arguments)


def check_gone(code: int) -> None:
    """Raise GoneError if that code says so."""
    trouble = _TROUBLE.get(code)
    if trouble is not None:
        raise GoneError(trouble, meaning(code))


def address(handle: Any) -> int | None:
    """By which the driver's handles can be compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value


@functools.cache
def function(name: str) -> Callable[..., int] | None:
    """That function of the library, which must have been loaded by nvmlInit; None if it has none."""
    found: Callable[..., int] | None = getattr(pynvml.nvmlLib, name, None)
    return found


class NvmlCalls:
    """The functions that work on one device. `tell` is one of `once`.

    What the device answers that it cannot do is asked ever less often: a driver may err, or learn.
    """

    def __init__(self, handle: Any, uuid: str, tell: Tell) -> None:
        self.handle = handle
        self._uuid, self._tell = uuid, tell
        self._never: frozenset[str] = frozenset()
        # By function, or what else is asked: how many calls to leave out from now on, of how many.
        self._pauses: dict[str, tuple[int, int]] = {}

    def call(self, name: str, *arguments: Any) -> int:
        """The return code; raises GoneError.

        NOT_FOUND and INSUFFICIENT_SIZE are answers of what returns a list. Any other failure is believed, and
        reported, if it happens twice: drivers err now and then.
        """
        if self.skips(name):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        found = function(name)
        for _ in range(2):
            code = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND if found is None else found(self.handle, *arguments)
            if code == SUCCESS or (code in (NOT_FOUND, INSUFFICIENT_SIZE) and name in _LISTS):
                self._pauses.pop(name, None)
                return int(code)
        check_gone(code)
        self.failed(name, code)
        return int(code)

    def gives(self, name: str, *arguments: Any) -> bool:
        """Did the call succeed?"""
        return bool(self.call(name, *arguments) == SUCCESS)

    def failed(self, what: str, code: int) -> None:
        """Note that asking for it gave that code."""
        lacks = "has no"
        if code in NEVER:
            _, pause = self._pauses.get(what, (0, 0))
            pause = min(_MAX_PAUSE, max(1, 2 * pause))
            self._pauses[what] = pause, pause
            lacks = _WITHOUT.get(what, lacks)
        self._tell(INFO, f"GPU {self._uuid} {lacks} {what}: {meaning(code)}")

    def leave_out(self, *names: str) -> None:
        """Never ask for these."""
        self._never = frozenset(names)

    def skips(self, what: str) -> bool:
        """Return whether to leave this call out, which counts as one."""
        if what in self._never:
            return True
        left, pause = self._pauses.get(what, (0, 0))
        if left > 0:
            self._pauses[what] = left - 1, pause
        return left > 0

    def is_out(self, what: str) -> bool:
        """Did the device answer that it cannot do this?"""
        return what in self._never or what in self._pauses

    def try_again(self) -> None:
        """Ask for everything else anew."""
        self._pauses.clear()
