"""Define the types of single values in configuration files, with their parsers and valid values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from slurm_gpu.config.checker import did_you_mean
from slurm_gpu.errors import UsageError
from slurm_gpu.text.units import format_duration, parse_duration

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The limit of 100 years keeps times within the range of dates.
LONGEST_S = 100 * 366 * 86400.0
DURATION = r"^\s*(\d+(\.\d+)?\s*[smhdw]|\d+-\d+(:\d+(:\d+)?)?|\d+:\d+(:\d+)?)\s*$"
EVERYWHERE = "0.0.0.0"
_T = TypeVar("_T")


class InvalidValueError(ValueError):
    """Raised if a value is invalid; the message continues a sentence that names the value: `must be …`."""


@dataclass(frozen=True, slots=True, eq=False)  # hashable, since type hints contain it
class ValueType:
    """A type of value; `parse` raises InvalidValueError, ValueError, LookupError or TypeError.

    `plural` is the noun for several values. `suffix` is the unit at the end of a field's name; the key in the
    file does not contain it.
    """

    what: str
    example: str
    parse: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)
    plural: str = "values"
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.what}, such as {self.example}" if self.example else self.what


@dataclass(frozen=True, slots=True)
class Address:
    """An address on which a daemon listens for TCP connections."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse HOST:PORT, [IPv6]:PORT or :PORT, where port 0 is any free port; raise ValueError if invalid."""
    parts = urlsplit(f"//{require(isinstance(text, str), text)}")
    port = parts.port
    if port is None or parts.path or parts.query or parts.fragment or parts.username:
        raise ValueError
    return Address(parts.hostname or EVERYWHERE, port)


def fixed_address(text: str) -> Address:
    """Parse an address as `parse_address` does, but reject port 0; raise ValueError if it is invalid."""
    address = parse_address(text)
    require(address.port, text)
    return address


def listen_option(text: str) -> Address:
    """Parse the address given by `--listen`; raise UsageError if it is invalid."""
    try:
        return parse_address(text)
    except ValueError:
        raise UsageError(f"--listen {text!r} must be {ADDRESS}") from None


def page_address(text: str) -> str:
    """Return the URL of a page without a trailing slash; raise ValueError if it is invalid."""
    parts = urlsplit(text)
    require(parts.scheme in ("http", "https") and parts.hostname and parts.port != 0, text)
    require(not (parts.query or parts.fragment or parts.username or parts.password), text)
    return text.rstrip("/")


def require(condition: object, value: _T) -> _T:
    """Return `value` if the condition is met; otherwise raise ValueError."""
    if not condition:
        raise ValueError
    return value


def choice(allowed: Iterable[str]) -> ValueType:
    """Accept one of the words `allowed`, and convert it to a member if `allowed` is an enum."""
    members = {str(member): member for member in allowed}

    def parse(value: Any) -> str:
        if isinstance(value, str) and value in members:
            return members[value]
        raise InvalidValueError(f"is not valid; {did_you_mean(value, members)}")

    return ValueType(f"one of {', '.join(members)}", "", parse, {"enum": [*members]})


def fixed(value: int) -> ValueType:
    """Accept only one number, such as the version of a format."""
    return ValueType(
        str(value), "", lambda given: require(given == value and given is not True, given), {"const": value}
    )


def text(
    example: str, what: str = "text on one line", plural: str = "texts", make: Callable[[str], Any] = str
) -> ValueType:
    """Accept non-empty text on one line, and strip surrounding white space."""
    return ValueType(
        what, example, lambda value: make(one_line(value)), {"type": "string", "pattern": r"\S"}, plural
    )


def one_line(value: Any) -> str:
    """Return text without surrounding white space; raise ValueError if it is empty or has several lines."""
    stripped: str = require(isinstance(value, str), value).strip()
    return str(require(stripped and not CONTROL.search(stripped), stripped))


def pattern(example: str, what: str, expression: str) -> ValueType:
    """Accept text that fully matches a regular expression."""
    compiled = re.compile(expression)
    return ValueType(
        what,
        example,
        lambda value: require(compiled.fullmatch(value), value),
        {"type": "string", "pattern": f"^{expression}$"},
    )


def path(example: str) -> ValueType:
    """Accept an absolute path of a file or directory that need not exist."""

    def parse(value: Any) -> Path:
        return Path(require(value.startswith("/") and not CONTROL.search(value), value))

    return ValueType("an absolute path", example, parse, {"type": "string", "pattern": "^/"})


def whole_number(least: int, most: int, example: str = "") -> ValueType:
    """Accept a whole number from `least` to `most`."""
    return ValueType(
        f"a whole number from {least} to {most}",
        example,
        lambda value: require(type(value) is int and least <= value <= most, value),
        {"type": "integer", "minimum": least, "maximum": most},
    )


def number(least: float, most: float = math.inf, example: str = "") -> ValueType:
    """Accept a finite number from `least` to `most`."""
    # type() excludes YAML's yes and no, which equal 1 and 0 in Python.
    return ValueType(
        f"a number from {least:g} to {most:.7g}" if most < math.inf else f"a number ≥ {least:g}",
        example,
        lambda value: float(
            require(type(value) in (int, float) and least <= value <= most and value < math.inf, value)
        ),
        {"type": "number", "minimum": least} | ({"maximum": most} if most < math.inf else {}),
    )


def or_none(value_type: ValueType) -> ValueType:
    """Accept the values of `value_type`, and null, which has the same effect as omitting the key."""
    return replace(value_type, parse=lambda value: None if value is None else value_type.parse(value))


def duration(
    least_s: float = 0.0,
    most_s: float = LONGEST_S,
    example: str = "10m",
    make: Callable[[float], float] = float,
) -> ValueType:
    """Accept a duration with a unit, but not 0, and convert it to seconds."""
    bounds = f" from {format_duration(least_s)} to {format_duration(most_s)}" if least_s else ""

    def parse(value: Any) -> float:
        seconds = parse_duration(value)
        return make(require(seconds > 0 and least_s <= seconds <= most_s, seconds))

    schema = {"type": "string", "pattern": DURATION}
    return ValueType(f"a duration{bounds}", example, parse, schema, "durations", "_s")


BOOL = ValueType(
    "true or false", "", lambda value: require(isinstance(value, bool), value), {"type": "boolean"}
)
NAME = text("alice", "a name", "names")
ADDRESS = ValueType("HOST:PORT", "127.0.0.1:6830", fixed_address, {"type": "string"})
ADDRESS_OR_ANY_PORT = ValueType("HOST:PORT", "0.0.0.0:6829", parse_address, {"type": "string"})
PAGE = ValueType("the address of the page", "https://gpu.example.org", page_address, {"type": "string"})
