"""Slurm's reports complete the events of hooks and never overrule them."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.allocation.tracker import Allocation, Allocations
from slurm_gpu.node.jobs.ended_runs import EndedRuns
from slurm_gpu.node.jobs.reconcile import Reconciliation, ReportedJob
from slurm_gpu.node.jobs.segments import Checkpoints
from slurm_gpu.node.measure.tally import SegmentKey
from slurm_gpu.wire import Record
from tests.node.fakes import WALL_0, FakeClock, KeptRuns

NOW, WALL = 5000.0, WALL_0 + 5000.0


def facts(**changed: Any) -> dict[str, Any]:
    running = {"restart": 0, "start_s": int(WALL) - 100, "uid": 1001, "state": "RUNNING"}
    return {**running, "gpu_index": {"gpu": [1, 3]}, "granted_mgpu": 1000, "age_s": 0.5, **changed}


def reported(**changed: Any) -> ReportedJob:
    job = ReportedJob.from_facts(7, facts(**changed))
    assert job is not None
    return job


def allocation(job_id: int = 7, restart: int = 0, prolog_at_s: float = WALL - 100) -> Allocation:
    key = SegmentKey(
        cluster="lab",
        job_id=job_id,
        restart=restart,
        prolog_s=int(prolog_at_s),
        node="n1",
        boot_id="boot-1",
        segment=f"{job_id:015x}{restart}",
    )
    start_s = NOW - (WALL - prolog_at_s)
    return Allocation(
        key=key,
        prolog_at_s=prolog_at_s,
        begun_s=start_s,
        start_s=start_s,
        start_wall_s=prolog_at_s,
        positions=(1,),
    )


def allocations_of(*open_now: Allocation) -> Allocations:
    allocations = Allocations()
    for one in open_now:
        allocations.put(one)
    return allocations


def none_ended() -> EndedRuns:
    return EndedRuns(KeptRuns(), FakeClock(monotonic_s=NOW))


def test_positions_of_gpus_and_shards_are_merged() -> None:
    assert reported().positions == (1, 3)
    assert reported(gpu_index={"shard": [2], "nic": [0]}).positions == (2,)
    assert reported(gpu_index={"gpu": [0], "shard": [0, 1]}).positions == (0, 1)
    assert reported(state="SUSPENDED").suspended


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "COMPLETING"},
        {"state": "PENDING"},
        {"gpu_index": {}},
        {"gpu_index": {"gpu": [-1]}},
        {"gpu_index": {"gpu": ["0"]}},
        {"gpu_index": {"gpu": [10**9]}},
        {"gpu_index": None},
        {"start_s": None},
        {"restart": True},
        {"age_s": None},
        {"age_s": float("nan")},
    ],
)
def test_a_job_without_gpus_or_with_invalid_facts_is_ignored(changed: dict[str, Any]) -> None:
    assert ReportedJob.from_facts(7, facts(**changed)) is None


def test_a_job_without_a_hook_begins_when_reported_again_after_ten_seconds() -> None:
    reconciliation = Reconciliation(none_ended(), 0.0)
    assert reconciliation.begun([reported()], allocations_of(), NOW, WALL) == []
    assert reconciliation.begun([reported()], allocations_of(), NOW + 5, WALL + 5) == []
    assert reconciliation.begun([reported()], allocations_of(), NOW + 10, WALL + 10) == [reported()]


def test_a_repeated_old_answer_does_not_count_as_a_second_report() -> None:
    """While slurmctld does not answer, slurm-gpudbd repeats the last answer."""
    reconciliation = Reconciliation(none_ended(), 0.0)
    for at in range(0, 3600, 10):
        assert reconciliation.begun([reported(age_s=0.5 + at)], allocations_of(), NOW + at, WALL + at) == []


def test_reports_older_than_the_daemon_are_ignored() -> None:
    reconciliation = Reconciliation(none_ended(), NOW)
    for at in (0, 10):
        assert reconciliation.begun([reported(age_s=30.0)], allocations_of(), NOW + at, WALL + at) == []
    for at in (20, 30, 40, 50):
        found = reconciliation.begun([reported(age_s=5.0)], allocations_of(), NOW + at, WALL + at)
    assert len(found) == 1


def test_a_job_missing_from_an_answer_must_be_reported_twice_again() -> None:
    reconciliation = Reconciliation(none_ended(), 0.0)
    reconciliation.begun([reported()], allocations_of(), NOW, WALL)
    reconciliation.begun([], allocations_of(), NOW + 10, WALL + 10)
    assert reconciliation.begun([reported()], allocations_of(), NOW + 20, WALL + 20) == []


def test_a_running_job_does_not_begin_again_but_its_next_run_begins() -> None:
    reconciliation = Reconciliation(none_ended(), 0.0)
    for at in (0, 20):
        assert reconciliation.begun([reported()], allocations_of(allocation()), NOW + at, WALL + at) == []
    reconciliation.begun([reported(restart=1)], allocations_of(allocation()), NOW, WALL)
    assert (
        len(reconciliation.begun([reported(restart=1)], allocations_of(allocation()), NOW + 20, WALL + 20))
        == 1
    )


def test_an_answer_about_an_ended_run_does_not_begin_it_again() -> None:
    ended = none_ended()
    ended.add(7, 0)
    reconciliation = Reconciliation(ended, 0.0)
    for at in (0, 10, 20):
        assert reconciliation.begun([reported()], allocations_of(), NOW + at, WALL + at) == []
    reconciliation.begun([reported(restart=1)], allocations_of(), NOW, WALL)
    assert reconciliation.begun([reported(restart=1)], allocations_of(), NOW + 10, WALL + 10) != []


def test_a_job_that_began_before_the_boot_is_ignored() -> None:
    reconciliation = Reconciliation(none_ended(), 0.0)
    before = reported(start_s=int(WALL) - 100)
    for at in (20.0, 40.0):  # seconds since boot
        assert reconciliation.begun([before], allocations_of(), at, WALL + at) == []


OVER = {"restart": 0, "end_s": int(WALL) - 40}


def over(answer: dict[str, Any], open_now: Allocation | None = None) -> list[float]:
    """Return the ends found in an answer received at NOW."""
    there = allocations_of(allocation() if open_now is None else open_now)
    return [o.end_s for o in Reconciliation(none_ended(), 0.0).over({7: answer}, there, NOW, WALL)]


def test_a_run_that_slurm_reports_as_ended_ends_at_the_reported_time() -> None:
    assert over(OVER) == [NOW - 40]
    assert over({**OVER, "restart": None}) == [NOW - 40]
    assert over({**OVER, "restart": 2}) == [NOW - 40]


def test_a_run_that_began_by_a_fast_clock_still_ends() -> None:
    ahead = dataclasses.replace(allocation(), prolog_at_s=WALL + 3500, start_wall_s=WALL + 3500)
    assert over(OVER, ahead) == [NOW - 40]


def test_a_recent_end_waits_for_the_epilog() -> None:
    assert over({**OVER, "end_s": int(WALL) - 20}) == []


def test_the_end_is_within_the_allocation() -> None:
    restarted = Allocation(
        key=allocation().key,
        prolog_at_s=WALL - 100,
        begun_s=NOW - 100,
        start_s=NOW - 5,
        start_wall_s=WALL - 5,
        positions=(1,),
    )
    assert over(OVER, restarted) == [NOW - 40]
    assert over(OVER, dataclasses.replace(restarted, begun_s=NOW - 39)) == [NOW - 39]


@pytest.mark.parametrize(
    ("answer", "restart"),
    [
        ({"restart": 0, "end_s": int(WALL) - 40}, 1),  # a younger run
        ({"restart": None, "end_s": int(WALL) - 4000}, 0),  # an earlier job with this id
        ({"restart": 0, "end_s": None}, 0),
        ({"restart": 0, "end_s": "soon"}, 0),
        ({"restart": 0, "end_s": float("nan")}, 0),
        ({}, 0),
    ],
)
def test_a_run_without_a_certain_end_remains_open(answer: dict[str, Any], restart: int) -> None:
    assert over(answer, allocation(restart=restart)) == []


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
NAMES = (*facts(), "end_s", "in_prolog")


@given(st.dictionaries(st.sampled_from(NAMES), anything), st.booleans())
def test_any_answer_is_handled_without_errors(odd: dict[str, Any], whole: bool) -> None:
    answer = {**facts(), **odd} if whole else odd
    reported_jobs = [job for job in [ReportedJob.from_facts(7, answer)] if job is not None]
    reconciliation = Reconciliation(none_ended(), 0.0)
    for at in (0.0, 10.0):
        for there in (allocations_of(), allocations_of(allocation())):
            reconciliation.begun(reported_jobs, there, NOW + at, WALL + at)
            for over_now in reconciliation.over({7: answer}, there, NOW + at, WALL + at):
                assert over_now.allocation.start_s <= over_now.end_s <= NOW + at


def record(allocated_s: float) -> Record:
    return Record(
        cluster="lab",
        job_id=7,
        restart=0,
        prolog_s=1,
        node="n1",
        boot_id="boot-1",
        segment="0" * 16,
        device="GPU-0",
        seq=1,
        final=False,
        first_s=1,
        last_s=1,
        allocated_s=allocated_s,
        sampled_s=0.0,
    )


@given(st.integers(1, 1000), st.data())
def test_checkpoints_contain_a_record_not_much_older_than_any_time(
    checkpoints: int, data: st.DataObject
) -> None:
    history = Checkpoints()
    for number in range(1, checkpoints + 1):
        history.add(10.0 * number, json.dumps(record(10.0 * number).to_wire()).encode())
    age = data.draw(st.integers(0, checkpoints - 1))
    kept = history.at(10.0 * (checkpoints - age))
    if kept is not None:
        assert age <= checkpoints - kept.allocated_s / 10 <= 1.5 * age
    else:
        assert 1.5 * age >= checkpoints - 1  # too close to the first checkpoint
    assert len(history) <= 18 + 3 * checkpoints.bit_length()
