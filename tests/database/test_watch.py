"""The watch over running jobs soon reports faults with their causes, and reports no healthy job."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.verdict import Cause
from slurm_gpu.wire import Live, LiveDevice
from tests.database.samples import queued
from tests.database.simulated_training import Played, Watching
from tests.diagnose.faults import OLDER
from tests.diagnose.training import START_S, Training

AT_S = 300
"""The time at which faults begin."""


def well(**more) -> Training:
    return Training(n=8, n_bins=1200, **more)


def throttled(by: float = 0.15, at_s: int = AT_S, stop_s: int | None = None, seed: int = 1) -> Training:
    """Return a training run in which the clock of GPU 5 falls, as if because of heat."""
    training = well(seed=seed)
    training.clock[5, at_s:stop_s] *= 1 - by
    training.throttle[5, at_s:stop_s] = 0.8
    return training


def busy_longer(by: float = 0.15, **more) -> Training:
    """Return a training run in which GPU 2 computes more slowly without a change of its clock."""
    training = well(**more)
    training.speed[2, AT_S:] *= 1 - by
    return training


class Hanging(Training):
    """A training run in which GPU 3 stops and the others spin, or all stop if `all_stop`."""

    all_stop = False
    goes_on_s: int | None = None

    def values(self):
        found = super().values()
        part = slice(AT_S, self.goes_on_s)
        for metric in (Metric.TENSOR, Metric.NVLINK, Metric.PCIE):
            found[metric][:, part] = 0.0
        found[Metric.SM_ACTIVE][:, part] = 0.1
        found[Metric.POWER][:, part] = 0.3
        found[Metric.UTIL][3, part] = 0.0
        if self.all_stop:
            found[Metric.UTIL][:, part] = 0.0
            found[Metric.POWER][:, part] = 0.12
        return found


def hanging(per_node: int = 8, **more) -> Hanging:
    training = Hanging(n=8, per_node=per_node, n_bins=1200)
    for name, value in more.items():
        setattr(training, name, value)
    return training


def test_a_slow_gpu_is_reported_within_three_minutes():
    watching = Watching(Played({1: throttled(), 2: well(seed=2)}))
    (reported,) = watching.until(AT_S + 180).values()
    assert (reported.job_id, reported.cause, reported.kind) == (1, "slow or failing", "throttled")
    assert reported.devices == (("j1n1", "GPU-005"),)
    assert reported.since_s == pytest.approx(START_S + AT_S, abs=30)
    assert reported.confidence >= 0.8


def test_a_slow_gpu_with_a_normal_clock_is_found_by_being_busy_longer():
    reported = Watching(Played({1: busy_longer()})).until(AT_S + 180)
    assert (reported[1].cause, reported[1].devices) == ("slow or failing", (("j1n1", "GPU-002"),))


def test_a_suspicion_is_not_reported():
    training = busy_longer(metrics=OLDER)
    verdict = diagnose(training.series())
    assert (verdict.cause, verdict.suspect) == (Cause.SLOW, True)
    watching = Watching(Played({1: training}))
    watching.until(1195)
    assert watching.played.reported == []


def slow_links(by: float = 0.3, **more) -> Training:
    """Return a training run in which all GPUs wait longer for each other, so none deviates from its peers."""
    training = well(**more)
    training.talk[:, AT_S:] += by
    return training


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_links_that_are_slow_for_all_are_reported_without_an_outlier(seed: int):
    others = {job: well(seed=10 * job) for job in range(2, 12)}
    watching = Watching(Played({1: slow_links(seed=seed), **others}))
    reported = watching.until(AT_S + 210)
    assert {job: item.cause for job, item in reported.items()} == {1: "communication delay"}
    assert reported[1].since_s == pytest.approx(START_S + AT_S, abs=30)


@pytest.mark.parametrize("phase", [0, 3, 7])
def test_a_hang_is_reported_within_35_s_with_the_missing_worker(phase: int):
    watching = Watching(Played({1 + phase: hanging()}))
    reported = watching.until(AT_S + 35)[1 + phase]
    assert (reported.cause, reported.devices) == ("hang", ((f"j{1 + phase}n1", "GPU-003"),))


def test_a_machine_without_slurm_whose_job_has_the_same_number_is_no_culprit():
    played = Played({1: hanging()})
    of_slurm, idle = played.live, LiveDevice(util_pct=0.0, power_w=60.0, sm_active_frac=0.0, jobs=(1,))
    played.live = lambda: {**of_slurm(), "ws1": Live(at_s=played.now_s, devices={"GPU-900": idle})}
    reported = Watching(played).until(AT_S + 35)
    assert (reported[1].cause, reported[1].devices) == ("hang", (("j1n1", "GPU-003"),))


def test_a_hang_ends_when_the_job_continues():
    watching = Watching(Played({1: hanging(goes_on_s=AT_S + 120)}))
    assert 1 in watching.until(AT_S + 60)
    assert watching.until(AT_S + 180) == {}
    last = watching.played.reported[-1]
    assert (last.verdict.cause, last.ended_s is not None) == ("hang", True)


def test_a_hang_that_lasts_longer_than_is_remembered_is_still_one():
    watching = Watching(Played({1: hanging()}))
    watching.until(AT_S + 60)
    assert {1} == set(watching.until(1195))
    assert all(reported.ended_s is None for reported in watching.played.reported)


def test_pauses_such_as_checkpoints_are_no_hangs():
    training = well()
    for minute in (3, 6, 9, 12, 15):
        training.runs[training.at(minute) : training.at(minute) + 40] = False
    watching = Watching(Played({1: training}))
    watching.until(1195)
    assert watching.played.reported == []


def test_an_ended_problem_is_closed_and_does_not_flicker():
    watching = Watching(Played({1: throttled(stop_s=AT_S + 240)}))
    assert 1 in watching.until(AT_S + 230)
    seconds = range(AT_S + 240, 1195, 30)
    causes = [[reported.cause for reported in watching.until(second).values()] for second in seconds]
    assert sum(a != b for a, b in pairwise(causes)) <= 1


def test_healthy_trainings_are_not_reported():
    trainings = {job: well(seed=job) for job in range(1, 9)}
    for job, training in trainings.items():  # with constant differences between GPUs
        training.clock *= 1 + 0.01 * np.random.default_rng(job).standard_normal((8, 1))
    watching = Watching(Played(trainings))
    watching.until(1195)
    assert watching.played.reported == []
    assert watching.watch.shown.watched == 8


@pytest.mark.parametrize("another", [True, False])
def test_network_traffic_of_a_node_is_a_jobs_if_it_is_alone_there(another: bool):
    """Test that traffic disproves a hang only if no other job on the node may have caused it."""
    played = Played({1: hanging()})
    live, queue = played.live, played.queue

    def sending():
        nodes = live()
        for node in nodes.values():
            object.__setattr__(node, "host", {"net_rx_bytes_per_s": 3e8, "net_tx_bytes_per_s": 1e6})
        return nodes

    played.live = sending
    played.series = lambda job, *, take_part: None  # no window arrives
    if another:
        played.queue = lambda: queue() | {9: queued(job_id=9, nodes=("j1n1",))}
    assert (1 in Watching(played).until(AT_S + 40)) is another


def test_a_job_that_ends_takes_its_verdict_along():
    watching = Watching(Played({1: throttled()}))
    watching.until(AT_S + 180)
    watching.played.over.add(1)
    assert watching.until(AT_S + 190) == {}
    assert watching.played.reported[-1].ended_s == START_S + AT_S + 185


def test_jobs_that_share_gpus_are_not_watched():
    played = Played({1: throttled()})
    live = played.live

    def shared():
        nodes = live()
        for node in nodes.values():
            device = next(iter(node.devices))
            object.__setattr__(node.devices[device], "jobs", (1, 9))
        return nodes

    played.live = shared
    watching = Watching(played)
    assert watching.until(AT_S + 180) == {}
    assert watching.watch.shown.watched == 0


def accused_by(*users: str) -> Watching:
    """Run jobs one after the other on the same GPUs; GPU 5 is slow, except in the last job."""
    trainings = {job: throttled(at_s=150, seed=job) for job in range(1, len(users) + 1)}
    for training in trainings.values():
        training.n_bins = 420
    well_there = len(users) + 1
    trainings[well_there] = well(seed=77)
    named = dict(enumerate((*users, "dave"), 1))
    starts = {job: 430 * (job - 1) for job in trainings}
    return Watching(Played(trainings, users=named, starts=starts, same_nodes=True))


def test_a_gpu_that_slows_jobs_of_several_users_is_a_suspect_until_others_are_well_there():
    watching = accused_by("alice", "bob", "bob")
    watching.until(2 * 430)
    assert watching.watch.shown.suspects == []
    watching.until(3 * 430)
    (suspect,) = watching.watch.shown.suspects
    assert (suspect.node, suspect.device, suspect.jobs, suspect.users) == ("n1", "GPU-005", 3, 2)
    assert suspect.next_step.startswith("scontrol update nodename=n1 state=drain")
    watching.until(3 * 430 + 900)
    assert watching.watch.shown.suspects == []


def test_one_users_jobs_make_no_suspect():
    watching = accused_by("alice", "alice", "alice")
    watching.until(3 * 430)
    assert {reported.verdict.cause for reported in watching.played.reported} == {"slow or failing"}
    assert watching.watch.shown.suspects == []


def test_a_job_that_gave_most_of_its_nodes_back_is_watched_on_the_rest():
    played = Played({1: hanging(per_node=2)})
    played.resized[1] = (120, ("j1n2",))
    watching = Watching(played)
    assert watching.until(AT_S - 5) == {}
    reported = watching.until(AT_S + 60)[1]
    assert (reported.cause, reported.devices) == ("hang", (("j1n2", "GPU-003"),))
    assert {reported.n_gpus for reported in played.reported} == {2}


def test_a_machine_without_slurm_that_shares_gpus_hides_no_job_of_the_same_number():
    played = Played({1: throttled()})
    live = played.live

    def with_a_stray():
        stray = LiveDevice(util_pct=0.0, jobs=(1, 2))
        return live() | {"desk": Live(at_s=played.now_s, devices={"GPU-desk": stray})}

    played.live = with_a_stray
    assert 1 in Watching(played).until(AT_S + 180)


def test_nodes_of_jobs_with_several_gpus_are_to_post_each_ten_seconds():
    played = Played({1: well(), 2: well(seed=2)})
    of_both = played.queue

    def queue():
        gpus = {1: {"gpu": [0, 1]}, 2: {"gpu": [0]}}
        return {
            job: replace(one, gpu_index={one.nodes[0]: gpus[job]}, tres_allocated={})
            for job, one in of_both().items()
        }

    played.queue = queue
    Watching(played).until(10)
    assert played.needed == set(of_both()[1].nodes)
