"""Slurm's hostlist expressions: n[1-3,07],login → n1 n2 n3 n07 login."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

MAX_HOSTS = 100_000

# A part is text with any number of bracketed lists in it, such as rack[1-2]n[01-16].
_PART = re.compile(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")


def expand_hostlist(expression: str) -> list[str]:
    """The host names in `expression`, in its order, repeats included; "" gives none.

    Raises ValueError quoting the part that is not a hostlist.
    """
    hosts: list[str] = []
    for part in _parts(expression.strip()):
        choices = [
            list(_numbers(ranges, expression)) if text == "" else [text]
            for ranges, text in _PIECE.findall(part)
        ]
        for names in itertools.product(*choices):
            hosts.append("".join(names))
            if len(hosts) > MAX_HOSTS:
                raise ValueError(f"hostlist {expression[:200]!r} names more than {MAX_HOSTS} hosts")
    return hosts


def _parts(expression: str) -> Iterator[str]:
    position = 0
    while position < len(expression):
        match = _PART.match(expression, position)
        if match is None:
            raise ValueError(
                f"{expression[:200]!r} is not a hostlist, at {expression[position : position + 20]!r}"
            )
        yield match[0]
        position = match.end()
        if position < len(expression):
            if expression[position] != "," or position + 1 == len(expression):
                raise ValueError(f"{expression[:200]!r} is not a hostlist, at {expression[position:][:20]!r}")
            position += 1


def _numbers(ranges: str, expression: str) -> Iterator[str]:
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"{expression[:200]!r} is not a hostlist: [{item}] is not a number or a range")
        low, high = match["low"], match["high"] if match["high"] is not None else match["low"]
        if not int(low) <= int(high) < int(low) + MAX_HOSTS:
            raise ValueError(f"{expression[:200]!r} is not a hostlist: the range {item} does not ascend")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))
