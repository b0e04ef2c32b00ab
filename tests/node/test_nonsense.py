"""If a driver returns nonsense for 1 % of calls, no record is rejected and means are correct."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pynvml
import pytest

from lab.simgpu.specs import hopper
from lab.simgpu.truth import usage
from slurm_gpu.database.ingest.shipment import parse_shipment
from slurm_gpu.node.measure.tally import DeviceTally
from slurm_gpu.node.measure.utilization import UtilizationSpan
from slurm_gpu.wire import histogram_mean
from tests.node.mixedload import Load
from tests.node.nonsense import Nonsense, replace_library
from tests.node.simulated import SimulatedMachine, load_library
from tests.node.test_mixed_load import CUT, GPUS, INSTANCES, SHARED, WHOLE, Collector, Occupancy, Play

SEED = int(os.environ.get("SLURM_GPU_TEST_SEED", "20261128"))
RUNS = 200
RATE = 0.01
COVERAGE = 0.95
POINTS = 1.0

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")

Spans = dict[tuple[int, int, str], list[tuple[float, float]]]


class NoCollector(Collector):
    """A collector that reads nothing: faulty rings are no source of truth."""

    def collect(self) -> None:
        pass


class Watched:
    """A load that was run, the spans in which utilisation was measured, and the faulty library."""

    def __init__(self, play: Play, spans: Spans, library: Nonsense) -> None:
        self.play, self.spans, self.library = play, spans, library

    def true_util_pct(self, occupancy: Occupancy) -> tuple[float, float]:
        """Return the true mean over the measured time, and the measured seconds."""
        machine = self.play.machine
        uuid, offset_s = machine.gpus[occupancy.gpu].uuid, machine.clock.offset_s
        seconds = weighted = 0.0
        for start_s, end_s in self.spans[occupancy.run.job_id, occupancy.run.restart, uuid]:
            end_s = min(end_s, occupancy.end_s)
            if end_s <= start_s:
                continue
            of_span = usage(
                machine.truths,
                job_id=occupancy.run.job_id,
                restart=occupancy.run.restart,
                uuid=uuid,
                start_s=start_s + offset_s,
                end_s=end_s + offset_s,
            )
            seconds += end_s - start_s
            weighted += of_span.util_pct * (end_s - start_s)
        return weighted / seconds, seconds


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[Watched]:
    load_library(nvml_library)
    specs = [*GPUS, hopper("GPU-cut", minor=6, mig=tuple(CUT))]
    machine = SimulatedMachine(tmp_path_factory.mktemp("node"), specs, nvml_library)
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    library = Nonsense(pynvml.nvmlLib, SEED, RATE)
    spans: Spans = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch, replace_library(patch, library):
        _watch(patch, spans)
        machine.start()
        play = Play(machine, Load(SEED, RUNS, WHOLE, SHARED, INSTANCES), NoCollector(machine))
    yield Watched(play, spans, library)
    machine.close()


def _watch(patch: pytest.MonkeyPatch, spans: Spans) -> None:
    """Record the spans for which utilisation is counted."""
    one, several = DeviceTally._count_utilization, DeviceTally.utilization_alone

    def note(tally: DeviceTally, start_s: float, end_s: float) -> None:
        known = spans[tally.key.job_id, tally.key.restart, tally.device]
        if known and start_s - known[-1][1] < 1e-6:
            known[-1] = known[-1][0], max(end_s, known[-1][1])
        else:
            known.append((start_s, end_s))

    def count(tally: DeviceTally, start_s: float, end_s: float, own: float | None, device: float) -> None:
        if own is not None:
            note(tally, start_s, end_s)
        one(tally, start_s, end_s, own, device)

    def alone(tally: DeviceTally, some: Sequence[UtilizationSpan]) -> None:
        for span in some:
            note(tally, span.start_s, span.end_s)
        several(tally, some)

    patch.setattr(DeviceTally, "_count_utilization", count)
    patch.setattr(DeviceTally, "utilization_alone", alone)


def test_the_driver_failed_at_the_intended_rate(watched: Watched) -> None:
    library = watched.library
    assert sum(library.done.values()) == pytest.approx(RATE * library.calls, rel=0.1)
    print(f"{sum(library.done.values())} of {library.calls} calls:", dict(library.done))
    assert set(library.done) >= {"nvmlDeviceGetSamples", "nvmlDeviceGetMemoryInfo_v2", "nvmlGpmMetricsGet"}


def test_no_record_is_missing_or_rejected(watched: Watched) -> None:
    play = watched.play
    ran = [
        (occupancy.run.job_id, occupancy.run.restart, play.machine.gpus[occupancy.gpu].uuid)
        for occupancy in play.occupancies
    ]
    assert len(ran) >= RUNS
    assert sorted((r.job_id, r.restart, r.device) for r in play.records) == sorted(ran)
    for start in range(0, len(play.records), 100):
        wires = [record.to_wire() for record in play.records[start : start + 100]]
        body = gzip.compress(json.dumps({"wire": 2, "node": "n1", "records": wires}).encode())
        shipment = parse_shipment(body, "gzip")
        assert (shipment.rejected, shipment.dropped.found) == ([], {})
        assert len(shipment.records) == len(wires)


def test_almost_all_time_was_sampled(watched: Watched) -> None:
    play = watched.play
    records = [play.record(occupancy) for occupancy in play.occupancies]
    total = sum(record.sampled_s for record in records) / sum(record.allocated_s for record in records)
    parts = sorted(record.sampled_s / record.allocated_s for record in records)
    print(f"coverage {total:.4f}, the least of a job {parts[0]:.3f}, of 1 % {parts[len(parts) // 100]:.3f}")
    assert total >= COVERAGE
    assert sum(part < COVERAGE for part in parts) <= len(parts) // 50


def test_every_mean_is_within_a_point_of_the_truth(watched: Watched) -> None:
    play, worst, missed = watched.play, {"utilisation": 0.0, "memory": 0.0, "SMs active": 0.0}, []
    for occupancy in play.occupancies:
        record = play.record(occupancy)
        true = play.usage(occupancy)
        found: dict[str, tuple[float | None, float]] = {}
        if record.util_hist_ms is not None:
            true_pct, seconds = watched.true_util_pct(occupancy)
            assert seconds == pytest.approx(record.sampled_s, abs=0.5), occupancy
            found["utilisation"] = histogram_mean(record.util_hist_ms), true_pct
        if record.mem_used_frac is not None and record.mem_used_frac.seconds >= 0.99 * record.allocated_s:
            found["memory"] = 100 * record.mem_used_frac.mean, 100 * true.mem_used_frac
        if record.sm_active_frac is not None and record.sm_active_frac.seconds >= 0.99 * record.allocated_s:
            found["SMs active"] = 100 * record.sm_active_frac.mean, 100 * true.activity.sm_active
        for name, (measured, truth) in found.items():
            assert measured is not None
            worst[name] = max(worst[name], abs(measured - truth))
            if abs(measured - truth) > POINTS:
                missed.append(f"{occupancy}: {name} {measured:.3f}, truth {truth:.3f}")
    print("largest differences in points:", worst)
    assert missed == []


def test_extremes_are_within_the_limits_of_the_gpu(watched: Watched) -> None:
    limits = {"power_w": 710, "temp_c": 100, "sm_clock_mhz": 2000}
    maxima = [
        (name, mean.max)
        for record in watched.play.records
        for name in limits
        if (mean := getattr(record, name)) is not None
    ]
    odd = [f"{name} {most}" for name, most in maxima if most > limits[name]]
    print("implausible maxima:", odd)
    # One of 400 random bit patterns is a plausible power.
    assert len(odd) <= len(maxima) // 100


def test_implausible_values_were_counted_and_reported(watched: Watched) -> None:
    machine = watched.play.machine
    assert machine.node is not None
    counts = machine.node.implausible.counts
    print("twice in a row:", dict(counts), "events:", machine.events())
    reported = [data for data in machine.event_data() if "field" in data]
    assert {data["field"] for data in reported} == set(counts)
