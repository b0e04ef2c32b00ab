"""Bound the time that an admin's regular expression takes on text that a job's user chose.

Python's `re` has no time limit and blocks the interpreter during a search, so slow patterns are rejected when
the rules are read. The cost of a pattern is the number of ways in which it can match from one position. A
search tries at most this many ways at each position of the text, whose length is bounded.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

# At most this many characters of a job's arguments are searched.
LONGEST_TEXT = 4096

# A search takes about 0.1 s in the worst case. The limit allows one `+` or `*`, or several bounded repeats.
MOST_WAYS = 5000

_WITHOUT_CHOICE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "RANGE", "CATEGORY", "NEGATE"})
_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


def ways_to_match(pattern: str) -> int:
    """Return the number of ways in which the pattern can match from one position, at most `MOST_WAYS` + 1.

    A back-reference counts as over the limit, because its cost is unknown. Raise re.error if the pattern is
    invalid.
    """
    re.compile(pattern)
    # The parser of `re`; it returns a list of (operation, argument).
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
    """Return Σ inner^n over the possible repeat counts n."""
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
