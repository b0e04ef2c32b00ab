"""Check all of a YAML file, and report every error with its position and the valid values."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice
from typing import Any

from slurm_gpu.config.yaml_source import Location, YamlSource
from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.text.units import few, parse_duration

_SHOWN_CHARACTERS = 80
# Slurm reads such a value as minutes and seconds, but a user may mean hours and minutes.
_AMBIGUOUS = re.compile(r"\d+:\d\d")
# Maximum numbers of errors reported for one file, of names compared with a misspelt name, and of names
# listed in a message.
_MOST_ERRORS = 200
_MOST_COMPARED = 1000
_MOST_LISTED = 30


# Keys renamed in 0.3. An old key is rejected only in tables in which it is no longer valid.
RENAMED_KEYS = {
    "may": "allowed_groups",
    "must": "required_groups",
    "together": "jobs_per_gpu",
    "largest": "max_gpu_fraction",
    "hold": "max_wait",
    "then": "action",
    "most": "max_points",
    "per_user_a_day": "max_per_user_per_day",
    "concerns": "alerts",
}


class YamlCheck:
    """A check that collects all errors in a file instead of stopping at the first; `finish` raises them."""

    def __init__(self, source: YamlSource) -> None:
        self.source = source
        self.errors: list[InputError] = []
        self.failed: set[Location] = set()

    def fail(self, location: Location, message: str, *, key: bool = False) -> None:
        """Record an error in the value or key at `location`; raise InvalidFileError if there are too many."""
        self.failed.add(location)
        self.errors.append(self.source.error(location, message, key=key))
        if len(self.errors) == _MOST_ERRORS:
            self.finish()

    def finish(self) -> None:
        """If errors were recorded, raise InvalidFileError with all of them in the order of the file."""
        if self.errors:
            errors = sorted(self.errors, key=lambda error: (error.line, error.column))
            if len(errors) >= _MOST_ERRORS:
                message = f"has {_MOST_ERRORS} errors; the check stopped there, so there may be more"
                errors.append(InputError(self.source.path, 0, 0, message))
            raise InvalidFileError(errors)

    def mapping(
        self, location: Location, value: Any, known: Collection[str] | None, name: str | None = None
    ) -> dict[Any, Any]:
        """Return the entries of a mapping with known keys; {} if the value is not a mapping.

        All keys are accepted if `known` is None. `name` is the name of the mapping in messages; by default,
        it is derived from the location.
        """
        name = (".".join(map(str, location)) or "the file") if name is None else name
        if not isinstance(value, dict):
            hint = f"; allowed: {few(known, _MOST_LISTED)}" if known else ""
            self.fail(location, f"{name} must contain `key: value` lines, not {shown(value)}{hint}")
            return {}
        if known is None:
            return value
        for key in value:
            if key not in known:
                hint = self.hint_for(location, key, known)
                self.fail((*location, key), f"{key!r} is not a setting of {name}; {hint}", key=True)
        return {key: item for key, item in value.items() if key in known}

    def hint_for(self, location: Location, key: Any, known: Collection[str]) -> str:
        """Return the end of a message about an unknown key of a table at `location`."""
        renamed = RENAMED_KEYS.get(key)
        return f"did you mean {renamed}?" if renamed in known else did_you_mean(key, known)

    def seconds(self, location: Location, value: Any) -> float | None:
        """Return a duration in seconds, or None if the value is not a duration or its unit is ambiguous."""
        if self.is_ambiguous(location, value):
            return None
        try:
            return parse_duration(value)
        except (ValueError, AttributeError, TypeError):
            return None

    def is_ambiguous(self, location: Location, value: Any) -> bool:
        """Return whether a duration is written like 12:00 without quotes; in quotes, it means 12 minutes."""
        is_clock = isinstance(value, str) and _AMBIGUOUS.fullmatch(value) is not None
        return is_clock and self.source.texts.get(location) == value


def did_you_mean(value: Any, allowed: Collection[object]) -> str:
    """Return the end of a message about an invalid value: a similar name, or the valid names."""
    # Imported here because most files have no errors, and memory matters to the programs that read them.
    import difflib

    names = [str(name) for name in islice(allowed, _MOST_COMPARED)]
    close = difflib.get_close_matches(str(value)[:_SHOWN_CHARACTERS], names, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"allowed: {few(allowed, _MOST_LISTED)}" if names else "none is defined"


def shown(value: Any) -> str:
    """Return the text of a value for a message, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
