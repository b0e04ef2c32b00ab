"""A faulty driver: some calls of the real binding return nonsense, chosen by a seed."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from slurm_gpu.node.gpu import nvml_calls as nvmlcalls

CODES = [*range(1, 31), 999, -1, 12345]


class Nonsense:
    """A stand-in for the loaded library: a fraction `rate` of all calls returns nonsense.

    Nonsense is a random return code, or an answer of random bytes or of 0xff only.
    """

    def __init__(self, library: Any, seed: int, rate: float) -> None:
        self._library, self._dice, self.rate = library, random.Random(seed), rate
        self.calls = 0
        self.done: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., int]:
        real = getattr(self._library, name)
        if not name.startswith("nvml") or name in ("nvmlErrorString", "nvmlGpmSampleFree"):
            return real  # type: ignore[no-any-return]

        def call(*arguments: Any) -> int:
            self.calls += 1
            if self._dice.random() >= self.rate:
                return int(real(*arguments))
            self.done[name] += 1
            kind = self._dice.choice(("code", "ones", "random"))
            if kind == "code":
                return self._dice.choice(CODES)
            code = int(real(*arguments))
            for argument in arguments:
                # The driver cannot change numbers passed by value.
                if hasattr(argument, "_obj") or isinstance(argument, ctypes.Array):
                    self._spoil(getattr(argument, "_obj", argument), ones=kind == "ones")
            return code

        return call

    def _spoil(self, answer: Any, *, ones: bool) -> None:
        # If the structure also contains the caller's request, only the driver's answer is replaced.
        if isinstance(answer, pynvml.c_nvmlGpmMetricsGet_t):
            for metric in answer.metrics[: answer.numMetrics]:
                metric.value = self._dice.choice((float("nan"), float("inf"), -1e9, 1e300, 101.0))
        elif isinstance(answer, pynvml.c_nvmlFieldValue_t) or _is_list_of_values(answer):
            for value in answer if _is_list_of_values(answer) else (answer,):
                value.value.ullVal = 2**64 - 1 if ones else self._dice.getrandbits(64)
        elif isinstance(answer, ctypes.Array | ctypes.Structure | ctypes.c_uint | ctypes.c_ulonglong):
            size = ctypes.sizeof(answer)
            ctypes.memmove(
                ctypes.addressof(answer), b"\xff" * size if ones else self._dice.randbytes(size), size
            )


def _is_list_of_values(answer: Any) -> bool:
    return isinstance(answer, ctypes.Array) and answer._type_ is pynvml.c_nvmlFieldValue_t


@contextlib.contextmanager
def replace_library(patch: pytest.MonkeyPatch, library: Any) -> Iterator[None]:
    """Direct all calls of the binding to this library."""
    with patch.context() as patched:
        patched.setattr(pynvml, "nvmlLib", library)
        patched.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        nvmlcalls.function.cache_clear()
        yield
    nvmlcalls.function.cache_clear()
