"""Jobs of every kind, `make soak` has hundreds: each record says what the simulated GPUs really did."""

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
# By Slurm's position: four GPUs with a job each, two that are shared, and an H100 cut into three.
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
    """What the driver's ring told of one device, (start, end] in monotonic seconds; percent by process id."""

    start_s: float
    end_s: float
    percent: int
    by_process: Mapping[int, int]


class Collector:
    """All that the driver's rings ever told, read beside slurm-gpud and by nobody's code but pynvml's."""

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
class Hold:
    """A run on one of its GPUs, between the stamps of its hooks (monotonic seconds)."""

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
    """The whole load, run on the node by a Slurm that only writes hook files."""

    def __init__(self, machine: SimulatedMachine, load: Load, collector: Collector | None = None) -> None:
        self.machine, self.holds = machine, list[Hold]()
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
        """Let time go by, and the ring be read before it has turned once."""
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
            hold = Hold(run, gpu, start_s, self.machine.clock.now_s, frozenset(pids[gpu]))
            self.holds.append(hold)
            for pid in hold.pids:
                self.machine.vanish(pid)
        self._hook("epilog", run)

    def _hook(self, kind: str, run: Run) -> None:
        gpus = ",".join(str(gpu) for gpu in run.gpus)
        self.machine.hook(kind, run.job_id, gpus, restart=run.restart)

    def record(self, hold: Hold) -> Record:
        uuid, run = self.machine.gpus[hold.gpu].uuid, hold.run
        (found,) = [
            r for r in self.records if (r.job_id, r.restart, r.device) == (run.job_id, run.restart, uuid)
        ]
        return found

    def usage(self, hold: Hold) -> Usage:
        """What the run did to the GPU, by the schedules of its processes."""
        offset_s = self.machine.clock.offset_s
        return usage(
            self.machine.truths,
            job_id=hold.run.job_id,
            restart=hold.run.restart,
            uuid=self.machine.gpus[hold.gpu].uuid,
            start_s=hold.start_s + offset_s,
            end_s=hold.end_s + offset_s,
        )

    def histogram(self, hold: Hold) -> Mapping[int, int]:
        """Microseconds at each percent of the run's own, from what the driver's ring told."""
        near = [
            h
            for h in self.holds
            if h.gpu == hold.gpu and h.end_s > hold.start_s - 1 and h.start_s < hold.end_s + 1
        ]
        ticks = self.ticks[hold.gpu]
        first = bisect_right(ticks, hold.start_s, key=lambda tick: tick.end_s)
        last = bisect_left(ticks, hold.end_s, key=lambda tick: tick.start_s)
        histogram: dict[int, int] = {}
        for tick in ticks[first:last]:
            parts = {other: seconds for other in near if (seconds := part(other, tick)) > 0}
            percent = own_percent(hold, tick, parts)
            histogram[percent] = histogram.get(percent, 0) + round(parts[hold] * 1e6)
        return histogram


def part(hold: Hold, tick: Tick) -> float:
    """Seconds of the tick in which the run held the GPU."""
    return min(hold.end_s, tick.end_s) - max(hold.start_s, tick.start_s)


def own_percent(hold: Hold, tick: Tick, parts: Mapping[Hold, float]) -> int:
    """All that a tick tells was done while somebody held the GPU; where several did, each did his own."""
    own = tick.percent if len(parts) == 1 else sum(tick.by_process.get(pid, 0) for pid in hold.pids)
    return int(min(100.0, own * (tick.end_s - tick.start_s) / parts[hold]) + 0.5)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Play]:
    specs = [*GPUS, hopper("GPU-cut", minor=6, mig=tuple(CUT))]
    machine = SimulatedMachine(tmp_path_factory.mktemp("node"), specs, nvml_library)
    machine.start()
    yield Play(machine, Load(SEED, RUNS, WHOLE, SHARED, INSTANCES))
    machine.close()


def test_no_job_is_missing_and_none_invented(play: Play) -> None:
    ran = [(hold.run.job_id, hold.run.restart, play.machine.gpus[hold.gpu].uuid) for hold in play.holds]
    assert len(play.holds) >= RUNS
    assert sorted((r.job_id, r.restart, r.device) for r in play.records) == sorted(ran)
    assert all(record.final for record in play.records)
    assert play.machine.events() == []
    assert play.machine.hook_files() == []


