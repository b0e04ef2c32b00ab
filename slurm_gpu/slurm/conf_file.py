"""Read slurm.conf, gres.conf and similar files, and record the file and number of each line.

The grammar is that of src/common/parse_config.c, which is unchanged from 22.05 to 26.05. The grammar has
neither sections nor nesting. A line is `key=value`; lines of nodes and partitions contain more pairs.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_gpu.text.hostlist import expand

# Matches text before a comment. A backslash escapes the next character; quotes do not protect a number sign.
_BEFORE_COMMENT = re.compile(r"(?:[^\\#]|\\.|\\\Z)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
# Slurm accepts an operator before "=" and sets the value anyway.
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|\Z)', re.ASCII)
# Slurm accepts Include only at the start of a line.
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE | re.ASCII)
_BLANKS = " \t\v\f\r"
_SPACE = re.compile(r"\s", re.ASCII)
_HOST_SEPARATORS = re.compile(r"[\t ,]+(?![^\[]*\])")
# Numbers are parsed as by strtoul() with base 0; empty text is 0.
_NUMBER = re.compile(r"(?:\s*\+?(?:0x([0-9a-f]+)|(0[0-7]*)|([1-9][0-9]*)))?(k?)", re.IGNORECASE | re.ASCII)
_INFINITE = 0xFFFFFFFF
_DEFAULT_WEIGHT = 1
# This limit stops the recursion if files include each other.
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ConfLine:
    """A line with its continuation lines: the first pair, and the other pairs of a node or partition.

    `key` is empty if the line contains no pair. `leftover` is text that is not a pair; such text prevents
    Slurm from starting.
    """

    file: Path
    number: int
    """The number of the first of the joined lines."""
    key: str
    value: str
    """The value without quotes and escapes."""
    pairs: Sequence[tuple[str, str]] = ()
    leftover: str = ""

    @property
    def place(self) -> str:
        """Return FILE:LINE."""
        return f"{self.file}:{self.number}"

    def get(self, key: str) -> str | None:
        """Return the value of the last pair with this key, excluding the first pair; None if absent."""
        found = [value for name, value in self.pairs if name.lower() == key.lower()]
        return found[-1] if found else None

    def __str__(self) -> str:
        """Return the line as text that Slurm can read, without `leftover`."""
        return " ".join(written(key, value) for key, value in ((self.key, self.value), *self.pairs))


def written(key: str, value: str) -> str:
    """Return `key=value` for slurm.conf, quoted and escaped if necessary."""
    text = value.replace("\\", "\\\\").replace("#", "\\#")
    return f'{key}="{text}"' if not text or _SPACE.search(text) else f"{key}={text}"


def read_conf(path: Path) -> list[ConfLine]:
    """Return the lines of slurm.conf and of included files, in order.

    Raise OSError if one of these files cannot be read; Slurm does not start in this case either.
    """
    lines: list[ConfLine] = []
    _read(path, path.parent, lines, _MAX_DEPTH)
    return lines


def settings_named(lines: Iterable[ConfLine], key: str) -> list[ConfLine]:
    """Return the lines with this key, ignoring case. Slurm uses the last line if the key takes one value."""
    return [line for line in lines if line.key.lower() == key.lower()]


def with_defaults(lines: Iterable[ConfLine], key: str) -> list[ConfLine]:
    """Return the NodeName or PartitionName lines, completed by the pairs of earlier DEFAULT lines.

    A second DEFAULT line replaces only the pairs that it names.
    """
    found: list[ConfLine] = []
    defaults: tuple[tuple[str, str], ...] = ()
    for line in settings_named(lines, key):
        pairs = (*defaults, *line.pairs)
        if line.value.upper() == "DEFAULT":
            defaults = pairs
        else:
            found.append(replace(line, pairs=pairs))
    return found


def node_weights(lines: Iterable[ConfLine]) -> dict[str, int]:
    """Return the Weight that each node has after a reconfiguration.

    Nodes in lines with an invalid hostlist or Weight are left out.
    """
    weights: dict[str, int] = {}
    for line in with_defaults(lines, "NodeName"):
        text = line.get("Weight")
        try:
            # Slurm replaces INFINITE with the largest weight.
            weight = _DEFAULT_WEIGHT if text is None else min(parse_number(text), _INFINITE - 1)
            names = expand(_HOST_SEPARATORS.sub(",", line.value).strip(","))
        except ValueError:
            continue
        weights |= dict.fromkeys(names, weight)
    return weights


def parse_number(text: str) -> int:
    """Parse a 32-bit number of slurm.conf, such as 50, 0x32, 062, 4k or INFINITE.

    Raise ValueError if the text is not such a number.
    """
    if text.upper() in ("INFINITE", "UNLIMITED"):
        return _INFINITE
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number such as 50, 0x32 or 4k")
    hexadecimal, octal, decimal, kilo = match.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (octal, 8) if octal else (decimal or "0", 10)
    number = int(digits, base) * (1024 if kilo else 1)
    if number > _INFINITE:
        raise ValueError(f"{text!r} is greater than {_INFINITE}")
    return number


def _read(path: Path, directory: Path, lines: list[ConfLine], depth: int) -> None:
    """Append the lines of a file; `directory` is the directory of slurm.conf."""
    if not depth:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    for number, text in _joined(path.read_bytes().decode("utf-8", "replace")):
        if match := _INCLUDE.match(text):
            _read(_included(match[1], path, directory, lines), directory, lines, depth - 1)
            continue
        pairs: list[tuple[str, str]] = []
        end = 0
        while pair := _PAIR.match(text, end):
            pairs.append((pair[1], pair[3] if pair[2] is None else pair[2]))
            end = pair.end()
        leftover = text[end:].strip(_BLANKS)
        if pairs or leftover:
            key, value = pairs[0] if pairs else ("", "")
            lines.append(ConfLine(path, number, key, value, tuple(pairs[1:]), leftover))


def _included(name: str, path: Path, directory: Path, lines: Iterable[ConfLine]) -> Path:
    """Return the file that an Include names; Slurm does not support glob patterns there.

    A relative name is relative to the including file in 22.05, and to slurm.conf in later versions.
    """
    clusters = settings_named(lines, "ClusterName")
    if clusters:
        name = name.replace("%c", clusters[-1].value.lower())
    by_file = path.parent / name
    return by_file if by_file.exists() else directory / name


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and escapes, each with its number.

    Continuation lines are joined into one line, which has the number of the first line.
    """
    first, whole = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        first = first or number
        before_comment = _BEFORE_COMMENT.match(line)
        whole += line if before_comment is None else before_comment[0]
        stripped = whole.rstrip(_BLANKS)
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            whole = stripped[:-1]
            continue
        yield first, _ESCAPE.sub(r"\1", whole)
        first, whole = 0, ""
    if first:
        yield first, _ESCAPE.sub(r"\1", whole)
