"""uGPUcore and uGPUmem are within 1 percentage point of the truth, whatever jobs do and whenever."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine, core, mem

moments = st.floats(0, 1, allow_nan=False)
phases = st.lists(
    st.tuples(moments, moments, st.integers(0, 100), st.integers(0, 39)), max_size=2
)  # from, to as parts of the job's time; percent; GiB


def job(machine: Machine, gpu: FakeGpu, job_id: int, seconds: float, work: list[tuple[float, ...]]) -> float:
    """Run one job to its end; returns when it began."""
    machine.hook("prolog", job_id, "0")
    start = machine.clock.now_s - 0.002
    # Phases one after another: the device's percent is a whole number between two of their borders.
    borders = sorted(at for phase in work for at in phase[:2])
    for number, phase in enumerate(work):
        begin, end = borders[2 * number], borders[2 * number + 1]
        gpu.work.append(
            Work(job_id, start + begin * seconds, start + end * seconds, phase[2], int(phase[3]) * GIB)
        )
    machine.run_until(start + seconds)
    machine.hook("epilog", job_id, "0")
    return start


@settings(max_examples=20, derandomize=True)
@given(moments, st.floats(3, 15), phases)
def test_short_jobs(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    job_alone(offset, seconds, work)


def job_alone(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock(monotonic_s=1000 + offset)
        gpu = FakeGpu(clock)
        machine = Machine(Path(directory), gpu)
        machine.start()
        start = job(machine, gpu, 7, seconds, work)
        machine.run(2)
        (record,) = machine.records()
        check(record, gpu, start, seconds)
        machine.kill()


def check(record, gpu, start, seconds):  # type: ignore[no-untyped-def]
    assert abs(core(record) - gpu.mean(start, start + seconds, record.job_id)) <= 1
    assert abs(mem(record) - gpu.memory_mean(start, start + seconds, record.job_id)) <= 1
    assert abs(record.held_s - seconds) < 0.002
    assert record.sampled_s <= record.held_s
    assert record.sampled_s > record.held_s - 0.05
    # Every measured millisecond is in the histogram once.
    assert sum(record.util_hist_ms.values()) == round(record.sampled_s * 1000)
    assert abs(sum(record.mem_hist_ms.values()) - record.mem_used_frac.seconds * 1000) <= 1


@settings(max_examples=5, derandomize=True)
@given(moments, st.floats(60, 400), phases)
def test_long_jobs(offset: float, seconds: float, work: list[tuple[float, ...]]) -> None:
    job_alone(offset, seconds, work)


@settings(max_examples=8, derandomize=True)
@given(st.data())
def test_shared_gpus(data: st.DataObject) -> None:
    """Any number of jobs that come and go on one GPU: each has its own, together never more than all."""
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
            # Whole percents of each process, rounded: half a point more than of the device.
            assert core(record) is not None
            assert abs(core(record) - own) <= 1.5  # type: ignore[operator]
            assert abs(mem(record) - gpu.memory_mean(start, end, record.job_id)) <= 1  # type: ignore[operator]
        busy = sum((core(r) or 0) * r.sampled_s for r in records)
        begin, end = min(s for s, _ in jobs.values()), max(e for _, e in jobs.values())
        assert busy <= gpu.mean(begin - 1, end + 1) * (end - begin + 2) + 100
        machine.kill()