def test_every_second_of_holding_was_sampled(play: Play) -> None:
    for hold in play.holds:
        record = play.record(hold)
        assert record.allocated_s == pytest.approx(hold.end_s - hold.start_s, abs=0.001), hold
        assert record.sampled_s == pytest.approx(record.allocated_s, abs=0.001), hold
        assert record.mem_used_frac is not None
        assert record.mem_used_frac.seconds == pytest.approx(record.allocated_s, abs=0.001), hold


def test_every_mean_is_within_half_a_point(play: Play) -> None:
    worst = {"utilisation": 0.0, "memory": 0.0, "the GPU's": 0.0, "SMs active": 0.0}
    missed = []
    for hold in play.holds:
        record, true = play.record(hold), play.usage(hold)
        assert record.mem_used_frac is not None
        found = {"memory": (100 * record.mem_used_frac.mean, 100 * true.mem_used_frac)}
        if hold.gpu in INSTANCES:
            assert record.sm_active_frac is not None, hold
            found["SMs active"] = 100 * record.sm_active_frac.mean, 100 * true.activity.sm_active
        else:
            assert record.device_util_pct is not None
            found["utilisation"] = histogram_mean(record.util_hist_ms or {}), true.util_pct
            found["the GPU's"] = record.device_util_pct.mean, true.device_util_pct
        for name, (told, was) in found.items():
            assert told is not None
            worst[name] = max(worst[name], abs(told - was))
            allowed = MEAN_POINTS
            if name == "the GPU's" and hold.gpu in SHARED:
                # When in a sixth of a second others did what they did, nobody tells.
                allowed += 100 * TICK_S / 2 / record.allocated_s
            if name == "memory":
                # A change between two samples is placed in their middle, which weighs most in a job of 1 s.
                allowed += 100 * YOUNGEST_S / 2 / record.allocated_s
            if abs(told - was) > allowed:
                missed.append(f"{hold}: {name} {told:.3f}, truly {was:.3f}")
    print("largest differences in points:", worst)
    assert not missed, "\n".join(missed)


def test_every_quantile_is_that_of_the_driver_s_samples(play: Play) -> None:
    for hold in play.holds:
        record = play.record(hold)
        if hold.gpu in INSTANCES:
            assert record.util_hist_ms is None  # the driver tells none of MIG instances
            continue
        expected = play.histogram(hold)
        assert record.util_hist_ms is not None
        for percent in set(expected) | set(record.util_hist_ms):
            told, was = record.util_hist_ms.get(percent, 0), expected.get(percent, 0) / 1000
            assert abs(told - was) <= 1.01, f"{hold}: {told} ms at {percent} %, truly {was} ms"
        slack = 1000 / sum(expected.values())
        for q in QUANTILES:
            allowed = {histogram_quantile(expected, q - slack), histogram_quantile(expected, q + slack)}
            assert histogram_quantile(record.util_hist_ms, q) in allowed, f"{hold}: p{100 * q:g}"


def test_the_driver_s_samples_are_the_truth_but_for_whole_percents(play: Play) -> None:
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
    for hold in play.holds:
        record, true = play.record(hold), play.usage(hold)
        if hold.gpu not in WHOLE:
            continue  # nobody's alone
        watts = spec.idle_w + (spec.power_limit_w - spec.idle_w) * true.device_util_pct / 100
        joules = watts * (hold.end_s - hold.start_s)
        assert record.energy_j is not None, hold
        difference = abs(record.energy_j.total - joules) / joules
        worst = max(worst, difference)
        assert difference <= ENERGY_PART, f"{hold}: {record.energy_j.total} J, truly {joules} J"
    print(f"largest difference of energy: {100 * worst:.2f} %")


def test_the_jobs_of_a_shared_gpu_never_did_more_than_the_gpu(play: Play) -> None:
    for gpu in SHARED:
        held = [(hold, play.record(hold)) for hold in play.holds if hold.gpu == gpu]
        done = sum((histogram_mean(record.util_hist_ms or {}) or 0) * record.sampled_s for _, record in held)
        device = sum(tick.percent * (tick.end_s - tick.start_s) for tick in play.ticks[gpu])
        # Rounding to whole percents may add half a point of each job's time.
        assert done <= device + 0.5 * sum(record.sampled_s for _, record in held) * 0.1 + 1
