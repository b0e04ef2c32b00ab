"""Jobs that share a GPU divide its activity and never exceed it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_gpu.node.measure.shares import (
    AllocatedSpan,
    JobSample,
    allocated_part,
    alone,
    device_during,
    shared,
)
from slurm_gpu.node.measure.utilization import UtilizationSpan

moments = st.floats(0, 1)
percents = st.integers(0, 100).map(float)


@st.composite
def parts_of(draw: st.DrawFn, span: UtilizationSpan) -> dict[int, AllocatedSpan]:
    """Draw 1 to 4 jobs that had the device allocated for a part of the span."""
    parts = {}
    for job in range(1, draw(st.integers(1, 4)) + 1):
        begin, end = sorted((draw(moments), draw(moments)))
        part = allocated_part(span, span.start_s + begin, span.start_s + end + 0.001)
        if part is not None:
            parts[job] = part
    return parts


@given(st.data())
def test_the_sum_of_shares_is_at_most_the_device(data: st.DataObject) -> None:
    span = UtilizationSpan(10.0, 10.0 + data.draw(st.floats(0.16, 1)), data.draw(percents))
    parts = data.draw(parts_of(span))
    stamps = st.floats(span.start_s - 0.5, span.end_s + 0.5)
    job_samples = st.builds(JobSample, stamps, st.none() | st.integers(0, 5), percents, st.booleans())
    samples = data.draw(st.none() | st.lists(job_samples, max_size=12))
    unknown_jobs = data.draw(st.booleans())
    own = shared(span, parts, samples, unknown_jobs=unknown_jobs)
    assert set(own) == set(parts)
    if samples and all(s.job_id is None and s.percent for s in samples) and (unknown_jobs or len(parts) > 1):
        inside = any(sample.at_s > span.start_s + 0.002 for sample in samples)
        assert not inside or set(own.values()) <= {None}
    known = {job: percent for job, percent in own.items() if percent is not None}
    done = sum(percent * parts[job].seconds for job, percent in known.items())
    assert done <= span.percent * (span.end_s - span.start_s) * (1 + 1e-9) + 1e-9
    assert all(0 <= percent <= 100 for percent in known.values())
    for job, part in parts.items():
        assert 0 <= device_during(span, part, parts, own) <= 100
        # While the device is allocated to a job, it is at least as busy as that job.
        percent = own[job]
        if percent is not None:
            assert device_during(span, part, parts, own) >= percent - 1e-6


@given(percents, st.floats(0.001, 1))
@example(100.0, 0.5)
def test_a_job_alone_on_a_gpu_has_all_of_its_activity(percent: float, allocated_s: float) -> None:
    span = UtilizationSpan(10.0, 11.0, percent)
    value = alone(span, AllocatedSpan(10.0, 10.0 + allocated_s))
    assert value <= 100
    assert value * allocated_s <= percent * 1.000001
    if percent <= 100 * allocated_s:
        assert abs(value * allocated_s - percent) < 1e-6


def test_overlapping_jobs_without_process_samples_are_a_gap() -> None:
    span = UtilizationSpan(10.0, 11.0, 60.0)
    together = {1: AllocatedSpan(10.0, 10.6), 2: AllocatedSpan(10.5, 11.0)}
    assert shared(span, together, None) == {1: None, 2: None}
    turns = {1: AllocatedSpan(10.0, 10.5), 2: AllocatedSpan(10.5, 11.0)}
    assert shared(span, turns, None) == {1: 60.0, 2: 60.0}


def test_a_job_without_process_samples_was_idle() -> None:
    span = UtilizationSpan(10.0, 11.0, 60.0)
    parts = {1: AllocatedSpan(10.0, 11.0), 2: AllocatedSpan(10.0, 11.0)}
    assert shared(span, parts, [JobSample(10.9, 1, 50.0)]) == {1: 50.0, 2: 0.0}


@given(st.lists(percents, min_size=1, max_size=8), st.lists(percents, min_size=3, max_size=3))
def test_means_divide_the_activity_of_the_device_completely(device: list[float], means: list[float]) -> None:
    samples = [JobSample(20.0, job, percent, is_mean=True) for job, percent in enumerate(means)]
    done = {0: 0.0, 1: 0.0, 2: 0.0}
    for index, percent in enumerate(device):
        span = UtilizationSpan(10.0 + index, 11.0 + index, percent)
        whole = AllocatedSpan(span.start_s, span.end_s)
        for job, own in shared(span, {1: whole, 2: whole}, samples).items():
            assert own is not None
            done[job] += own
    for job in (1, 2):
        part = means[job] / sum(means) if sum(means) else 0.0
        assert done[job] == pytest.approx(sum(device) * part), "job 0 is not a job of Slurm"


def test_unattributable_activity_is_a_gap_for_all_jobs_present() -> None:
    span = UtilizationSpan(10.0, 11.0, 60.0)
    both = {1: AllocatedSpan(10.0, 11.0), 2: AllocatedSpan(10.0, 11.0)}
    gone = JobSample(10.9, None, 40.0)
    assert shared(span, both, [JobSample(10.9, 1, 20.0), gone]) == {1: None, 2: None}
    nothing = JobSample(10.5, None, 0.0)
    assert shared(span, both, [nothing, JobSample(10.5, 1, 40.0), JobSample(10.9, 1, 20.0)]) == {
        1: 30.0,
        2: 0.0,
    }
    # A sample from before the span has no effect.
    before = JobSample(9.9, None, 40.0)
    assert shared(span, both, [before, JobSample(10.9, 1, 20.0)]) == {1: 20.0, 2: 0.0}


def test_unattributable_activity_belongs_to_the_only_possible_job() -> None:
    span = UtilizationSpan(10.0, 11.0, 60.0)
    samples = [JobSample(10.9, 1, 20.0), JobSample(10.9, None, 40.0)]
    assert shared(span, {1: AllocatedSpan(10.0, 11.0)}, samples) == {1: 60.0}
    assert shared(span, {1: AllocatedSpan(10.0, 11.0)}, samples, unknown_jobs=True) == {1: None}
    assert shared(span, {1: AllocatedSpan(10.0, 11.0)}, samples[:1], unknown_jobs=True) == {1: 20.0}
    assert shared(span, {1: AllocatedSpan(10.0, 11.0)}, None, unknown_jobs=True) == {1: None}
