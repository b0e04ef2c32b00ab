from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from slurm_gpu.database.ingest.group_commit import FIND_OUT_S, LOCKED_SHARE, MOST_AT_ONCE, GroupCommit
from slurm_gpu.database.storage.engine import LockedError
from slurm_gpu.errors import DatabaseError
from tests.database.samples import FakeClock

Item = tuple[str, int]


class Transactions:
    """A recorder of the committed groups.

    An item from the sender "bad" fails. An item from a `locked` sender fails after `locked_s`, or after 5 s
    if the caller waits. With an item from "off", the database becomes unreachable.
    """

    def __init__(self, locked: Iterable[str] = (), locked_s: float = 0.001) -> None:
        self.clock, self.locked, self._locked_s = FakeClock(), set(locked), locked_s
        self.waited: list[bool] = []
        self.done: list[list[int]] = []
        self.tried: list[list[int]] = []
        self.errors: list[BaseException] = []
        self.unavailable = False
        self.commits = GroupCommit[Item, int](
            self._together, lambda item: {item[0]}, lambda item: item[0], self.clock
        )

    def _together(self, items: Sequence[Item], waits: bool) -> Sequence[int]:
        self.tried.append([n for _, n in items])
        self.waited.append(waits)
        names = [name for name, _ in items]
        if any(name.startswith("bad") for name in names):
            raise ValueError("bad")
        if not self.locked.isdisjoint(names):
            self.clock.now += 5.0 if waits else self._locked_s
            raise LockedError("locked")
        if self.unavailable or "off" in names:
            self.unavailable = True
            raise DatabaseError("unavailable")
        self.done.append([n for _, n in items])
        return [10 * n for _, n in items]

    def do(self, *items: Item) -> dict[int, int | str]:
        """Return the results or errors of items by number."""
        outcomes = self.commits.do(items)
        self.errors += [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        reported = (str(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes)
        return dict(zip((n for _, n in items), reported, strict=True))


def test_waiting_items_are_committed_together() -> None:
    world = Transactions()
    assert world.do(("a", 1), ("b", 2), ("c", 3)) == {1: 10, 2: 20, 3: 30}
    assert world.done == [[1, 2, 3]]
    assert world.do() == {}


def test_items_with_a_common_name_are_stored_one_after_the_other() -> None:
    world = Transactions()
    assert world.do(("a", 1), ("a", 2), ("a", 3)) == {1: 10, 2: 20, 3: 30}
    assert sorted(world.done) == [[1], [2], [3]]


def test_one_that_cannot_be_done_keeps_no_other_out() -> None:
    world = Transactions()
    assert world.do(("a", 1), ("bad", 2), ("c", 3)) == {1: 10, 2: "bad", 3: 30}
    assert sorted(world.done) == [[1], [3]]


def test_an_unreachable_database_fails_all_items() -> None:
    world = Transactions()
    world.unavailable = True
    assert world.do(("a", 1), ("b", 2)) == {1: "unavailable", 2: "unavailable"}
    world.unavailable = False
    assert world.do(("x", 5)) == {5: 50}, "and the next is done as if nothing had been"


def test_no_transaction_is_too_long() -> None:
    n = MOST_AT_ONCE + 20
    world = Transactions()
    assert world.do(*((f"n{i}", i) for i in range(1, n + 1))) == {i: 10 * i for i in range(1, n + 1)}
    assert max(map(len, world.done)) <= MOST_AT_ONCE


def test_alone() -> None:
    world = Transactions()
    assert [world.do(("a", n)) for n in range(3)] == [{0: 0}, {1: 10}, {2: 20}]
    assert world.do(("bad", 1)) == {1: "bad"}
    assert [type(error) for error in world.errors] == [ValueError]


def test_each_that_fails_has_an_error_of_its_own() -> None:
    """Test separate errors, because one exception would collect the traceback frames of all requests."""
    world = Transactions()
    world.unavailable = True
    world.do(("a", 1), ("b", 2), ("c", 3))
    assert len(set(map(id, world.errors))) == 3
    assert {type(error) for error in world.errors} == {DatabaseError}


def test_one_whose_rows_are_locked_keeps_no_other_out() -> None:
    world = Transactions(locked=["b"])
    assert world.do(("a", 1), ("b", 2), ("c", 3)) == {1: 10, 2: "locked", 3: 30}
    assert world.done == [[1], [3]]
    assert world.waited == [True, False, False, False], "once for all of them, and no more"


def test_a_locked_sender_goes_alone_without_waiting_until_it_succeeds() -> None:
    world = Transactions(locked=["b"])
    world.do(("a", 1), ("b", 2))
    world.clock.now += 10
    world.waited.clear()
    assert world.do(("b", 3)) == {3: "locked"}
    assert world.waited == [False]
    world.locked.clear()
    world.clock.now += 10
    assert [world.do(("b", n)) for n in (4, 5)] == [{4: 40}, {5: 50}]
    assert world.waited == [False, False, True], "and is one of all again"


def test_in_a_crowd_only_they_go_alone() -> None:
    world = Transactions(locked=["b"])
    world.do(("b", 9))
    world.clock.now += 10
    assert world.do(("a", 1), ("c", 2), ("b", 3), ("d", 4), ("e", 5))[3] == "locked"
    assert world.tried[-3:] == [[1, 2], [3], [4, 5]]


def test_those_that_stay_locked_take_a_small_part_of_the_time() -> None:
    """The shortest possible lock timeout is one second, as in MySQL."""
    world = Transactions(locked=[f"n{n}" for n in range(50)], locked_s=1.0)
    began = world.clock.now
    for n in range(1000):
        assert world.do((f"n{n % 50}", n)) == {n: "locked"}
        world.clock.now += 1.0
    n_waits, n_tries = world.waited.count(True), world.waited.count(False)
    assert n_waits == 50, "each is waited for once"
    spent_s = n_tries - n_waits
    assert spent_s <= 1.1 * LOCKED_SHARE * (world.clock.now - began)


def test_it_does_not_take_long_to_find_out_whose_rows_are_locked() -> None:
    names = [f"n{n}" for n in range(1, 10)]
    world = Transactions(locked=names, locked_s=1.0)
    results = world.do(*((name, n) for n, name in enumerate(names, 1)), ("a", 10))
    assert results == dict.fromkeys(range(1, 11), "locked")
    assert world.tried[1:] == [[n] for n in range(1, int(FIND_OUT_S) + 1)]
    assert {type(error) for error in world.errors} == {LockedError}
    assert len(set(map(id, world.errors))) == 10
    world.clock.now += 100
    assert world.do(("a", 11)) == {11: 110}, "items of others are stored on the next attempt"


def test_one_that_cannot_be_done_among_those_that_are_locked() -> None:
    world = Transactions(locked=["b", "c"])
    results = world.do(("bad", 1), ("b", 2), ("c", 3), ("d", 4))
    assert results == {1: "bad", 2: "locked", 3: "locked", 4: 40}
    assert world.waited.count(True) == 3, "one lock alone is waited for"


def test_after_the_database_fails_the_other_items_are_not_tried() -> None:
    world = Transactions()
    results = world.do(("a", 1), ("bad", 2), ("off", 3), ("d", 4), ("e", 5))
    assert results == {1: 10, 2: "bad", 3: "unavailable", 4: "unavailable", 5: "unavailable"}
    assert world.tried[1:] == [[1], [2], [3]]


def test_several_threads_do_theirs_one_after_the_other() -> None:
    inside: list[str] = []

    def together(items: Sequence[str], waits: bool) -> Sequence[str]:
        inside.extend(items)
        assert set(inside) == set(items)
        inside.clear()
        return items

    commits = GroupCommit[str, str](together, lambda item: {item}, lambda item: item, FakeClock())
    with ThreadPoolExecutor(4) as threads:
        some = [[f"{n}-{k}" for k in range(20)] for n in range(200)]
        assert list(threads.map(commits.do, some)) == some
