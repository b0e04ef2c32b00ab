"""Prefetching changes only the timing, not the results."""

import threading
from collections.abc import Generator
from contextlib import closing

import pytest

from slurm_gpu.database.storage.prefetch import read_ahead

_WITHIN_S = 10.0


def test_all_comes_in_order() -> None:
    assert list(read_ahead((n for n in range(100)), 3)) == list(range(100))


def test_at_most_the_given_number_of_items_is_fetched_ahead() -> None:
    fetched: list[int] = []
    reached, passed = threading.Event(), threading.Event()

    def items() -> Generator[int, None, None]:
        for n in range(10):
            fetched.append(n)
            if n == 4:
                reached.set()
            if n == 5:
                passed.set()
            yield n

    with closing(read_ahead(items(), 3)) as coming:
        assert next(coming) == 0
        assert reached.wait(_WITHIN_S), "1 to 3 lie ready, and 4 waits for room"
        assert not passed.is_set()


def test_an_error_comes_adjusted() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise ValueError("broken")

    coming = read_ahead(items(), 3)
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)


def test_ending_the_iteration_closes_the_source() -> None:
    closed = threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with closing(read_ahead(items(), 3)) as coming:
        assert next(coming) == 1
    assert closed.is_set()
    assert not any(thread.name == "ahead" for thread in threading.enumerate())
