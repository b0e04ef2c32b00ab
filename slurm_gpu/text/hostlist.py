"""Parse and build Slurm's hostlist expressions: "n[1-4,7]", "a[01-10]b", "r[1-2]n[1-3],login"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# No cluster has more hosts. A range such as n[1-999999999] is a mistake and would exhaust memory.
MAX_HOSTS = 100_000
# DNS allows names of 253 characters. Without a limit, an expression of 60 KB could expand to 6 GB of names.
_LONGEST_NAME = 255
_MOST_BRACKETS = 16

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)


def expand(expression: str) -> list[str]:
    """Return the host names in an expression in order; raise ValueError if the expression is invalid."""
    names: list[str] = []
    for part in _split(expression):
        if part.count("[") > _MOST_BRACKETS:
            raise ValueError(
                f"hostlist {expression[:100]!r} has more than {_MOST_BRACKETS} brackets in a name"
            )
        for name in _product(part, expression):
            if len(name) > _LONGEST_NAME:
                raise ValueError(
                    f"hostlist {name[:100]!r}…: a name may have at most {_LONGEST_NAME} characters"
                )
            names.append(name)
            if len(names) > MAX_HOSTS:
                raise ValueError(f"hostlist {expression[:100]!r} contains more than {MAX_HOSTS} hosts")
    return names


def compress(names: Iterable[str]) -> str:
    """Return the sorted hostlist expression for a set of names; "" if there are no names.

    Brackets enclose the last number of a name, as in Slurm.
    """
    plain: set[str] = set()
    numbered: dict[tuple[str, str], set[str]] = {}
    for name in names:
        match = _LAST_NUMBER.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            numbered.setdefault((match[1], match[3]), set()).add(match[2])
    parts = [((name, ""), name) for name in plain]
    for (prefix, suffix), numbers in numbered.items():
        ranges = ",".join(number_ranges(numbers))
        bracketed = f"[{ranges}]" if "," in ranges or "-" in ranges else ranges
        parts.append(((prefix, suffix), f"{prefix}{bracketed}{suffix}"))
    return ",".join(text for _, text in sorted(parts))


def parse_indices(text: str) -> list[int]:
    """Parse a list of numbers such as "0-2,5" (Slurm's IDX); return [] for "", "N/A" and "(null)"."""
    if text in ("", "N/A", "(null)"):
        return []
    return [int(number) for number in _numbers(text, text)]


def count_tasks(expression: str) -> int:
    """Return the number of tasks in an array expression: 10 for "0-9%4", 3 for "1,3,5" or "0-10:5"."""
    return sum(len(tasks) for tasks in task_ranges(expression))


def task_ranges(expression: str) -> list[range]:
    """Return the ranges of task IDs in an array expression; raise ValueError if it is invalid."""
    ranges = []
    for part in expression.partition("%")[0].split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?", part)
        if match is None or match[3] == "0":
            raise ValueError(f"array expression {expression[:100]!r}: {part!r} is not a number or range")
        low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        ranges.append(range(low, high + 1, step))
    return ranges


def _split(expression: str) -> Iterator[str]:
    """Split an expression at commas outside brackets."""
    depth, start = 0, 0
    for position, character in enumerate(expression):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if depth not in (0, 1):
            raise ValueError(
                f"hostlist {expression[:100]!r}: brackets do not match at character {position + 1}"
            )
        if character == "," and depth == 0:
            yield expression[start:position]
            start = position + 1
    if depth:
        raise ValueError(f"hostlist {expression[:100]!r}: a bracket is not closed")
    if expression[start:] or start:
        yield expression[start:]


def _product(part: str, whole: str) -> Iterator[str]:
    """Yield every name of one part; the leftmost bracket varies slowest."""
    head, opened, rest = part.partition("[")
    if not opened:
        if not part:
            raise ValueError(f"hostlist {whole[:100]!r}: a name is missing next to a comma")
        yield part
        return
    inside, _, tail = rest.partition("]")
    for number in _numbers(inside, whole):
        if tail:
            for end in _product(tail, whole):
                yield head + number + end
        else:
            yield head + number


def _numbers(ranges: str, whole: str) -> Iterator[str]:
    for piece in ranges.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(
                f"hostlist {whole[:100]!r}: {piece[:40]!r} is not a number or a range such as 1-4"
            )
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"hostlist {whole[:100]!r}: the range {piece[:40]!r} runs backwards")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


def number_ranges(numbers: Iterable[str]) -> Iterator[str]:
    """Yield ranges of consecutive numbers; "09" and "10" are consecutive, "9" and "010" are not."""
    ordered = sorted(numbers, key=lambda number: (len(number), number))
    first = last = ordered[0]
    for number in ordered[1:]:
        if number != str(int(last) + 1).zfill(len(last)):
            yield first if first == last else f"{first}-{last}"
            first = number
        last = number
    yield first if first == last else f"{first}-{last}"


_NUMBER = re.compile(r"([0-9]+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key for natural order, in which n2 precedes n10."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _NUMBER.split(name)
        if part
    )
