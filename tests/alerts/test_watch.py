"""Alerts appear within five minutes, never for busy jobs, and never with too little coverage."""

from dataclasses import dataclass, field

import pytest

from slurm_gpu.alerts.alert import AlertKind, AlertThresholds
from slurm_gpu.alerts.watch import RunningJob, Watch
from slurm_gpu.wire import LiveDevice

WITHIN_S = 300.0
EVERY_S = 10
START = 1_780_000_000.0


@dataclass
class Gpu:
    """Utilisation of a GPU by second, its memory and its throttle reasons; None without an observation."""

    util: list[float | None]
    memory: float = 0.3
    throttle: tuple[str, ...] = ()

    def at(self, second: int) -> LiveDevice:
        util = self.util[second]
        if util is None:
            return LiveDevice(jobs=(1,))
        return LiveDevice(util_pct=util, mem_used_frac=self.memory, throttle=self.throttle, jobs=(1,))


@dataclass
class Reported:
    """The first and last time of each alert, in seconds from the start of the job."""

    first: dict[AlertKind, float] = field(default_factory=dict)
    last: dict[AlertKind, float] = field(default_factory=dict)


def watched(*gpus: Gpu, rules: AlertThresholds | None = None, silent: range = range(0)) -> Reported:
    """Watch one job from its start, polled every ten seconds; its node reports nothing while `silent`."""
    watch, reported = Watch(rules), Reported()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, len(gpus[0].util), EVERY_S):
        now_s = START + second
        values = {f"GPU-{n}": (now_s, gpu.at(second)) for n, gpu in enumerate(gpus)}
        watch.update(now_s, [job], {} if second in silent else values)
        for alert in watch.alerts(now_s):
            assert alert.coverage >= watch.rules.min_coverage
            reported.first.setdefault(alert.kind, second)
            reported.last[alert.kind] = second
    return reported


def stretch(*parts: tuple[int, float | None]) -> list[float | None]:
    return [value for seconds, value in parts for _ in range(seconds)]


def test_a_job_that_never_uses_its_gpus_is_reported_within_five_minutes() -> None:
    reported = watched(Gpu([0.0] * 900))
    assert reported.first[AlertKind.NEVER_USED] <= WITHIN_S
    assert set(reported.first) == {AlertKind.NEVER_USED}


def test_a_job_that_stops_using_gpus_is_reported_within_five_minutes_until_it_continues() -> None:
    reported = watched(Gpu(stretch((600, 80.0), (900, 0.0), (600, 90.0))))
    assert set(reported.first) == {AlertKind.USED_THEN_IDLE}
    assert 600 < reported.first[AlertKind.USED_THEN_IDLE] <= 600 + WITHIN_S
    assert reported.last[AlertKind.USED_THEN_IDLE] <= 1500 + EVERY_S


def test_full_memory_on_an_idle_gpu_is_reported_too() -> None:
    reported = watched(Gpu(stretch((300, 80.0), (600, 0.0)), memory=0.9))
    assert set(reported.first) == {AlertKind.USED_THEN_IDLE, AlertKind.MEMORY_IDLE}


def test_one_used_gpu_of_four_is_an_alert() -> None:
    reported = watched(Gpu([95.0] * 900), *(Gpu([0.0] * 900) for _ in range(3)))
    assert set(reported.first) == {AlertKind.PARTLY_UNUSED}
    assert reported.first[AlertKind.PARTLY_UNUSED] <= WITHIN_S


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("hw_thermal_slowdown", {AlertKind.THROTTLED}), ("sw_power_cap", set())],
)
def test_heat_is_an_alert_and_the_power_cap_is_none(reason: str, expected: set[AlertKind]) -> None:
    assert set(watched(Gpu([95.0] * 900, throttle=(reason,))).first) == expected


def test_an_error_before_a_requeue_is_not_reported_for_the_new_run() -> None:
    watch = Watch()
    watch.update(
        START + 10,
        [RunningJob(job_id=1, start_s=START)],
        {"GPU-0": (START + 10, LiveDevice(util_pct=90.0, jobs=(1,)))},
    )
    watch.xid(1, "GPU-0", START - 30)
    assert watch.alerts(START + 10) == []
    watch.xid(1, "GPU-0", START - 1)  # clocks of hosts differ a little
    assert [alert.kind for alert in watch.alerts(START + 10)] == [AlertKind.XID]


def test_a_gpu_error_is_reported_for_an_hour() -> None:
    watch = Watch()
    watch.update(
        START, [RunningJob(job_id=1, start_s=START)], {"GPU-0": (START, LiveDevice(util_pct=9, jobs=(1,)))}
    )
    watch.xid(1, "GPU-0", START + 5)
    assert [alert.kind for alert in watch.alerts(START + 10)] == [AlertKind.XID]
    assert watch.alerts(START + 5 + 3600) == []


@pytest.mark.parametrize("values", [[None] * 900, stretch((100, 0.0), (800, None))])
def test_gaps_are_no_zeros(values: list[float | None]) -> None:
    assert watched(Gpu(values)).first == {}


def test_a_silent_node_is_not_judged() -> None:
    reported = watched(Gpu([0.0] * 1200), silent=range(60, 1200))
    assert reported.first == {}


def test_a_gpu_that_jobs_share_is_judged_for_none_of_them() -> None:
    watch = Watch()
    jobs = [RunningJob(job_id=n, start_s=START) for n in (1, 2)]
    for second in range(0, 900, EVERY_S):
        shared = LiveDevice(util_pct=0.0, mem_used_frac=0.9, jobs=(1, 2))
        watch.update(START + second, jobs, {"GPU-0": (START + second, shared)})
    assert watch.alerts(START + 900) == []


