import threading
from collections.abc import Iterator, Sequence, Set

import pytest

from slurm_gpu.database.engine import LockedError
from slurm_gpu.database.groupcommit import MOST_AT_ONCE, MOST_LOCKED, GroupCommit
from slurm_gpu.errors import DatabaseError

Item = tuple[str, int]


class NoMemory(Set[str]):
    """Names that nobody can look at."""

    def __contains__(self, name: object) -> bool:
        raise MemoryError

    def __iter__(self) -> Iterator[str]:
        raise MemoryError

    def __len__(self) -> int:
        return 1


class Transactions:
    """What was done together; the first waits until `others` are there.

    An item of "bad" cannot be done, nor one of "locked"; with one of "off" the database goes away.
    """

    def __init__(self, others: int) -> None:
        self.done: list[list[int]] = []
        self.tried: list[list[int]] = []
        self.errors: list[BaseException] = []
        self.away = False
        self._others, self._waiting = others, threading.Semaphore(0)
        self.commits = GroupCommit[Item, int](
            self._together, lambda item: NoMemory() if item[0] == "no memory" else {item[0]}
        )

    def _together(self, items: Sequence[Item]) -> Sequence[int]:
        if not self.done and len(items) == 1 and items[0][0] == "first":
            for _ in range(self._others):
                assert self._waiting.acquire(timeout=20)
        self.tried.append([n for _, n in items])
        names = [name for name, _ in items]
        if any(name.startswith("bad") for name in names):
            raise ValueError("bad")
        if any(name.startswith("locked") for name in names):
            raise LockedError("locked")
        if self.away or "off" in names:
            self.away = True
            raise DatabaseError("away")
        self.done.append([n for _, n in items])
        return [10 * n for _, n in items]

    def do(self, *items: Item) -> dict[int, int | str]:
        """A thread for each item, one after the other, after a first one that lets them gather."""
        results: dict[int, int | str] = {}

        def work(item: Item) -> None:
            try:
                results[item[1]] = self.commits.do(item)
            except (DatabaseError, ValueError, MemoryError) as error:
                results[item[1]] = str(error)
                self.errors.append(error)

        first = threading.Thread(target=work, args=(("first", 0),))
        first.start()
        while not self.commits._under_way:
            pass
        threads = [threading.Thread(target=work, args=(item,)) for item in items]
        for n, thread in enumerate(threads):
            thread.start()
            while len(self.commits._waiting) <= n:
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


def test_each_that_fails_has_an_error_of_its_own() -> None:
    """One that several threads raise would gather the frames of all of them."""
    world = Transactions(others=3)
    world.away = True
    world.do(("a", 1), ("b", 2), ("c", 3))
    assert len(set(map(id, world.errors))) == 4
    assert {type(error) for error in world.errors} == {DatabaseError}


def test_one_whose_rows_are_locked_keeps_no_other_out() -> None:
    world = Transactions(others=3)
    assert world.do(("a", 1), ("locked", 2), ("c", 3)) == {0: 0, 1: 10, 2: "locked", 3: 30}
    assert world.done == [[0], [1], [3]]


def test_where_many_are_locked_not_each_of_them_is_waited_for() -> None:
    world = Transactions(others=10)
    results = world.do(*((f"locked{n}", n) for n in range(1, 10)), ("a", 10))
    assert results == {0: 0, **dict.fromkeys(range(1, 11), "locked")}
    assert world.tried[2:] == [[n] for n in range(1, MOST_LOCKED + 1)]
    assert {type(error) for error in world.errors} == {LockedError}
    assert len(set(map(id, world.errors))) == 10


def test_a_database_that_goes_away_meanwhile_is_asked_for_no_more_of_them() -> None:
    world = Transactions(others=5)
    results = world.do(("a", 1), ("bad", 2), ("off", 3), ("d", 4), ("e", 5))
    assert results == {0: 0, 1: 10, 2: "bad", 3: "away", 4: "away", 5: "away"}
    assert world.tried[2:] == [[1], [2], [3]]


def test_who_fails_before_the_work_begins_leaves_nobody_waiting() -> None:
    world = Transactions(others=3)
    results = world.do(("a", 1), ("no memory", 2), ("c", 3))
    assert set(results) == {0, 1, 2, 3}
    assert (results[2], results[3]) == ("", 30)
    assert world.commits.do(("x", 5)) == 50
