import threading

import pytest

from slurm_gpu.database.accounting.slurm_view import JOBS_FOR_S, CachedAnswer, SlurmView, resolve_address
from slurm_gpu.errors import SlurmError
from tests.database.samples import SLURM_UID, FakeClock, MemorySlurm, node, queued


def test_an_answer_is_kept_for_its_time_and_then_renewed() -> None:
    slurm, clock = MemorySlurm(jobs=[queued()]), FakeClock()
    view = SlurmView(slurm, clock)
    for seconds, calls in ((0, 1), (JOBS_FOR_S - 0.1, 1), (0.2, 2)):
        clock.now += seconds
        queue = view.queue()
        assert queue is not None
        assert queue.as_of_s == pytest.approx(clock.now, abs=JOBS_FOR_S)
        assert slurm.job_calls == calls


def test_a_fresh_answer_is_requested_at_the_rate_limit_of_a_slow_slurmctld() -> None:
    clock, took = FakeClock(), [0.01]

    def ask() -> float:
        clock.now += took[0]
        return clock.now

    kept = CachedAnswer(ask, clock, for_s=60.0)
    first = kept.get(10)
    clock.now += 3
    assert kept.get(10) == first
    assert (second := kept.get(10, fresh_s=2.0)) != first
    took[0] = 1.0
    for _ in range(2):
        clock.now += 3
        kept.get(10, fresh_s=2.0)
        _answered()
    assert (third := kept.get(10)) not in (first, second)
    clock.now += 19
    assert kept.get(10, fresh_s=2.0) == third, "a second of twenty is as much as it may take"
    clock.now += 2
    kept.get(10, fresh_s=2.0)
    _answered()
    assert kept.get(10) != third


def _answered() -> None:
    for thread in threading.enumerate():
        if thread.name == "ask-slurm":
            thread.join()


def test_no_caller_waits_for_the_next_answer_if_the_last_took_long() -> None:
    clock, go_on, answered = FakeClock(), threading.Event(), threading.Event()
    answers = iter(range(9))

    def ask() -> int:
        clock.now += 1.5
        assert go_on.wait(20)
        return next(answers)

    kept = CachedAnswer(ask, clock, for_s=2.0)
    go_on.set()
    assert kept.get(10) == 0
    go_on.clear()
    clock.now += 60
    assert kept.get(10) == 0
    assert kept.get(10) == 0, "it is still being asked"
    threading.Thread(target=lambda: (kept.get(20, max_age_s=1), answered.set()), daemon=True).start()
    go_on.set()
    assert answered.wait(20)
    assert kept.get(10) == 1


def test_a_caller_for_a_fresh_answer_waits_though_the_last_took_long() -> None:
    """Test that the first reader after an hour does not get an answer that is an hour old."""
    clock, answers = FakeClock(), iter(range(9))

    def ask() -> int:
        clock.now += 0.5
        return next(answers)

    kept = CachedAnswer(ask, clock, for_s=60.0)
    assert kept.get(10) == 0
    clock.now += 3600
    assert kept.get(10, fresh_s=2.0) == 1


def test_a_repeatedly_slow_slurmctld_is_queried_less_often() -> None:
    """Test that one slow answer, as during startup, does not cause a pause of a minute."""
    clock, took, asked = FakeClock(), [3.0], []

    def ask() -> float:
        asked.append(clock.now)
        clock.now += took[0]
        return clock.now

    kept = CachedAnswer(ask, clock, for_s=2.0)

    def times_in(seconds: int) -> int:
        before = len(asked)
        for _ in range(seconds):
            clock.now += 1
            kept.get(10, fresh_s=2)
            _answered()
        return len(asked) - before

    kept.get(10)
    took[0] = 0.01
    assert times_in(10) >= 3, "one answer of three seconds is chance"
    took[0] = 3.0
    assert times_in(150) <= 5, "several are a slow slurmctld: a question of 3 s each 60 s at most"