def test_suspended_time_counts_for_nothing() -> None:
    watch = Watch()
    for second in range(0, 1200, EVERY_S):
        job = RunningJob(job_id=1, start_s=START, suspended=100 <= second < 1000)
        value = LiveDevice(util_pct=0.0 if second >= 100 else 50.0, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
        assert watch.alerts(START + second) == []


def test_a_job_that_released_a_node_is_judged_by_its_remaining_gpus() -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 1200, EVERY_S):
        shrunk = second >= 600
        kept = LiveDevice(util_pct=0.0 if shrunk else 80.0, jobs=(1,))
        left = LiveDevice(util_pct=0.0, jobs=()) if shrunk else LiveDevice(util_pct=80.0, jobs=(1,))
        now_s = START + second
        watch.update(now_s, [job], {"GPU-0": (now_s, kept), "GPU-1": (now_s, left)})
    (alert,) = watch.alerts(START + 1190)
    assert (alert.kind, alert.devices) == (AlertKind.USED_THEN_IDLE, ("GPU-0",))


def test_a_requeued_job_is_watched_from_its_new_start() -> None:
    watch = Watch()
    for second in range(0, 600, EVERY_S):
        start_s = START if second < 200 else START + 200
        value = LiveDevice(util_pct=50.0 if second < 200 else 0.0, jobs=(1,))
        watch.update(
            START + second, [RunningJob(job_id=1, start_s=start_s)], {"GPU-0": (START + second, value)}
        )
    assert [alert.kind for alert in watch.alerts(START + 600)] == [AlertKind.NEVER_USED]


@pytest.mark.parametrize(
    ("used_before", "expected"),
    [(True, AlertKind.USED_THEN_IDLE), (False, AlertKind.NEVER_USED), (None, AlertKind.USED_THEN_IDLE)],
)
def test_records_answer_for_the_time_before_the_watch(used_before: bool | None, expected: AlertKind) -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START - 86400, used_before=used_before)
    for second in range(0, 400, EVERY_S):
        value = LiveDevice(util_pct=0.0, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
    assert [alert.kind for alert in watch.alerts(START + 390)] == [expected]


def test_records_show_which_gpus_were_never_used_before_the_watch() -> None:
    watch = Watch()
    job = RunningJob(
        job_id=1, start_s=START - 86400, used_before=True, unused_before=frozenset({"GPU-1", "GPU-2"})
    )
    for second in range(0, 400, EVERY_S):
        values = {
            f"GPU-{n}": LiveDevice(util_pct=95.0 if n in (0, 2) and second > 60 else 0.0, jobs=(1,))
            for n in range(3)
        }
        watch.update(START + second, [job], {uuid: (START + second, value) for uuid, value in values.items()})
    (alert,) = watch.alerts(START + 390)
    assert (alert.kind, alert.devices) == (AlertKind.PARTLY_UNUSED, ("GPU-1",))


def test_late_and_repeated_values_change_nothing() -> None:
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 900, EVERY_S):
        at_s = START + min(second, 100)  # the same value is reported repeatedly
        watch.update(START + second, [job], {"GPU-0": (at_s, LiveDevice(util_pct=0.0, jobs=(1,)))})
    assert watch.alerts(START + 900) == []


def test_a_short_burst_between_two_values_is_work() -> None:
    """No value is sampled during the burst; only `idle_s` contains its time."""
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(0, 1800, EVERY_S):
        idle_s = (second - 33) % 60 if second > 33 else None
        value = LiveDevice(util_pct=0.0, idle_s=idle_s, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
        assert watch.alerts(START + second) == []


def test_use_by_the_previous_job_is_not_attributed() -> None:
    """The first values of a job may date from the previous job on the GPU."""
    watch = Watch()
    job = RunningJob(job_id=1, start_s=START)
    for second in range(3, 400, EVERY_S):
        value = LiveDevice(util_pct=90.0 if second == 3 else 0.0, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
    assert [alert.kind for alert in watch.alerts(START + 400)] == [AlertKind.NEVER_USED]


def test_after_a_long_silence_five_minutes_are_enough() -> None:
    watch, reported = Watch(), []
    job = RunningJob(job_id=1, start_s=START)
    for second in [*range(0, 300, EVERY_S), *range(4000, 4400, EVERY_S)]:
        value = LiveDevice(util_pct=90.0 if second < 300 else 0.0, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
        reported += [(second, alert.kind) for alert in watch.alerts(START + second)]
    assert 4000 < reported[0][0] <= 4000 + WITHIN_S
    assert {kind for _, kind in reported} == {AlertKind.USED_THEN_IDLE}


def test_observations_before_a_burst_do_not_cover_the_time_after_it() -> None:
    """The burst falls into a gap without values, and only `idle_s` contains it."""
    watch, reported = Watch(), []
    job = RunningJob(job_id=1, start_s=START)
    for second in [*range(0, 360, EVERY_S), *range(620, 1000, EVERY_S)]:
        value = LiveDevice(util_pct=0.0, idle_s=second - 380 if second > 380 else None, jobs=(1,))
        watch.update(START + second, [job], {"GPU-0": (START + second, value)})
        reported += [
            second for alert in watch.alerts(START + second) if alert.kind is AlertKind.USED_THEN_IDLE
        ]
    assert 800 < reported[0] <= 620 + WITHIN_S


def test_while_other_gpus_cannot_be_read_no_gpu_counts_as_unused_alone() -> None:
    reported = watched(Gpu([0.0] * 900), Gpu(stretch((100, 0.0), (800, None))))
    assert reported.first == {}


@pytest.mark.parametrize("wrong", [{"window_s": 0}, {"min_coverage": 1.1}, {"memory_frac": 0}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AlertThresholds(**wrong)
