"""Jobs that need attention are told within five minutes, others never, and nothing below the coverage."""

from dataclasses import dataclass, field

import pytest

from slurm_gpu.alerts.alert import AlertThresholds, Concern
from slurm_gpu.alerts.watch import RunningJob, Watch
from slurm_gpu.wire import LiveDevice

WITHIN_S = 300.0
EVERY_S = 10
START = 1_780_000_000.0


@dataclass
class Gpu:
    """Second by second: utilisation, memory and reasons, None where nobody looked."""

    util: list[float | None]
    memory: float = 0.3
    throttle: tuple[str, ...] = ()

    def at(self, second: int) -> LiveDevice:
        util = self.util[second]
        if util is None:
            return LiveDevice(jobs=(1,))
        return LiveDevice(util_pct=util, mem_used_frac=self.memory, throttle=self.throttle, jobs=(1,))


@dataclass
class Told:
    """When each concern was first told, in seconds from the start, and when it was last."""

    first: dict[Concern, float] = field(default_factory=dict)
    last: dict[Concern, float] = field(default_factory=dict)


def watched(*gpus: Gpu, rules: AlertThresholds | None = None, silent: range = range(0)) -> Told:
    """One job from its start on, looked at each ten seconds; `silent`: its node tells nothing."""
    watch, told = Watch(rules), Told()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, len(gpus[0].util), EVERY_S):
        now_s = START + second
        values = {f"GPU-{n}": (now_s, gpu.at(second)) for n, gpu in enumerate(gpus)}
        watch.look(now_s, [job], {} if second in silent else values)
        for flag in watch.flags(now_s):
            assert flag.coverage >= watch.rules.min_coverage
            told.first.setdefault(flag.concern, second)
            told.last[flag.concern] = second
    return told


def stretch(*parts: tuple[int, float | None]) -> list[float | None]:
    return [value for seconds, value in parts for _ in range(seconds)]


def test_a_job_that_never_uses_its_gpus_is_told_within_five_minutes() -> None:
    told = watched(Gpu([0.0] * 900))
    assert told.first[Concern.HELD_IDLE] <= WITHIN_S
    assert set(told.first) == {Concern.HELD_IDLE}


def test_one_that_stops_using_them_is_told_within_five_minutes_and_no_more_once_it_goes_on() -> None:
    told = watched(Gpu(stretch((600, 80.0), (900, 0.0), (600, 90.0))))
    assert set(told.first) == {Concern.USED_THEN_IDLE}
    assert 600 < told.first[Concern.USED_THEN_IDLE] <= 600 + WITHIN_S
    assert told.last[Concern.USED_THEN_IDLE] <= 1500 + EVERY_S


def test_full_memory_on_an_idle_gpu_is_told_besides() -> None:
    told = watched(Gpu(stretch((300, 80.0), (600, 0.0)), memory=0.9))
    assert set(told.first) == {Concern.USED_THEN_IDLE, Concern.MEMORY_IDLE}


def test_one_of_four_used() -> None:
    told = watched(Gpu([95.0] * 900), *(Gpu([0.0] * 900) for _ in range(3)))
    assert set(told.first) == {Concern.PARTLY_UNUSED}
    assert told.first[Concern.PARTLY_UNUSED] <= WITHIN_S


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("hw_thermal_slowdown", {Concern.THROTTLED}), ("sw_power_cap", set())],
)
def test_heat_is_a_concern_and_the_power_cap_is_none(reason: str, expected: set[Concern]) -> None:
    assert set(watched(Gpu([95.0] * 900, throttle=(reason,))).first) == expected


def test_an_error_of_the_run_before_a_requeue_is_not_told_of_the_new_one() -> None:
    watch = Watch()
    watch.look(
        START + 10,
        [RunningJob(job_id=1, start_s=START)],
        {"GPU-0": (START + 10, LiveDevice(util_pct=90.0, jobs=(1,)))},
    )
    watch.xid(1, "GPU-0", START - 30)
    assert watch.flags(START + 10) == []
    watch.xid(1, "GPU-0", START - 1)  # clocks differ a little
    assert [flag.concern for flag in watch.flags(START + 10)] == [Concern.XID]


def test_an_error_of_a_gpu_is_told_for_an_hour() -> None:
    watch = Watch()
    watch.look(
        START, [RunningJob(job_id=1, start_s=START)], {"GPU-0": (START, LiveDevice(util_pct=9, jobs=(1,)))}
    )
    watch.xid(1, "GPU-0", START + 5)
    assert [flag.concern for flag in watch.flags(START + 10)] == [Concern.XID]
    assert watch.flags(START + 5 + 3600) == []


@pytest.mark.parametrize("values", [[None] * 900, stretch((100, 0.0), (800, None))])
def test_gaps_are_no_zeros(values: list[float | None]) -> None:
    assert watched(Gpu(values)).first == {}


def test_a_silent_node_is_not_judged() -> None:
    told = watched(Gpu([0.0] * 1200), silent=range(60, 1200))
    assert told.first == {}


def test_a_gpu_that_jobs_share_is_judged_for_none_of_them() -> None:
    watch = Watch()
    jobs = [RunningJob(job_id=n, start_s=START) for n in (1, 2)]
    for second in range(0, 900, EVERY_S):
        shared = LiveDevice(util_pct=0.0, mem_used_frac=0.9, jobs=(1, 2))
        watch.look(START + second, jobs, {"GPU-0": (START + second, shared)})
    assert watch.flags(START + 900) == []


