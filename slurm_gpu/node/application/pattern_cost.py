"""How long a regular expression of an admin's may take on a text that a job's user chose.

Python's `re` knows no time limit and holds the interpreter while it searches, so what could take long is
refused when the rules are read. What counts is in how many ways a pattern can match from one place: a search
tries no more than all of them, at each place of a text whose length is bounded.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

LONGEST_TEXT = 4096
"""Characters of a job's arguments that are looked at."""

MOST_WAYS = 5000
"""About 0.1 s in the worst case; leaves room for one `+` or `*`, or for several bounded repeats."""

_WITHOUT_CHOICE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "RANGE", "CATEGORY", "NEGATE"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def ways_to_match(pattern: str) -> int:
    """In how many ways it can match from one place, at most `MOST_WAYS` + 1; raises re.error.

    A pattern that refers back to a group, whose cost cannot be told, counts as beyond the limit.
    """
    re.compile(pattern)
    # The parser of `re` itself; a pattern is the list of (operation, argument) that it gives.
    parser: Any = importlib.import_module("re._parser")
    return _sequence(parser.parse(pattern))


def _sequence(items: Any) -> int:
    ways = 1
    for operation, argument in items:
        ways = _capped(ways * _item(str(operation), argument))
    return ways


def _item(operation: str, argument: Any) -> int:
    if operation in _WITHOUT_CHOICE:
        return 1
    if operation in _REPEATS:
        low, high, inner = argument
        return _repeat(int(low), min(int(high), LONGEST_TEXT), _sequence(inner))
    if operation == "SUBPATTERN":
        return _sequence(argument[3])
    if operation == "BRANCH":
        return _capped(sum(_sequence(branch) for branch in argument[1]))
    if operation in ("ASSERT", "ASSERT_NOT"):
        return _sequence(argument[1])
    if operation == "ATOMIC_GROUP":
        return _sequence(argument)
    return MOST_WAYS + 1


def _repeat(low: int, high: int, inner: int) -> int:
    """Σ inner^n for the numbers of times n that it may repeat."""
    if inner == 1:
        return _capped(max(1, high - low + 1))
    ways = 0
    for times in range(low, high + 1):
        ways += _power(inner, times)
        if ways > MOST_WAYS:
            return MOST_WAYS + 1
    return max(1, ways)


def _power(base: int, exponent: int) -> int:
    result = 1
    for _ in range(exponent):
        result *= base
        if result > MOST_WAYS:
            return MOST_WAYS + 1
    return result


def _capped(ways: int) -> int:
    return min(ways, MOST_WAYS + 1)