def test_a_failure_keeps_the_old_answer_and_pauses() -> None:
    slurm, clock = MemorySlurm(jobs=[queued()]), FakeClock()
    view = SlurmView(slurm, clock)
    old = view.queue()
    slurm.unavailable = True
    clock.now += 60
    assert view.queue() is old
    slurm.unavailable = False
    clock.now += 5
    assert view.queue() is old, "it was unreachable a moment ago"
    clock.now += 6
    assert slurm.job_calls == 1
    view.queue()
    view.queue()
    assert slurm.job_calls == 2


def test_without_any_answer_nothing_is_claimed() -> None:
    slurm = MemorySlurm()
    slurm.unavailable = True
    view = SlurmView(slurm, FakeClock())
    assert (view.queue(), view.nodes(), view.settings()) == (None, None, None)
    assert view.may_speak("n1", "192.0.2.1")[0]


def test_one_waits_for_a_slurm_that_hangs_and_the_others_do_not() -> None:
    answered = threading.Event()

    def ask() -> str:
        assert answered.wait(10)
        return "answer"

    kept = CachedAnswer(ask, FakeClock(), for_s=2.0)
    assert kept.get(0.01) is None
    assert kept.get(3600) is None, "this would hang"
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "ask-slurm":
            thread.join()
    assert kept.get(0) == "answer"


def test_an_answer_that_cannot_be_read_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    def ask() -> None:
        raise KeyError("JobId")

    assert CachedAnswer(ask, FakeClock(), for_s=2.0).get(10) is None
    assert "slurmctld does not report anything: KeyError: 'JobId'" in caplog.text


def test_a_node_may_send_from_its_address_and_from_its_name() -> None:
    names = {"127.0.1.1": {"127.0.1.1"}, "n1": {"10.0.0.1", "fd00::1"}}
    asked: list[str] = []

    def resolve(name: str) -> frozenset[str]:
        asked.append(name)
        return frozenset(names.get(name, ()))

    slurm, clock = MemorySlurm(), FakeClock()
    slurm.node_list.append(node(5, name="dark", address="dark"))
    view = SlurmView(slurm, clock, resolve)
    assert view.may_speak("n1", "127.0.1.1")[0]
    assert asked == ["127.0.1.1"], "one matching address is enough"
    for address in ("10.0.0.1", "fd00::1", "127.0.1.1"):
        assert view.may_speak("n1", address)[0]
    assert len(asked) == 2
    assert view.may_speak("n1", "127.0.1.2")[0] is False
    assert view.may_speak("elsewhere", "127.0.1.1") == (False, frozenset())
    assert view.may_speak("dark", "127.0.1.9")[0], "a name that cannot be resolved denies nothing"


def test_a_node_that_was_just_added_or_moved_is_no_stranger() -> None:
    slurm, clock = MemorySlurm(), FakeClock()
    view = SlurmView(slurm, clock, lambda name: frozenset({name}))
    assert view.may_speak("n1", "127.0.1.1")[0]
    slurm.node_list[0] = node(1, address="127.0.1.77")
    slurm.node_list.append(node(5))
    clock.now += JOBS_FOR_S + 1
    assert view.may_speak("n5", "127.0.1.5")[0]
    assert view.may_speak("n1", "127.0.1.77")[0]
    assert not view.may_speak("n1", "127.0.1.1")[0]


def test_an_old_answer_neither_denies_nor_allows() -> None:
    slurm, clock = MemorySlurm(), FakeClock()
    view = SlurmView(slurm, clock, lambda name: frozenset({name}))
    assert not view.may_speak("n6", "127.0.1.6")[0]
    slurm.unavailable = True
    clock.now += JOBS_FOR_S + 1
    assert view.may_speak("n1", "127.0.1.1")[0]
    for name in ("n1", "n6"):
        with pytest.raises(SlurmError, match=f"whether 127.0.1.6 is an address of {name}"):
            view.may_speak(name, "127.0.1.6")


def test_settings_name_slurm_user() -> None:
    settings = SlurmView(MemorySlurm(), FakeClock()).settings()
    assert settings is not None
    assert settings.slurm_user_uid == SLURM_UID


def test_resolving() -> None:
    assert resolve_address("127.0.1.1") == {"127.0.1.1"}
    assert "127.0.0.1" in resolve_address("localhost")
    for name in ("", "no such host", "x" * 300, "\udcff"):
        assert "127.0.1.1" not in resolve_address(name)
