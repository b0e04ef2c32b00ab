import threading
from collections.abc import Sequence

import pytest

from slurm_gpu.database.groupcommit import MOST_AT_ONCE, GroupCommit
from slurm_gpu.errors import DatabaseError

Item = tuple[str, int]


class Transactions:
    """What was done together; the first waits until `others` are there. An item of "bad" cannot be done."""

    def __init__(self, others: int) -> None:
        self.done: list[list[int]] = []
        self.away = False
        self._others, self._waiting = others, threading.Semaphore(0)
        self.commits = GroupCommit[Item, int](self._together, lambda item: {item[0]})

    def _together(self, items: Sequence[Item]) -> Sequence[int]:
        if not self.done and len(items) == 1 and items[0][0] == "first":
            for _ in range(self._others):
                assert self._waiting.acquire(timeout=20)
        if self.away:
            raise DatabaseError("away")
        if any(name.startswith("bad") for name, _ in items):
            raise ValueError("bad")
        self.done.append([n for _, n in items])
        return [10 * n for _, n in items]

    def do(self, *items: Item) -> dict[int, int | str]:
        """A thread for each item, after a first one that lets them gather."""
        results: dict[int, int | str] = {}

        def work(item: Item) -> None:
            try:
                results[item[1]] = self.commits.do(item)
            except (DatabaseError, ValueError) as error:
                results[item[1]] = str(error)

        first = threading.Thread(target=work, args=(("first", 0),))
        first.start()
        while not self.commits._under_way:
            pass
        threads = [threading.Thread(target=work, args=(item,)) for item in items]
        for thread in threads:
            thread.start()
        while len(self.commits._waiting) < len(items):
            pass
        for _ in items:
            self._waiting.release()
        for thread in (first, *threads):
            thread.join(20)
            assert not thread.is_alive()
        return results


def test_what_comes_meanwhile_is_committed_together() -> None:
    world = Transactions(others=3)
    assert world.do(("a", 1), ("b", 2), ("c", 3)) == {0: 0, 1: 10, 2: 20, 3: 30}
    first, together = world.done
    assert (first, sorted(together)) == ([0], [1, 2, 3])


def test_what_has_a_name_in_common_is_done_one_after_the_other() -> None:
    world = Transactions(others=3)
    assert world.do(("a", 1), ("a", 2), ("a", 3)) == {0: 0, 1: 10, 2: 20, 3: 30}
    assert sorted(world.done) == [[0], [1], [2], [3]]


def test_one_that_cannot_be_done_keeps_no_other_out() -> None:
    world = Transactions(others=3)
    assert world.do(("a", 1), ("bad", 2), ("c", 3)) == {0: 0, 1: 10, 2: "bad", 3: 30}
    assert sorted(world.done) == [[0], [1], [3]]


def test_a_database_that_is_away_is_away_for_all() -> None:
    world = Transactions(others=2)
    world.away = True
    assert world.do(("a", 1), ("b", 2)) == {0: "away", 1: "away", 2: "away"}
    world.away = False
    assert world.commits.do(("x", 5)) == 50, "and the next is done as if nothing had been"


def test_no_transaction_is_too_long() -> None:
    n = MOST_AT_ONCE + 20
    world = Transactions(others=n)
    assert world.do(*((f"n{i}", i) for i in range(1, n + 1))) == {i: 10 * i for i in range(n + 1)}
    assert max(map(len, world.done)) <= MOST_AT_ONCE


def test_alone_nothing_is_waited_for() -> None:
    world = Transactions(others=0)
    assert [world.commits.do(("a", n)) for n in range(3)] == [0, 10, 20]
    with pytest.raises(ValueError, match="bad"):
        world.commits.do(("bad", 1))
