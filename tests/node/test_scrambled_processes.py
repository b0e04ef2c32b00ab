"""If a driver lists wrong process ids, a job's part of a shared GPU is a gap and not 0."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.node.gpu.reading import GpuProcess, ProcessSample, Reading
from slurm_gpu.node.measure.own_sample import Owners, part
from slurm_gpu.node.process.process_jobs import NO_JOB
from slurm_gpu.wire import Record, histogram_mean
from tests.node.fakes import GIB, FakeClock, FakeGpu, Work
from tests.node.machine import Machine

NO_PROCESS = 4_000_000_000


class ScrambledGpu(FakeGpu):
    """A GPU that lists wrong process IDs after the first one, like drivers 535.54 and 535.98."""

    def processes(self) -> Sequence[GpuProcess] | None:
        listed = super().processes() or ()
        return [
            *listed[:1],
            *(GpuProcess(NO_PROCESS + n, process.used) for n, process in enumerate(listed[1:])),
        ]


def shared(gpu: FakeGpu, directory: Path, seconds: float = 60.0) -> list[Record]:
    """Return the records of two jobs that share the GPU; only the first computes."""
    machine = Machine(directory, gpu)
    machine.start()
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 2 * seconds, 50, 4 * GIB))
    gpu.work.append(Work(8, start, start + 2 * seconds, 0, 8 * GIB))
    machine.write_hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run_until(start + seconds)
    # Both end together, so that neither is alone at the end.
    machine.write_hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(3)
    return machine.records()


def test_a_job_whose_processes_are_not_listed_has_gaps(tmp_path: Path) -> None:
    seven, eight = shared(ScrambledGpu(FakeClock()), tmp_path)
    assert seven.mem_used_frac is not None
    assert seven.mem_used_frac.mean == pytest.approx(0.1, abs=0.001)
    assert seven.no_process_s == 0
    assert (eight.mem_used_frac, eight.mem_hist_ms) == (None, None)
    assert (eight.processes, eight.no_process_s) == (None, None)


def test_a_job_without_processes_next_to_known_ones_has_zeros(tmp_path: Path) -> None:
    gpu = FakeGpu(FakeClock())
    machine = Machine(tmp_path, gpu)
    machine.start()
    start = machine.clock.now_s
    gpu.work.append(Work(7, start, start + 60, 50, 4 * GIB))
    machine.write_hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run_until(start + 60)
    # Both end together, so that neither is alone at the end.
    machine.write_hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(3)
    _, eight = machine.records()
    assert eight.mem_used_frac is not None
    assert eight.mem_used_frac.mean == 0
    assert eight.no_process_s == pytest.approx(eight.allocated_s, abs=0.6)


@given(
    listed=st.lists(st.sampled_from([7, 8, 9, NO_JOB, None]), max_size=6),
    job=st.sampled_from([7, 8]),
)
def test_a_job_has_no_processes_only_if_all_belong_to_other_jobs(listed: list[int | None], job: int) -> None:
    processes = [GpuProcess(pid, GIB) for pid in range(len(listed))]
    own = Owners(processes, listed.__getitem__).of(job)
    if job in listed:
        assert own is not None
        assert len(own) == listed.count(job)
    else:
        assert own == (() if all(owner in (7, 8, 9) for owner in listed) else None)
    assert (part(Reading(0.0), own, detailed=True).processes is None) == (own is None)


class BusyGpu(FakeGpu):
    """A busy GPU that reports the utilisation of no process."""

    def process_samples(self, after_us: int) -> Sequence[ProcessSample] | None:
        return []


def test_a_busy_gpu_that_reports_no_process_is_a_gap_for_its_jobs(tmp_path: Path) -> None:
    for record in shared(BusyGpu(FakeClock()), tmp_path):
        assert record.util_hist_ms is None
        assert record.sampled_s == 0
        assert record.device_util_pct is not None
        assert record.device_util_pct.mean == pytest.approx(50, abs=1)


def test_an_idle_gpu_that_reports_no_process_is_idle_for_its_jobs(tmp_path: Path) -> None:
    gpu = FakeGpu(FakeClock())
    machine = Machine(tmp_path, gpu)
    machine.start()
    machine.write_hook("prolog", 7, "0")
    machine.hook("prolog", 8, "0")
    machine.run(30)
    # Both end together, so that neither is alone at the end.
    machine.write_hook("epilog", 7, "0")
    machine.hook("epilog", 8, "0")
    machine.run(3)
    for record in machine.records():
        assert record.util_hist_ms is not None
        assert histogram_mean(record.util_hist_ms) == 0
        assert record.sampled_s == pytest.approx(30, abs=0.5)


class WithoutList(FakeGpu):
    """A GPU as in some virtual machines, whose list of processes is always empty."""

    def processes(self) -> Sequence[GpuProcess] | None:
        return []


@pytest.mark.parametrize(("percent", "known"), [(50.0, False), (0.0, True)])
def test_an_empty_process_list_of_a_busy_gpu_is_a_gap(tmp_path: Path, percent: float, *, known: bool) -> None:
    gpu = WithoutList(FakeClock())
    machine = Machine(tmp_path, gpu)
    machine.start()
    gpu.work.append(Work(7, 0.0, 1e9, percent, 4 * GIB))
    machine.hook("prolog", 7, "0")
    machine.run(60)
    machine.hook("epilog", 7, "0")
    machine.run(3)
    (record,) = machine.records()
    assert record.no_process_s == (pytest.approx(60, abs=0.1) if known else None)
    assert (record.processes is not None) == known
