"""Under a cap, slurm-gpuctld tries unmeasured pairs, and ends each trial before a job exceeds its limit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.controller.colocation.job_history import RunKey
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.lua.decisions import find_endings
from tests.controller.fakes import Clock

from .cluster import POLICY, Cluster, Job, Site

CAP = 1.1
MOST = 1.15
PROMISE = dataclasses.replace(POLICY, goal="considerate", slowdown=CAP)
ALONE_S = 1100.0
"""A tenth of this time is slightly longer than a trial of two jobs with unknown speeds."""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    found = Cluster(Clock(), str(tmp_path), n_gpus=1)
    found.memory = {"a": 0.2, "b": 0.3, "c": 0.2}
    found.util = {"a": 0.4, "b": 0.5, "c": 0.3}
    return found


@pytest.fixture
def tried(site: Site, caplog: pytest.LogCaptureFixture) -> Site:
    """Return a site in which all jobs are known to be long enough for a trial."""
    site.policy = PROMISE
    site.expect(ALONE_S)
    caplog.set_level("INFO")
    return site


def until(site: Site, what: Callable[[], bool], most_s: int = 400) -> None:
    for _ in range(most_s):
        if what():
            return
        site.pass_s(1)
    raise AssertionError(f"the condition is not met within {most_s} s")


def share(site: Site, first: str = "a", second: str = "b", work_s: float = ALONE_S) -> tuple[Job, Job]:
    """Start a job, and another job next to it."""
    stays = site.cluster.submit(first, 2, work_s)
    until(site, lambda: stays.state == "RUNNING")
    comes = site.cluster.submit(second, 3, work_s)
    until(site, lambda: comes.state == "RUNNING")
    assert site.cluster.co_runners(stays) == [comes]
    return stays, comes


def slowdown(job: Job) -> float:
    """Return the slowdown of a completed run; starts and ends are whole seconds."""
    assert job.state == "COMPLETED"
    assert job.start_s is not None
    assert job.end_s is not None
    return (job.end_s - job.start_s - 2) / job.work_s


def trials_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "trial" in one]


def test_a_trial_that_succeeds_continues_and_the_speeds_are_known(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.speeds = {("a", "b"): 0.97, ("b", "a"): 0.95}
    stays, comes = share(tried)
    (at_once,) = trials_in(caplog)
    assert at_once == (
        f"job {comes.job_id} starts on GPU 0 of n1, with a, at 1.00 of its speed alone; "
        "this is a trial, because their speeds together are unmeasured"
    )
    reported = json.loads((Path(cluster.directory) / "colocation.json").read_text())
    assert [one["trial"] for one in reported["gpus"][0]["jobs"]] == [True, True]
    assert reported["last"][-1]["is_trial"]
    tried.pass_s(40)
    assert trials_in(caplog)[1].startswith(
        f"trial of job {comes.job_id} with job {stays.job_id} succeeded after"
    )
    assert trials_in(caplog)[1].endswith(
        "at speeds of 0.97 and 0.95, both runs stay within the guaranteed slowdown of 1.1"
    )
    reported = json.loads((Path(cluster.directory) / "colocation.json").read_text())
    assert [one["trial"] for one in reported["gpus"][0]["jobs"]] == [False, False]
    assert tried.store.speeds["a", "b"][0] == pytest.approx(0.97)
    tried.until_all_end()
    assert [stays.restarts, comes.restarts] == [0, 0]
    assert max(map(slowdown, (stays, comes))) <= CAP
    share(tried)
    assert len(trials_in(caplog)) == 2
    assert tried.audited == []


def test_learned_speeds_survive_a_restart(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    share(tried)
    tried.pass_s(40)
    tried.begin()
    tried.pass_s(30)
    assert set(tried.store.speeds) == {("a", "b"), ("b", "a")}
    assert len(trials_in(caplog)) == 2


def test_jobs_that_cannot_bear_a_trial_do_not_share(tried: Site, cluster: Cluster) -> None:
    tried.expect(900)  # at a fiftieth of its speed, a job would lose 98 s in a trial of 100 s
    stays = cluster.submit("a", 2, 900)
    until(tried, lambda: stays.state == "RUNNING")
    cluster.submit("b", 3, 900)
    for _ in range(30):
        tried.pass_s(10)
        assert cluster.co_runners(stays) == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_time_lost_in_a_trial_counts_against_the_next(
    tried: Site, cluster: Cluster, is_restarted: bool
) -> None:
    cluster.speeds = {("a", "b"): 0.5}
    stays, comes = share(tried)
    until(tried, lambda: comes.restarts == 1)
    tried.pass_s(2)
    if is_restarted:
        tried.begin()
        tried.pass_s(1)
    (lost_s,) = [one for run, one in tried.controller._trials.lost_s.items() if run.job_id == stays.job_id]
    assert 10 < lost_s < 25
    cluster.submit("c", 2, ALONE_S)  # otherwise, c would have been tried, as b was
    for _ in range(20):
        tried.pass_s(10)
        assert cluster.co_runners(stays) == []
    tried.until_all_end()
    assert slowdown(stays) <= CAP


def test_a_trial_ends_although_the_guard_would_tolerate_the_measured_speed(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.speeds = {("a", "b"): 0.87}
    stays, comes = share(tried)
    tried.pass_s(45)
    ((act, subject, why),) = tried.audited
    assert (act, subject) == ("colocation ended", f"job {comes.job_id}")
    assert why.startswith("a would be slowed down by a factor of 1.1")
    assert why.endswith("over its whole run, above the guaranteed 1.1")
    assert trials_in(caplog)[-1].endswith(why)
    (ending,) = find_endings(Path(cluster.directory), f"x{stays.job_id}")
    assert ending.fields["why"].startswith(f"next to job {comes.job_id}, job {stays.job_id} would have been ")
    tried.until_all_end()
    assert (stays.restarts, comes.restarts) == (0, 1)
    assert max(map(slowdown, (stays, comes))) <= CAP
    again = cluster.submit("a", 2, ALONE_S)
    until(tried, lambda: again.state == "RUNNING")
    cluster.submit("b", 3, ALONE_S)
    tried.pass_s(100)
    assert cluster.co_runners(again) == []


def test_a_pair_may_exceed_the_cap_if_its_whole_runs_do_not(tried: Site, cluster: Cluster) -> None:
    """The whole run of the newcomer stays within the cap, because its co-runner is nearly done."""
    cluster.speeds = {("b", "a"): 0.85}
    stays = cluster.submit("a", 2, ALONE_S)
    until(tried, lambda: stays.state == "RUNNING")
    tried.pass_s(650)
    comes = cluster.submit("b", 3, ALONE_S)
    tried.until_all_end()
    assert tried.store.speeds["b", "a"][0] == pytest.approx(0.85, abs=0.01)
    assert (stays.restarts, comes.restarts) == (0, 0)
    assert slowdown(comes) <= CAP


@pytest.mark.parametrize("step_s", [0, 3600, -3600])
def test_a_trial_without_measurements_ends_in_time_whatever_the_clock_says(
    tried: Site,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step_s: int,
) -> None:
    monkeypatch.setattr(cluster, "utilisation", lambda job_id, since_s: None)
    cluster.speeds = {("a", "b"): 0.05}
    stays, comes = share(tried)
    tried.pass_s(20)
    cluster.clock.wall_s += step_s
    done_s = stays.done_s
    until(tried, lambda: comes.restarts == 1, 100)
    assert stays.done_s - done_s < 0.05 * 80
    ((_, _, why),) = tried.audited
    assert "the speeds of a with b were not measured within" in why
    assert trials_in(caplog)[-1].endswith(why)
    assert 80 < tried.controller._trials.lost_s[RunKey(stays.job_id, stays.start_s or 0)] < 0.1 * ALONE_S
    assert not tried.store.apart
    assert not tried.store.speeds


def test_a_pair_that_could_not_be_measured_is_not_tried_again(
    tried: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "utilisation", lambda job_id, since_s: None)
    tried.expect(5000)
    cluster.n_gpus = 2
    _, comes = share(tried, work_s=5000)
    until(tried, lambda: comes.restarts == 1, 1000)
    until(tried, lambda: comes.state == "RUNNING")
    third = cluster.submit("b", 3, 5000)
    tried.pass_s(100)
    assert third.state == "PENDING"


@pytest.mark.parametrize("speed", [0.97, 0.5])
def test_a_restart_in_a_trial_does_not_prolong_it(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture, speed: float
) -> None:
    cluster.speeds = {("a", "b"): speed}
    stays, comes = share(tried)
    tried.pass_s(18)
    tried.begin()
    tried.pass_s(24)
    assert ("succeeded" in trials_in(caplog)[-1]) == (speed > 0.9)
    assert comes.restarts == (0 if speed > 0.9 else 1)
    (lost_s,) = [one for run, one in tried.controller._trials.lost_s.items() if run.job_id == stays.job_id]
    assert lost_s <= 42 * (1 - speed) + 2
    tried.until_all_end()
    assert slowdown(stays) <= CAP


def test_a_job_whose_start_was_not_observed_is_in_no_further_trial(tried: Site, cluster: Cluster) -> None:
    """The time that the job lost before it was observed is unknown."""
    stays = cluster.submit("a", 2, ALONE_S)
    until(tried, lambda: stays.state == "RUNNING")
    tried.pass_s(5)
    tried.begin()
    cluster.submit("b", 3, ALONE_S)
    for _ in range(10):
        tried.pass_s(10)
        assert cluster.co_runners(stays) == []


def test_after_a_long_outage_the_first_measurement_decides(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    stays, comes = share(tried)
    tried.runs = False
    tried.pass_s(400)
    tried.runs = True
    tried.begin()
    tried.pass_s(5)
    assert "succeeded after" in trials_in(caplog)[-1]
    assert (stays.restarts, comes.restarts) == (0, 0)


def test_a_trial_that_a_job_leaves_has_no_result(
    tried: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    stays, comes = share(tried)
    tried.pass_s(15)
    comes.state, comes.end_s = "CANCELLED", int(cluster.clock.wall())
    tried.pass_s(2)
    assert trials_in(caplog)[-1].startswith(
        f"trial of job {comes.job_id} with job {stays.job_id} ended after 1"
    )
    assert trials_in(caplog)[-1].endswith("the jobs no longer share a GPU")
    assert tried.controller._trials.running == {}


def test_a_suspended_job_ends_a_trial_and_another_begins(tried: Site, cluster: Cluster) -> None:
    stays, comes = share(tried)
    tried.pass_s(10)
    stays.state = "SUSPENDED"
    tried.pass_s(500)
    assert tried.controller._trials.running == {}
    assert tried.store.speeds == {}
    stays.state = "RUNNING"
    tried.pass_s(45)
    assert tried.store.speeds["a", "b"][0] == 1
    assert comes.restarts == 0


def test_a_job_that_may_not_be_requeued_is_asked_to_leave_once(
    tried: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(job_id: int) -> None:
        asked.append(job_id)
        raise SlurmError("Requested operation is presently disabled")

    monkeypatch.setattr(cluster, "requeue", refuse)
    monkeypatch.setattr(cluster, "utilisation", lambda job_id, since_s: None)
    _, comes = share(tried)
    tried.pass_s(300)
    assert asked == [comes.job_id]


def test_two_gpus_do_not_try_the_same_pair_at_once(tried: Site, cluster: Cluster) -> None:
    cluster.names = ["n1", "n2"]
    for key in "ab":
        tried.store.part(key, key)
    firsts = [cluster.submit("a", 2, ALONE_S) for _ in range(2)]
    until(tried, lambda: all(job.state == "RUNNING" for job in firsts))
    others = [cluster.submit("b", 3, ALONE_S) for _ in range(2)]
    most = 0
    for _ in range(60):
        tried.pass_s(1)
        most = max(most, len(tried.controller._trials.running))
    assert most == 1
    assert [job.state for job in others] == ["RUNNING"] * 2  # the second one started after the measurement


def test_without_a_cap_there_are_no_trials(
    site: Site, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    share(site, work_s=100)
    site.until_all_end()
    assert trials_in(caplog) == []
    assert site.store.lost_s == {}
    assert site.controller._trials.lost_s == {}


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_completed_run_exceeds_the_limit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Jobs are as long as expected, and each speed is arbitrary and unknown."""
    cluster = Cluster(Clock(), str(tmp_path_factory.mktemp("any")), n_gpus=data.draw(st.integers(1, 2)))
    keys = "abc"
    cluster.memory = dict.fromkeys(keys, 0.2)
    cluster.util = {key: data.draw(st.floats(0.1, 0.6)) for key in keys}
    cluster.speeds = {(one, other): data.draw(st.floats(0.05, 1.0)) for one in keys for other in keys}
    works_s = {key: data.draw(st.integers(50, 2500)) for key in keys}
    site = Site(
        cluster, dataclasses.replace(PROMISE, planner=data.draw(st.sampled_from(["annealing", "greedy"])))
    )
    site.pass_s(1)
    for key in keys:
        site.store.ran_alone(key, works_s[key], 0.2, cluster.util[key])
    for _ in range(data.draw(st.integers(2, 6))):
        key = data.draw(st.sampled_from(keys))
        cluster.submit(key, 2, works_s[key])
        site.pass_s(data.draw(st.integers(0, 100)))
        if data.draw(st.booleans()):
            site.begin()
    site.until_all_end(20_000)
    assert all(slowdown(job) <= MOST for job in cluster.all.values())
