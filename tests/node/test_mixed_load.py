"""Records of jobs of every kind match the activity of the simulated GPUs; `make soak` runs hundreds."""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from lab.simgpu.specs import GpuSpec, MigSpec, hopper
from lab.simgpu.truth import Usage, usage
from slurm_gpu.node.measure.sampling_interval import YOUNGEST_S
from slurm_gpu.wire import Record, histogram_mean, histogram_quantile
from tests.node.mixedload import Load, Run
from tests.node.simulated import SimulatedMachine

SEED = int(os.environ.get("SLURM_GPU_TEST_SEED", "20261121"))
RUNS = int(os.environ.get("SLURM_GPU_TEST_RUNS", "48"))
# In the order of Slurm's positions: four GPUs with one job each, two shared GPUs, and an H100 in three
# instances.
GPUS = [GpuSpec(f"GPU-{n}", minor=n) for n in (3, 1, 0, 2, 5, 4)]
CUT = [MigSpec("3g.40gb", "MIG-0"), MigSpec("2g.20gb", "MIG-1"), MigSpec("2g.20gb", "MIG-2")]
WHOLE, SHARED, INSTANCES = (0, 1, 2, 3), (4, 5), {6: 40_000.0, 7: 20_000.0, 8: 20_000.0}
MEAN_POINTS = 0.5
ENERGY_PART = 0.01
TICK_S = 1 / 6
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
COLLECT_S = 15.0

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")


@dataclass(frozen=True)
class Tick:
    """A sample of the driver's ring for (start, end] in monotonic seconds; percent by process id."""

    start_s: float
    end_s: float
    percent: int
    by_process: Mapping[int, int]


class Collector:
    """A reader of all samples of the driver's rings that uses only pynvml, not slurm-gpud."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._seen_us = dict.fromkeys((*WHOLE, *SHARED), 0)
        self.ticks: dict[int, list[Tick]] = {gpu: [] for gpu in self._seen_us}

    def collect(self) -> None:
        for gpu, ticks in self.ticks.items():
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            seen_us = self._seen_us[gpu]
            try:
                _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, seen_us)
            except pynvml.NVMLError_NotFound:
                continue
            by_stamp: dict[int, dict[int, int]] = {}
            try:
                for own in pynvml.nvmlDeviceGetProcessUtilization(handle, seen_us):
                    by_stamp.setdefault(own.timeStamp, {})[own.pid] = own.smUtil
            except pynvml.NVMLError_NotFound:
                pass
            for sample in samples:
                at_us = int(sample.timeStamp)
                if seen_us:
                    start_s, end_s = (us / 1e6 - self._machine.clock.offset_s for us in (seen_us, at_us))
                    ticks.append(Tick(start_s, end_s, sample.sampleValue.uiVal, by_stamp.get(at_us, {})))
                seen_us = at_us
            self._seen_us[gpu] = seen_us


@dataclass(frozen=True, eq=False)
class Occupancy:
    """A run's use of one GPU between the time stamps of its hooks (monotonic seconds)."""

    run: Run
    gpu: int
    start_s: float
    end_s: float
    pids: frozenset[int]

    def __str__(self) -> str:
        run = self.run
        return (
            f"job {run.job_id}.{run.restart}, {run.seconds:.2f} s from {self.start_s:.2f} s on GPU {self.gpu}"
        )


