"""A trial lasts until its speeds are known, and the time that its jobs may have lost is counted."""

from __future__ import annotations

import math

import pytest

from slurm_gpu.controller.colocation.job_history import CorunHistory, RunKey
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.controller.colocation.trial_watch import TrialWatch, trial_s
from tests.controller.fakes import Clock


def test_a_trial_lasts_longer_with_a_job_that_pauses_and_needs_known_utilisation() -> None:
    store = ColocationStore()
    store.ran_alone("a", 5000, 0.2, 0.4)
    store.ran_alone("unknown", 5000, 0.2, None)
    store.ran_alone("loads", 5000, 0.2, 0.4, (0.0, 0.0, 0.1))
    assert trial_s(store, ["a", "a"]) == 100
    assert trial_s(store, ["a", "loads"]) == 115
    assert trial_s(store, ["a", "unknown"]) == math.inf


def test_a_measurement_elsewhere_ends_a_trial(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store, clock = ColocationStore(), Clock()
    for key in "ab":
        store.ran_alone(key, 2000, 0.2, 0.4)
    start_s = int(clock.wall())
    runs = [RunKey(1, start_s), RunKey(2, start_s)]
    group = [(run, CorunHistory(key, run.start_s)) for run, key in zip(runs, "ab", strict=True)]
    watch = TrialWatch(clock)
    for _ in range(4):
        watch.update([group], runs, store, clock.wall())
        clock.advance(5)
    assert watch.lost_s == dict.fromkeys(runs, 15.0)
    assert watch.not_tried == {frozenset("ab")}
    for key, other in ("ab", "ba"):
        store.ran_with(key, other, 0.8)
    watch.update([group], runs, store, clock.wall())
    assert watch.lost_s == dict.fromkeys(runs, pytest.approx(4.0))
    assert watch.not_tried == frozenset()
    assert store.lost_s == watch.lost_s
    assert caplog.messages == ["trial of job 2 with job 1 ended after 20 s: other jobs provided the speeds"]
    clock.advance(10)
    watch.update([group], runs, store, clock.wall())
    assert watch.lost_s == dict.fromkeys(runs, pytest.approx(6.0))
    watch.update([], runs[1:], store, clock.wall())
    assert set(store.lost_s) == {runs[1]}
