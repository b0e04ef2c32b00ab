"""uGPUcore and uGPUmem are within 1 percentage point of the truth, for any load and timing of jobs.

The exception is the first job of a new node: see test_short_jobs_on_a_new_node.
"""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem

moments = st.floats(0, 1, allow_nan=False)
phases = st.lists(
    st.tuples(moments, moments, st.integers(0, 100), st.integers(0, 39)), max_size=2
)  # from, to as parts of the job's time; percent; GiB


def job(machine: Machine, gpu: FakeGpu, job_id: int, seconds: float, work: list[tuple[float, ...]]) -> float:
    """Run one job to its end and return its start."""
    machine.hook("prolog", job_id, "0")
    start = machine.clock.now_s - 0.002
    # Phases do not overlap, so the device's utilisation is a whole percent between two of their borders.
    borders = sorted(at for phase in work for at in phase[:2])
    for number, phase in enumerate(work):
        begin, end = borders[2 * number], borders[2 * number + 1]
        gpu.work.append(
            Work(job_id, start + begin * seconds, start + end * seconds, phase[2], int(phase[3]) * GIB)
        )
    machine.run_until(start + seconds)
    machine.hook("epilog", job_id, "0")
    return start


@settings(max_examples=examples(20), derandomize=True)
@given(moments, st.floats(3, 15), phases)
@example(0.25, 3.0, [(0.0, 0.5, 72, 0)])
def test_short_jobs(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    check_single_job(offset, seconds, work)


def check_single_job(
    offset: float, seconds: float, work: list[tuple[float, ...]], *, on_a_new_node: bool = False
) -> None:
    """Check one job that begins one sample after slurm-gpud, or together with it on a new node."""
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock(monotonic_s=1000 + offset)
        gpu = FakeGpu(clock)
        machine = Machine(Path(directory), gpu)
        machine.start()
        if not on_a_new_node:
            machine.run(gpu.tick_s)
        start = job(machine, gpu, 7, seconds, work)
        machine.run(2)
        (record,) = machine.records()
        if on_a_new_node:
            check(record, gpu, start, seconds, within=0.5 + 100 * gpu.tick_s / 4 / seconds)
        else:
            check(record, gpu, start, seconds)
        machine.kill()


def check(record, gpu, start, seconds, within=1):  # type: ignore[no-untyped-def]
    assert abs(core(record) - gpu.mean(start, start + seconds, record.job_id)) <= within
    assert abs(mem(record) - gpu.memory_mean(start, start + seconds, record.job_id)) <= 1
    assert abs(record.allocated_s - seconds) < 0.002
    assert record.sampled_s <= record.allocated_s
    assert record.sampled_s > record.allocated_s - 0.05
    # The histogram contains every measured millisecond once; the last is rounded.
    assert abs(sum(record.util_hist_ms.values()) - record.sampled_s * 1000) <= 0.51
    assert abs(sum(record.mem_hist_ms.values()) - record.mem_used_frac.seconds * 1000) <= 1


@settings(max_examples=examples(5), derandomize=True)
@given(moments, st.floats(3, 15), phases)
@example(0.25, 3.0, [(0.0, 1 / 36, 100, 0)])  # the largest possible error, except for rounding
def test_short_jobs_on_a_new_node(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    """Check that the error is at most a quarter of the sample in which slurm-gpud began.

    The sample does not show which job caused its activity. Let the sample last w seconds, the GPU be busy for
    a part p of it, and the job have the GPU for the last h seconds. In these h seconds the GPU was busy for
    at least max(0, pw - (w - h)) and at most min(h, pw) seconds. The record counts ph seconds, which differs
    from either bound by at most h(w - h)/w, hence w/4. For p = 1/2 and h = w/2 the bounds are w/2 apart, and
    no other value is nearer to both. The driver's rounding adds half a point.
    """
    check_single_job(offset, seconds, work, on_a_new_node=True)


@settings(max_examples=examples(5), derandomize=True)
@given(moments, st.floats(60, 400), phases)
def test_long_jobs(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    check_single_job(offset, seconds, work)


@settings(max_examples=examples(8), derandomize=True)
@given(st.data())
def test_shared_gpus(data: st.DataObject) -> None:
    """Check that jobs that share a GPU are charged their own use, and together no more than the GPU's."""
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock(monotonic_s=1000 + data.draw(moments))
        gpu = FakeGpu(clock)
        machine = Machine(Path(directory), gpu)
        machine.start()
        jobs = {}
        hooks = []
        for job_id in range(1, data.draw(st.integers(2, 4)) + 1):
            start = clock.now_s + data.draw(st.floats(0.01, 6))
            seconds = data.draw(st.floats(5, 12))
            jobs[job_id] = (start, seconds)
            begin = start + data.draw(st.floats(0.05, 2))
            end = start + seconds - data.draw(st.floats(0.05, 2))
            percent, memory = data.draw(st.integers(0, 25)), data.draw(st.integers(0, 9)) * GIB
            gpu.work.append(Work(job_id, begin, end, percent, memory))
            hooks += [(start, "prolog", job_id), (start + seconds, "epilog", job_id)]
        for at_s, kind, job_id in sorted(hooks):
            machine.run_until(at_s)
            jobs[job_id] = (clock.now_s, 0) if kind == "prolog" else (jobs[job_id][0], clock.now_s)
            machine.hook(kind, job_id, "0")
        machine.run(3)
        records = machine.records()
        assert len(records) == len(jobs)
        for record in records:
            start, end = jobs[record.job_id]
            own = gpu.mean(start, end, record.job_id)
            # The driver rounds the percent of each process, which adds an error of half a point.
            assert core(record) is not None
            assert abs(core(record) - own) <= 1.5  # type: ignore[operator]
            assert abs(mem(record) - gpu.memory_mean(start, end, record.job_id)) <= 1  # type: ignore[operator]
        busy = sum((core(r) or 0) * r.sampled_s for r in records)
        begin, end = min(s for s, _ in jobs.values()), max(e for _, e in jobs.values())
        assert busy <= gpu.mean(begin - 1, end + 1) * (end - begin + 2) + 100
        machine.kill()