class Play:
    """The whole load, run on the node by a fake Slurm that only writes hook files."""

    def __init__(self, machine: SimulatedMachine, load: Load, collector: Collector | None = None) -> None:
        self.machine, self.occupancies = machine, list[Occupancy]()
        self._collector = Collector(machine) if collector is None else collector
        self._begun: dict[tuple[int, int], tuple[float, dict[int, set[int]]]] = {}
        self._collected_s = machine.clock.now_s
        began_s = machine.clock.now_s + 5.0
        events = [(began_s + run.start_s, 1, run) for run in load.runs]
        events += [(began_s + run.end_s, 0, run) for run in load.runs]
        for at_s, is_prolog, run in sorted(events, key=lambda event: event[:2]):
            self._run_until(at_s)
            (self._begin if is_prolog else self._end)(run)
        self._run_until(machine.clock.now_s + 3)
        self._collector.collect()
        self.ticks = self._collector.ticks
        self.records = machine.records(final=None)

    def _run_until(self, at_s: float) -> None:
        """Advance the clock, and read the rings before they overflow."""
        while (due_s := self._collected_s + COLLECT_S) < at_s:
            self.machine.run_until(due_s)
            self._collector.collect()
            self._collected_s = due_s
        self.machine.run_until(at_s)

    def _begin(self, run: Run) -> None:
        now_s = self.machine.clock.now_s
        pids: dict[int, set[int]] = {gpu: set() for gpu in run.gpus}
        for program in run.programs:
            points = program.points(self.machine.clock.at_ns(now_s))
            pids[program.gpu].add(self.machine.work(run.job_id, run.restart, program.gpu, points))
        self._begun[run.job_id, run.restart] = now_s, pids
        self._hook("prolog", run)

    def _end(self, run: Run) -> None:
        start_s, pids = self._begun[run.job_id, run.restart]
        for gpu in run.gpus:
            occupancy = Occupancy(run, gpu, start_s, self.machine.clock.now_s, frozenset(pids[gpu]))
            self.occupancies.append(occupancy)
            for pid in occupancy.pids:
                self.machine.vanish(pid)
        self._hook("epilog", run)

    def _hook(self, kind: str, run: Run) -> None:
        gpus = ",".join(str(gpu) for gpu in run.gpus)
        self.machine.hook(kind, run.job_id, gpus, restart=run.restart)

    def record(self, occupancy: Occupancy) -> Record:
        uuid, run = self.machine.gpus[occupancy.gpu].uuid, occupancy.run
        (found,) = [
            r for r in self.records if (r.job_id, r.restart, r.device) == (run.job_id, run.restart, uuid)
        ]
        return found

    def usage(self, occupancy: Occupancy) -> Usage:
        """Return the true usage of the GPU by the run, from the schedules of its processes."""
        offset_s = self.machine.clock.offset_s
        return usage(
            self.machine.truths,
            job_id=occupancy.run.job_id,
            restart=occupancy.run.restart,
            uuid=self.machine.gpus[occupancy.gpu].uuid,
            start_s=occupancy.start_s + offset_s,
            end_s=occupancy.end_s + offset_s,
        )

    def histogram(self, occupancy: Occupancy) -> Mapping[int, int]:
        """Return the run's histogram, in microseconds at each percent, from the driver's ring."""
        near = [
            h
            for h in self.occupancies
            if h.gpu == occupancy.gpu and h.end_s > occupancy.start_s - 1 and h.start_s < occupancy.end_s + 1
        ]
        ticks = self.ticks[occupancy.gpu]
        first = bisect_right(ticks, occupancy.start_s, key=lambda tick: tick.end_s)
        last = bisect_left(ticks, occupancy.end_s, key=lambda tick: tick.start_s)
        histogram: dict[int, int] = {}
        for tick in ticks[first:last]:
            parts = {other: seconds for other in near if (seconds := part(other, tick)) > 0}
            percent = own_percent(occupancy, tick, parts)
            histogram[percent] = histogram.get(percent, 0) + round(parts[occupancy] * 1e6)
        return histogram


def part(occupancy: Occupancy, tick: Tick) -> float:
    """Return the seconds of a tick for which the GPU was allocated to the run."""
    return min(occupancy.end_s, tick.end_s) - max(occupancy.start_s, tick.start_s)


def own_percent(occupancy: Occupancy, tick: Tick, parts: Mapping[Occupancy, float]) -> int:
    """Return the run's percent in a tick: the GPU's if it was alone, else the sum of its processes."""
    own = tick.percent if len(parts) == 1 else sum(tick.by_process.get(pid, 0) for pid in occupancy.pids)
    return int(min(100.0, own * (tick.end_s - tick.start_s) / parts[occupancy]) + 0.5)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Play]:
    specs = [*GPUS, hopper("GPU-cut", minor=6, mig=tuple(CUT))]
    machine = SimulatedMachine(tmp_path_factory.mktemp("node"), specs, nvml_library)
    machine.start()
    yield Play(machine, Load(SEED, RUNS, WHOLE, SHARED, INSTANCES))
    machine.close()


def test_every_run_has_exactly_one_record_per_gpu(play: Play) -> None:
    ran = [
        (occupancy.run.job_id, occupancy.run.restart, play.machine.gpus[occupancy.gpu].uuid)
        for occupancy in play.occupancies
    ]
    assert len(play.occupancies) >= RUNS
    assert sorted((r.job_id, r.restart, r.device) for r in play.records) == sorted(ran)
    assert all(record.final for record in play.records)
    assert play.machine.events() == []
    assert play.machine.hook_files() == []


def test_every_allocated_second_was_sampled(play: Play) -> None:
    for occupancy in play.occupancies:
        record = play.record(occupancy)
        assert record.allocated_s == pytest.approx(occupancy.end_s - occupancy.start_s, abs=0.001), occupancy
        assert record.sampled_s == pytest.approx(record.allocated_s, abs=0.001), occupancy
        assert record.mem_used_frac is not None
        assert record.mem_used_frac.seconds == pytest.approx(record.allocated_s, abs=0.001), occupancy


