"""What of a device's answers cannot be: a gap of that field, which is counted and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slurm_gpu.node.gpu.nvml_calls import WARNING, GoneError, Tell
from slurm_gpu.plausible import is_plausible

T = TypeVar("T")


class PlausibilityFilter:
    """Answers of one device. What it finds implausible it collects by field until it is taken."""

    def __init__(self, uuid: str, tell: Tell) -> None:
        self._uuid, self._tell = uuid, tell
        self._found: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def ask(self, get: Callable[..., T], *arguments: object) -> T | None:
        """Return what `get` returns; ask once more where that is implausible, since drivers err now and then.

        None where the binding raises. Raises GoneError.
        """
        self._new = {}
        answer = self._answer(get, *arguments)
        if self._new:
            self._new = {}
            answer = self._answer(get, *arguments)
            self._found |= self._new
        return answer

    def number(self, field: str, value: float, quantity: str | None = None) -> float | None:
        """Return a value of that field of Reading; None where it is implausible.

        The quantity, by which that is known, is the field unless it is given.
        """
        if is_plausible(field if quantity is None else quantity, value):
            return value
        self.reject(field, value)
        return None

    def reject(self, field: str, value: float) -> None:
        """Note that this value of a field is implausible."""
        self._new[field] = f"{value:.12g}"

    def take(self) -> dict[str, str] | None:
        """Return the implausible values since the last call by field; None if there were none."""
        found, self._found = self._found, {}
        return found or None

    def _answer(self, get: Callable[..., T], *arguments: object) -> T | None:
        try:
            return get(*arguments)
        except GoneError:
            raise
        except Exception as error:
            # One field must not cost the others, nor the reader its life.
            field = getattr(get, "__name__", "").strip("_")
            self._tell(WARNING, f"GPU {self._uuid}: {field} cannot be read: {type(error).__name__}")
            return None
