import threading
from collections.abc import Iterable, Iterator, Sequence, Set

import pytest

from slurm_gpu.database.engine import LockedError
from slurm_gpu.database.groupcommit import FIND_OUT_S, LOCKED_SHARE, MOST_AT_ONCE, GroupCommit
from slurm_gpu.errors import DatabaseError
from tests.database.samples import FakeClock

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

    An item of "bad" cannot be done, nor one of who is `locked`, which takes `locked_s` to find out, and much
    longer where it is waited for; with one of "off" the database goes away.
    """

    def __init__(self, others: int, locked: Iterable[str] = (), locked_s: float = 0.001) -> None:
        self.clock, self.locked, self._locked_s = FakeClock(), set(locked), locked_s
        self.waited: list[bool] = []
        self.done: list[list[int]] = []
        self.tried: list[list[int]] = []
        self.errors: list[BaseException] = []
        self.away = False
        self._others, self._waiting = others, threading.Semaphore(0)
        self.commits = GroupCommit[Item, int](
            self._together,
            lambda item: NoMemory() if item[0] == "no memory" else {item[0]},
            lambda item: item[0],
            self.clock,
        )

    def _together(self, items: Sequence[Item], waits: bool) -> Sequence[int]:
        if not self.done and len(items) == 1 and items[0][0] == "first":
            for _ in range(self._others):
                assert self._waiting.acquire(timeout=20)
        self.tried.append([n for _, n in items])
        self.waited.append(waits)
        names = [name for name, _ in items]
        if any(name.startswith("bad") for name in names):
            raise ValueError("bad")
        if not self.locked.isdisjoint(names):
            self.clock.now += 5.0 if waits else self._locked_s
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
    world = Transactions(others=3, locked=["b"])
    assert world.do(("a", 1), ("b", 2), ("c", 3)) == {0: 0, 1: 10, 2: "locked", 3: 30}
    assert world.done == [[0], [1], [3]]
    assert world.waited == [True, True, False, False, False], "once for all of them, and no more"


def test_who_was_locked_goes_alone_and_is_not_waited_for_until_that_has_worked() -> None:
    world = Transactions(others=2, locked=["b"])
    world.do(("a", 1), ("b", 2))
    world.clock.now += 10
    world.waited.clear()
    with pytest.raises(LockedError):
        world.commits.do(("b", 3))
    assert world.waited == [False]
    world.locked.clear()
    world.clock.now += 10
    assert [world.commits.do(("b", n)) for n in (4, 5)] == [40, 50]
    assert world.waited == [False, False, True], "and is one of all again"


def test_in_a_crowd_only_they_go_alone() -> None:
    world = Transactions(others=5, locked=["b"])
    with pytest.raises(LockedError):
        world.commits.do(("b", 9))
    world.clock.now += 10
    assert world.do(("a", 1), ("c", 2), ("b", 3), ("d", 4), ("e", 5))[3] == "locked"
    assert world.tried[-3:] == [[1, 2], [3], [4, 5]]


def test_those_that_stay_locked_take_a_small_part_of_the_time() -> None:
    """Where the least that can be waited for a lock is a second, as on MySQL."""
    world = Transactions(others=0, locked=[f"n{n}" for n in range(50)], locked_s=1.0)
    began = world.clock.now
    for n in range(1000):
        with pytest.raises(LockedError):
            world.commits.do((f"n{n % 50}", n))
        world.clock.now += 1.0
    n_waits, n_tries = world.waited.count(True), world.waited.count(False)
    assert n_waits == 50, "each is waited for once"
    spent_s = n_tries - n_waits
    assert spent_s <= 1.1 * LOCKED_SHARE * (world.clock.now - began)


def test_it_does_not_take_long_to_find_out_whose_rows_are_locked() -> None:
    names = [f"n{n}" for n in range(1, 10)]
    world = Transactions(others=10, locked=names, locked_s=1.0)
    results = world.do(*((name, n) for n, name in enumerate(names, 1)), ("a", 10))
    assert results == {0: 0, **dict.fromkeys(range(1, 11), "locked")}
    assert world.tried[2:] == [[n] for n in range(1, int(FIND_OUT_S) + 1)]
    assert {type(error) for error in world.errors} == {LockedError}
    assert len(set(map(id, world.errors))) == 10
    world.clock.now += 100
    assert world.commits.do(("a", 11)) == 110, "who was only beside them is stored when it comes again"


def test_one_that_cannot_be_done_among_those_that_are_locked() -> None:
    world = Transactions(others=4, locked=["b", "c"])
    results = world.do(("bad", 1), ("b", 2), ("c", 3), ("d", 4))
    assert results == {0: 0, 1: "bad", 2: "locked", 3: "locked", 4: 40}
    assert world.waited.count(True) == 4, "one lock alone is waited for"


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