def test_suspended_time_counts_for_nothing() -> None:
    watch = Watch()
    for second in range(0, 1200, EVERY_S):
        job = RunningJob(job_id=1, start_s=START, suspended=100 <= second < 1000)
        value = LiveDevice(util_pct=0.0 if second >= 100 else 50.0, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
        assert watch.flags(START + second) == []


def test_a_job_that_gave_up_a_node_is_judged_by_what_it_has_left() -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 1200, EVERY_S):
        shrunk = second >= 600
        kept = LiveDevice(util_pct=0.0 if shrunk else 80.0, jobs=(1,))
        left = LiveDevice(util_pct=0.0, jobs=()) if shrunk else LiveDevice(util_pct=80.0, jobs=(1,))
        now_s = START + second
        watch.look(now_s, [job], {"GPU-0": (now_s, kept), "GPU-1": (now_s, left)})
    (flag,) = watch.flags(START + 1190)
    assert (flag.concern, flag.devices) == (Concern.USED_THEN_IDLE, ("GPU-0",))


def test_a_job_that_was_requeued_is_watched_anew() -> None:
    watch = Watch()
    for second in range(0, 600, EVERY_S):
        start_s = START if second < 200 else START + 200
        value = LiveDevice(util_pct=50.0 if second < 200 else 0.0, jobs=(1,))
        watch.look(
            START + second, [RunningJob(job_id=1, start_s=start_s)], {"GPU-0": (START + second, value)}
        )
    assert [flag.concern for flag in watch.flags(START + 600)] == [Concern.HELD_IDLE]


@pytest.mark.parametrize(
    ("used_before", "expected"),
    [(True, Concern.USED_THEN_IDLE), (False, Concern.HELD_IDLE), (None, Concern.USED_THEN_IDLE)],
)
def test_what_came_before_the_watch_is_what_records_say(used_before: bool | None, expected: Concern) -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START - 86400, used_before=used_before)
    for second in range(0, 400, EVERY_S):
        value = LiveDevice(util_pct=0.0, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
    assert [flag.concern for flag in watch.flags(START + 390)] == [expected]


def test_which_of_its_gpus_were_never_used_before_the_watch_is_what_records_say() -> None:
    watch = Watch()
    job = RunningJob(
        job_id=1, start_s=START - 86400, used_before=True, unused_before=frozenset({"GPU-1", "GPU-2"})
    )
    for second in range(0, 400, EVERY_S):
        values = {
            f"GPU-{n}": LiveDevice(util_pct=95.0 if n in (0, 2) and second > 60 else 0.0, jobs=(1,))
            for n in range(3)
        }
        watch.look(START + second, [job], {uuid: (START + second, value) for uuid, value in values.items()})
    (flag,) = watch.flags(START + 390)
    assert (flag.concern, flag.devices) == (Concern.PARTLY_UNUSED, ("GPU-1",))


def test_values_that_come_late_or_twice_tell_nothing_new() -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 900, EVERY_S):
        at_s = START + min(second, 100)  # it goes on telling the same
        watch.look(START + second, [job], {"GPU-0": (at_s, LiveDevice(util_pct=0.0, jobs=(1,)))})
    assert watch.flags(START + 900) == []


def test_a_short_burst_between_two_values_is_work() -> None:
    """Each value is of a moment without it; `idle_s` tells when it was."""
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 1800, EVERY_S):
        idle_s = (second - 33) % 60 if second > 33 else None
        value = LiveDevice(util_pct=0.0, idle_s=idle_s, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
        assert watch.flags(START + second) == []


def test_what_the_job_before_did_is_not_its_own() -> None:
    """The first values may have been read while another held the GPU."""
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(3, 400, EVERY_S):
        value = LiveDevice(util_pct=90.0 if second == 3 else 0.0, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
    assert [flag.concern for flag in watch.flags(START + 400)] == [Concern.HELD_IDLE]


def test_after_a_long_silence_five_minutes_are_enough() -> None:
    watch, told = Watch(), []
    job = RunningJob(job_id=1, start_s=START)
    for second in [*range(0, 300, EVERY_S), *range(4000, 4400, EVERY_S)]:
        value = LiveDevice(util_pct=90.0 if second < 300 else 0.0, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
        told += [(second, flag.concern) for flag in watch.flags(START + second)]
    assert 4000 < told[0][0] <= 4000 + WITHIN_S
    assert {concern for _, concern in told} == {Concern.USED_THEN_IDLE}


def test_what_was_seen_before_a_burst_says_nothing_of_the_time_after_it() -> None:
    """The burst fell into a silence, and is known by `idle_s` alone."""
    watch, told = Watch(), []
    job = RunningJob(job_id=1, start_s=START)
    for second in [*range(0, 360, EVERY_S), *range(620, 1000, EVERY_S)]:
        value = LiveDevice(util_pct=0.0, idle_s=second - 380 if second > 380 else None, jobs=(1,))
        watch.look(START + second, [job], {"GPU-0": (START + second, value)})
        told += [second for flag in watch.flags(START + second) if flag.concern is Concern.USED_THEN_IDLE]
    assert 800 < told[0] <= 620 + WITHIN_S


def test_while_others_cannot_be_read_none_is_said_to_be_the_only_one_used() -> None:
    told = watched(Gpu([0.0] * 900), Gpu(stretch((100, 0.0), (800, None))))
    assert told.first == {}


@pytest.mark.parametrize("wrong", [{"window_s": 0}, {"min_coverage": 1.1}, {"memory_frac": 0}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AlertThresholds(**wrong)
