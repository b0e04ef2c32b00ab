import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from slurm_gpu.database.ingest.thread_pool import ThreadPool, outcome_of
from slurm_gpu.errors import DatabaseError


class Work:
    """Doubles numbers once released; odd numbers have no result, and 13 raises MemoryError."""

    def __init__(self) -> None:
        self.may_begin, self.begun = threading.Event(), threading.Semaphore(0)
        self.done: list[list[int]] = []
        self.at_once, self.most_at_once = 0, 0

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.release()
        assert self.may_begin.wait(20)
        self.at_once -= 1
        if 13 in numbers:
            raise MemoryError
        self.done.append(list(numbers))
        return [ValueError(str(n)) if n % 2 else 2 * n for n in numbers]


def played(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_each_gets_its_result_or_why_there_is_none() -> None:
    async def story() -> None:
        work = Work()
        work.may_begin.set()
        pool = ThreadPool(work, 2, 10, "test")
        outcomes = await asyncio.gather(*(pool.do(n) for n in range(8)), return_exceptions=True)
        assert [str(one) for one in outcomes] == ["0", "1", "4", "3", "8", "5", "12", "7"]
        with pytest.raises(ValueError, match="1"):
            await pool.do(1)

    played(story)


def test_waiting_items_are_processed_together_by_a_fixed_number_of_threads() -> None:
    async def story() -> None:
        work = Work()
        pool = ThreadPool(work, 2, 10, "test")
        asked = [asyncio.ensure_future(pool.do(2 * n)) for n in range(33)]
        await asyncio.sleep(0)  # until all of them wait
        for _ in range(2):
            assert work.begun.acquire(timeout=20)
        work.may_begin.set()
        assert await asyncio.gather(*asked) == [4 * n for n in range(33)]
        assert work.most_at_once == 2
        assert sum(map(len, work.done)) == 33
        assert max(map(len, work.done)) == 10

    played(story)


def test_the_loop_is_called_once_for_all_that_is_done_until_it_comes_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        loop, calls = asyncio.get_running_loop(), list[object]()
        call = loop.call_soon_threadsafe
        work = Work()
        pool = ThreadPool(work, 1, 1, "test")
        asked = [asyncio.ensure_future(pool.do(n)) for n in range(0, 40, 2)]
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: calls.append(call(*given)))
        work.may_begin.set()
        for _ in asked:  # the event loop is blocked meanwhile
            assert work.begun.acquire(timeout=20)
        assert await asyncio.gather(*asked) == [2 * n for n in range(0, 40, 2)]
        assert len(calls) <= 2, "the last call may still have been running"

    played(story)


def test_unexpected_errors_of_work_leave_no_caller_waiting() -> None:
    async def story() -> None:
        work = Work()
        work.may_begin.set()
        pool = ThreadPool(work, 1, 10, "test")
        outcomes = await asyncio.gather(*(pool.do(13) for _ in range(3)), return_exceptions=True)
        assert {type(one) for one in outcomes} == {DatabaseError}
        assert len(set(map(id, outcomes))) == 3
        assert await pool.do(2) == 4

    played(story)


def test_no_work_is_done_for_cancelled_callers() -> None:
    async def story() -> None:
        work = Work()
        pool = ThreadPool(work, 1, 10, "test")
        first, given_up, last = (asyncio.ensure_future(pool.do(n)) for n in (2, 4, 6))
        await asyncio.sleep(0)
        assert work.begun.acquire(timeout=20)
        given_up.cancel()
        await asyncio.sleep(0)
        work.may_begin.set()
        assert (await first, await last) == (4, 12)
        assert work.done == [[2], [6]]

    played(story)


def test_work_in_progress_when_the_loop_ends_is_completed() -> None:
    work = Work()
    pool = ThreadPool(work, 1, 10, "test")

    async def ends() -> None:
        asking = asyncio.ensure_future(pool.do(2))
        await asyncio.sleep(0)
        assert work.begun.acquire(timeout=20)
        asking.cancel()

    async def another() -> None:
        work.may_begin.set()
        assert await pool.do(4) == 8

    played(ends)
    played(another)
    assert work.done == [[2], [4]]


def test_an_outcome_is_what_is_returned_or_raised() -> None:
    assert outcome_of(int, "7") == 7
    assert isinstance(outcome_of(int, "x"), ValueError)
