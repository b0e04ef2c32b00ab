"""The lines of slurm.conf as they are written, with their places: what Slurm made of them may be less."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.slurm.hostlist import expand

_SETTING = re.compile(r"\s*(?P<key>[A-Za-z]\w*)\s*=\s*(?P<value>.*)", re.DOTALL)
_INCLUDE = re.compile(r"\s*include\s+(?P<name>\S+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)#.*")
_NODE_WEIGHT = re.compile(r"(?i)(?<!\S)Weight=(\d+)")
_DEFAULT_WEIGHT = 1
_DEPTH = 8
"""Files that include each other in a circle end somewhere."""


@dataclass(frozen=True, slots=True)
class ConfLine:
    """One line `key=value`; of a line with several, such as that of a node, `value` is all the rest."""

    file: Path
    number: int
    key: str
    value: str

    @property
    def place(self) -> str:
        """Where it stands: FILE:LINE."""
        return f"{self.file}:{self.number}"

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def read_conf(path: Path) -> list[ConfLine]:
    """Lines of slurm.conf, and of what it includes, in order; raises OSError where it cannot be read."""
    return list(_lines(path, _DEPTH))


def settings_named(lines: Iterable[ConfLine], key: str) -> list[ConfLine]:
    """Those of one key, which Slurm knows in any case."""
    return [line for line in lines if line.key.lower() == key.lower()]


def node_weights(lines: Iterable[ConfLine]) -> dict[str, int]:
    """The Weight that each node named there has after a reconfiguration; a list that cannot be read has none.

    A line of NodeName=DEFAULT holds for those that follow it.
    """
    weights: dict[str, int] = {}
    default = _DEFAULT_WEIGHT
    for line in settings_named(lines, "NodeName"):
        names, _, rest = line.value.partition(" ")
        match = _NODE_WEIGHT.search(rest)
        weight = default if match is None else int(match[1])
        if names.upper() == "DEFAULT":
            default = weight
            continue
        try:
            weights |= dict.fromkeys(expand(names), weight)
        except ValueError:
            continue
    return weights


def _lines(path: Path, depth: int) -> Iterator[ConfLine]:
    for number, text in _joined(path.read_text(encoding="utf-8", errors="replace")):
        if match := _INCLUDE.match(text):
            included = path.parent / match["name"]
            if depth and included.is_file():
                yield from _lines(included, depth - 1)
        elif match := _SETTING.match(text):
            yield ConfLine(path, number, match["key"], match["value"].strip())


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, those that end in a backslash with what follows; numbers are of the first."""
    first, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        whole += _COMMENT.sub("", line).rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        yield first, whole
        first, whole = 0, ""
    if whole:
        yield first, whole
