"""Each job counts once in the recent mix, and its weight decays."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.controller.queue.amounts import CountingFacts
from slurm_gpu.controller.queue.job_mix import HALF_LIFE_S, MOST_CLASSES, JobMix, MixedOrder, request_of
from slurm_gpu.placement.order import FreeCapacity, NodeKind
from slurm_gpu.simulate.request import ResourceRequest
from slurm_gpu.slurm.queue import CountedJob, JobPhase

from .fakes import NOON_S, Clock, make_job

FACTS = CountingFacts(shards_per_gpu=4)
# Interval between two effective updates.
LATER_S = 10.0


def job(job_id: int, gpus: int = 1, cpus: int = 8, **changes: Any) -> CountedJob:
    """Build a running job that was just submitted."""
    return make_job(
        job_id,
        **{
            "per_node": f"gres:gpu:{gpus}",
            "tres": f"cpu={cpus},mem=16G,node=1,gres/gpu={gpus}",
            "n_cpus": cpus,
            "submit_s": NOON_S,
            **changes,
        },
    )


def counted(mix: JobMix) -> dict[tuple[int, int], float]:
    """Return the share of each class, by its GPUs and cores."""
    found = mix.mix()
    return {
        (one.gpus, one.cpus): round(part, 3)
        for one, part in zip(found.requests, found.popularity, strict=True)
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_each_job_counts_once_while_it_is_in_the_queue(clock: Clock) -> None:
    mix = JobMix(clock)
    for jobs in ([job(1), job(2, 4, 32)], [job(1), job(2, 4, 32), job(3)], [job(3), job(4)], []):
        mix.update(jobs, FACTS)
        clock.advance(LATER_S)
    assert counted(mix) == {(1, 8): 0.75, (4, 32): 0.25}
    assert mix.n_seen == pytest.approx(4, abs=0.01)


def test_between_two_updates_nothing_is_counted_or_missed(clock: Clock) -> None:
    mix = JobMix(clock)
    mix.update([job(1)], FACTS)
    clock.advance(1)
    mix.update([job(1), job(2)], FACTS)
    assert mix.counted == 1
    clock.advance(LATER_S)
    mix.update([job(1), job(2, phase=JobPhase.ENDED)], FACTS)
    assert mix.counted == 2


def test_jobs_that_wait_count_and_those_on_several_nodes_for_each(clock: Clock) -> None:
    mix = JobMix(clock)
    waits = job(2, 2, n_nodes=3, n_cpus=48, phase=JobPhase.PENDING, tres="cpu=48,node=3,gres/gpu=6", nodes="")
    mix.update([job(1), waits], FACTS)
    assert counted(mix) == {(1, 8): 0.25, (2, 16): 0.75}


def test_old_jobs_count_less(clock: Clock) -> None:
    mix = JobMix(clock)
    mix.update([job(1), job(2)], FACTS)
    clock.advance(HALF_LIFE_S)
    mix.update([job(3, 4, 32)], FACTS)
    assert counted(mix) == {(1, 8): 0.5, (4, 32): 0.5}
    clock.advance(60 * HALF_LIFE_S)
    mix.update([job(4, 2, 16)], FACTS)
    assert counted(mix) == {(2, 16): 1.0}


def test_jobs_of_partitions_that_are_not_managed_do_not_count(clock: Clock) -> None:
    mix = JobMix(clock, partitions=["gpu"])
    jobs = [
        job(1, partition="private"),
        job(2, partition="private,gpu"),
        job(3, 0, tres="cpu=8,node=1", per_node=""),
    ]
    mix.update(jobs, FACTS)
    assert mix.counted == 1


def test_a_job_requests_a_type_only_if_its_owner_named_one() -> None:
    given_one = job(1, tres="cpu=8,node=1,gres/gpu=1,gres/gpu:a100=1")
    assert request_of(given_one, FACTS) == ResourceRequest(gpus=1, cpus=8)
    asked = job(1, per_node="gres:gpu:A100:2", tres="cpu=8,node=1,gres/gpu=2,gres/gpu:a100=2")
    assert request_of(asked, FACTS) == ResourceRequest(gpus=2, cpus=8, gpu_type="a100")
    either = job(1, per_node="gres:gpu:a100:1,gres:gpu:v100:1", tres="cpu=8,node=1,gres/gpu=2")
    assert request_of(either, FACTS) == ResourceRequest(gpus=2, cpus=8)
    shard = job(1, per_node="gres:shard:1", tres="cpu=2,mem=2G,node=1,gres/shard=1")
    assert request_of(shard, FACTS) == ResourceRequest(share_mgpu=250, cpus=2, memory_mib=2048)


def test_a_restart_continues_and_counts_nothing_twice(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "jobmix.json"
    first = JobMix(clock, path)
    first.update([job(1), job(2, 4, 32)], FACTS)
    first.write()
    clock.advance(60)
    again = JobMix(clock, path)
    assert counted(again) == counted(first)
    again.update([job(1), job(2, 4, 32), job(3, submit_s=NOON_S + 30)], FACTS)
    assert counted(again) == pytest.approx({(1, 8): 2 / 3, (4, 32): 1 / 3}, abs=0.001)
    # An array task that starts now is a job of its own, although it was submitted long ago.
    clock.advance(LATER_S)
    again.update([job(1), job(4)], FACTS)
    assert again.counted == pytest.approx(4)


def test_killed_at_any_time_it_has_lost_a_minute_at_most(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "jobmix.json"
    mix = JobMix(clock, path)
    for number in range(20):
        mix.update([job(number, submit_s=int(clock.wall()))], FACTS)
        clock.advance(LATER_S)
    assert JobMix(clock, path).n_seen >= 14


@pytest.mark.parametrize(
    "damaged",
    [
        '{"version": 1, "at_s": 1' + "0" * 400 + ', "classes": []}',
        "",
        "{",
        "[" * 100_000,
        "[]",
        '{"version": 1}',
        '{"version": 1, "at_s": 1e999, "classes": []}',
        '{"version": 1, "at_s": 1, "classes": [{"gpus": -1, "share_mgpu": 0, "cpus": 1, "memory_mib": 1, '
        '"gpu_type": "", "times": 1}]}',
        '{"version": 1, "at_s": 1, "classes": [{"gpus": 1, "share_mgpu": 0, "cpus": 1, "memory_mib": 1, '
        '"gpu_type": "", "times": 1e999}]}',
    ],
)
def test_a_damaged_file_is_logged_and_the_mix_starts_again(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    path = tmp_path / "jobmix.json"
    path.write_text(damaged)
    mix = JobMix(clock, path)
    assert f"mix of jobs not loaded: {path}: " in caplog.text
    assert mix.n_seen == 0
    mix.update([job(1)], FACTS)
    assert json.loads(path.read_text())["classes"][0]["cpus"] == 8


def test_a_mix_that_cannot_be_saved_is_logged_once(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    mix = JobMix(clock, tmp_path / "gone" / "jobmix.json")
    mix.update([job(1)], FACTS)
    mix.write()
    assert caplog.text.count("after a restart it starts with the jobs in the queue") == 1
    assert mix.counted == 1


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 10_000)), min_size=300, max_size=600))
def test_memory_is_bounded_for_any_requests(tmp_path: Path, asked: list[tuple[int, int]]) -> None:
    clock, path = Clock(), tmp_path / "jobmix.json"
    mix = JobMix(clock, path)
    mix.update([job(number, gpus, cpus) for number, (gpus, cpus) in enumerate(asked)], FACTS)
    assert len(mix.mix().requests) <= MOST_CLASSES
    mix.write()
    assert path.stat().st_size < 200 * MOST_CLASSES
    assert counted(JobMix(clock, path)) == pytest.approx(counted(mix), abs=0.002)


def test_the_order_is_rebuilt_when_the_mix_moves_or_nodes_of_another_kind_appear(clock: Clock) -> None:
    mix = JobMix(clock)
    kinds = {NodeKind(("a100",) * 4, 32, 64_000): 2}
    orders = MixedOrder(mix)
    assert orders.of(kinds) is None
    mix.update([job(number) for number in range(100)], FACTS)
    first = orders.of(kinds)
    clock.advance(LATER_S)
    mix.update([job(number) for number in range(103)], FACTS)
    assert first is not None
    assert orders.of(kinds) is first
    clock.advance(LATER_S)
    mix.update([job(number) for number in range(110)], FACTS)
    second = orders.of(kinds)
    assert second is not first
    more = kinds | {NodeKind(("a100",) * 8, 64, 64_000): 1}
    third = orders.of(more)
    assert third is not None
    assert third.stake(NodeKind(("a100",) * 8, 64, 64_000), FreeCapacity((0,) * 8, 64, 64_000)).useful == 0
