"""Split items into lists of limited length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of up to `size` items."""
    # itertools.batched requires Python 3.12.
    iterator = iter(items)
    while some := list(itertools.islice(iterator, size)):
        yield some