def test_every_mean_is_within_half_a_point(play: Play) -> None:
    worst = {"utilisation": 0.0, "memory": 0.0, "the GPU's": 0.0, "SMs active": 0.0}
    missed = []
    for occupancy in play.occupancies:
        record, true = play.record(occupancy), play.usage(occupancy)
        assert record.mem_used_frac is not None
        found = {"memory": (100 * record.mem_used_frac.mean, 100 * true.mem_used_frac)}
        if occupancy.gpu in INSTANCES:
            assert record.sm_active_frac is not None, occupancy
            found["SMs active"] = 100 * record.sm_active_frac.mean, 100 * true.activity.sm_active
        else:
            assert record.device_util_pct is not None
            found["utilisation"] = histogram_mean(record.util_hist_ms or {}), true.util_pct
            found["the GPU's"] = record.device_util_pct.mean, true.device_util_pct
        for name, (measured, truth) in found.items():
            assert measured is not None
            worst[name] = max(worst[name], abs(measured - truth))
            allowed = MEAN_POINTS
            if name == "the GPU's" and occupancy.gpu in SHARED:
                # The ring does not show when others were active within a tick of 1/6 s.
                allowed += 100 * TICK_S / 2 / record.allocated_s
            if name == "memory":
                # A change counts from the middle between two samples; the error is largest in a job of 1 s.
                allowed += 100 * YOUNGEST_S / 2 / record.allocated_s
            if abs(measured - truth) > allowed:
                missed.append(f"{occupancy}: {name} {measured:.3f}, truth {truth:.3f}")
    print("largest differences in points:", worst)
    assert not missed, "\n".join(missed)


def test_every_quantile_matches_the_driver_s_samples(play: Play) -> None:
    for occupancy in play.occupancies:
        record = play.record(occupancy)
        if occupancy.gpu in INSTANCES:
            assert record.util_hist_ms is None  # the driver reports none for MIG instances
            continue
        expected = play.histogram(occupancy)
        assert record.util_hist_ms is not None
        for percent in set(expected) | set(record.util_hist_ms):
            measured, truth = record.util_hist_ms.get(percent, 0), expected.get(percent, 0) / 1000
            assert abs(measured - truth) <= 1.01, (
                f"{occupancy}: {measured} ms at {percent} %, truth {truth} ms"
            )
        slack = 1000 / sum(expected.values())
        for q in QUANTILES:
            allowed = {histogram_quantile(expected, q - slack), histogram_quantile(expected, q + slack)}
            assert histogram_quantile(record.util_hist_ms, q) in allowed, f"{occupancy}: p{100 * q:g}"


def test_the_driver_s_samples_match_the_truth_within_a_percent(play: Play) -> None:
    offset_s = play.machine.clock.offset_s
    for gpu, ticks in play.ticks.items():
        uuid = play.machine.gpus[gpu].uuid
        own = [truth for truth in play.machine.truths if truth.uuid == uuid]
        for tick in ticks[:: len(ticks) // 100]:
            start_s, end_s = tick.start_s + offset_s, tick.end_s + offset_s
            true = usage(own, job_id=0, uuid=uuid, start_s=start_s, end_s=end_s).device_util_pct
            assert abs(tick.percent - true) < 1.001


def test_energy_is_within_one_percent(play: Play) -> None:
    spec = GpuSpec("any")
    worst = 0.0
    for occupancy in play.occupancies:
        record, true = play.record(occupancy), play.usage(occupancy)
        if occupancy.gpu not in WHOLE:
            continue  # not exclusive to one job
        watts = spec.idle_w + (spec.power_limit_w - spec.idle_w) * true.device_util_pct / 100
        joules = watts * (occupancy.end_s - occupancy.start_s)
        assert record.energy_j is not None, occupancy
        difference = abs(record.energy_j.total - joules) / joules
        worst = max(worst, difference)
        assert difference <= ENERGY_PART, f"{occupancy}: {record.energy_j.total} J, truth {joules} J"
    print(f"largest difference of energy: {100 * worst:.2f} %")


def test_jobs_of_a_shared_gpu_never_exceed_the_gpu(play: Play) -> None:
    for gpu in SHARED:
        found = [
            (occupancy, play.record(occupancy)) for occupancy in play.occupancies if occupancy.gpu == gpu
        ]
        done = sum((histogram_mean(record.util_hist_ms or {}) or 0) * record.sampled_s for _, record in found)
        device = sum(tick.percent * (tick.end_s - tick.start_s) for tick in play.ticks[gpu])
        # Rounding to whole percents may add half a point to each job's utilisation.
        assert done <= device + 0.5 * sum(record.sampled_s for _, record in found) * 0.1 + 1
