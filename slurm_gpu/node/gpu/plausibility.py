"""Filter out implausible answers from a device: the field becomes unknown, and the value is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slurm_gpu.node.gpu.nvml_calls import WARNING, GoneError, LogFunction
from slurm_gpu.plausible import is_plausible

T = TypeVar("T")


class PlausibilityFilter:
    """Filters answers from one device and collects implausible values by field until `take` is called."""

    def __init__(self, uuid: str, log: LogFunction) -> None:
        self._uuid, self._log = uuid, log
        self._found: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def ask(self, get: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of `get`; retry once if it is implausible, because drivers occasionally fail.

        The result is None if the binding raises an exception. Raise GoneError if the device is gone.
        """
        self._new = {}
        answer = self._answer(get, *arguments)
        if self._new:
            self._new = {}
            answer = self._answer(get, *arguments)
            self._found |= self._new
        return answer

    def number(self, field: str, value: float, quantity: str | None = None) -> float | None:
        """Return a field's value, or None if it is implausible for `quantity` (by default `field`)."""
        if is_plausible(field if quantity is None else quantity, value):
            return value
        self.reject(field, value)
        return None

    def reject(self, field: str, value: float) -> None:
        """Record that this value of a field is implausible."""
        self._new[field] = f"{value:.12g}"

    def take(self) -> dict[str, str] | None:
        """Return the implausible values found since the last call, by field, or None if there were none."""
        found, self._found = self._found, {}
        return found or None

    def _answer(self, get: Callable[..., T], *arguments: object) -> T | None:
        try:
            return get(*arguments)
        except GoneError:
            raise
        except Exception as error:
            # An error in one field must neither affect other fields nor end the reader.
            field = getattr(get, "__name__", "").strip("_")
            self._log(WARNING, f"GPU {self._uuid}: {field} cannot be read: {type(error).__name__}")
            return None
