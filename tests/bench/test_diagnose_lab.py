"""Schedules for simgpu reproduce a training run of the injector in the lab."""

from collections.abc import Sequence

import numpy as np
import pytest

from bench.diagnose_injector import Case
from bench.diagnose_injector_play import CLOCK, NVLINK, PCIE, POWER, SM, TENSOR, UTIL
from bench.diagnose_injector_record import values_at
from bench.diagnose_lab import JudgedVerdict, table
from bench.diagnose_lab import TrainingResult as OfLab
from bench.diagnose_lab_schedule import FAULTS, STRETCH_S, draw_case, schedules, text_of
from lab.simgpu.schedule import Phase, parse_phases, stretches
from lab.simgpu.specs import hopper
from slurm_gpu.diagnose.judge import diagnose
from slurm_gpu.diagnose.verdict import Cause

GPU = hopper("GPU-x")
WELL_S, ILL_S = 60, 40


def a_case(name: str, seed: int = 1) -> Case:
    return draw_case(seed, name, size=0.3, well_s=WELL_S, ill_s=ILL_S)


def ranks(case: Case) -> list[list[Phase]]:
    return schedules(case, GPU, np.random.default_rng(3))


def mean(phases: Sequence[Phase], what: str) -> float:
    """Return the mean over time of the utilisation multiplied by the factor `what`."""
    shown = [
        phase.util_pct[0] / 100 * getattr(phase.activity, what, getattr(phase.footprint, what, 1.0))
        for phase in phases
    ]
    return float(np.average(shown, weights=[phase.seconds for phase in phases]))


@pytest.mark.parametrize("name", ["healthy", "heat", "starved worker", "stuck worker"])
def test_a_schedule_shows_what_the_gpu_of_the_training_does(name: str) -> None:
    case = a_case(name)
    assert case.play is not None
    times, workers, _ = case.play.integrals()
    ends = values_at(times, workers, np.array([0.0, case.length_s]))
    truth = (ends[1] - ends[0]) / case.length_s
    idle = GPU.idle_w / GPU.power_limit_w
    for row, phases in enumerate(ranks(case)):
        assert sum(phase.seconds for phase in phases) == case.length_s
        clock = np.mean([phase.footprint.clock for phase in phases])
        assert clock == pytest.approx(truth[row, CLOCK], rel=0.02)
        assert np.mean([phase.util_pct[0] for phase in phases]) == pytest.approx(
            100 * truth[row, UTIL], rel=0.002
        )
        assert idle + (1 - idle) * mean(phases, "power") == pytest.approx(truth[row, POWER], rel=0.03)
        for what, channel in (("pcie", PCIE), ("nvlink", NVLINK)):
            assert mean(phases, what) == pytest.approx(truth[row, channel], rel=0.04)
        for what, channel in (("sm_active", SM), ("tensor", TENSOR)):
            assert mean(phases, what) * clock == pytest.approx(truth[row, channel], rel=0.04)


def test_the_fault_shows_on_whom_it_befalls_and_from_when_it_does() -> None:
    case = a_case("heat")
    assert case.fault is not None
    (culprit,) = case.fault.culprits
    for row, phases in enumerate(ranks(case)):
        throttled = [bool(phase.footprint.reasons) for phase in phases]
        assert not any(throttled[: WELL_S - STRETCH_S])
        assert (np.mean(throttled[WELL_S:]) > 0.4) == (row == culprit)
    assert not any(phase.footprint.reasons for phases in ranks(a_case("healthy")) for phase in phases)


def test_simgpu_reads_a_schedule_as_it_was_meant() -> None:
    phases = ranks(a_case("congestion"))[0]
    read = parse_phases(text_of(phases))
    assert len(read) == len(phases)
    for one, other in zip(read, phases, strict=True):
        assert one.seconds == other.seconds
        assert one.util_pct == pytest.approx(other.util_pct, rel=1e-4)
        assert one.activity == pytest.approx(other.activity, abs=1e-5)
        assert one.footprint == pytest.approx(other.footprint, abs=1e-5)
    assert len(stretches(read)) == (WELL_S + ILL_S) / STRETCH_S


def test_a_seed_is_a_training() -> None:
    once, again, another = (ranks(a_case("nvlink", seed)) for seed in (1, 1, 2))
    assert once == again
    assert once != another


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_drawn_for_two_nodes_of_four_gpus(name: str) -> None:
    case = a_case(name)
    assert (case.job.n_nodes, case.job.per_node, case.job.model.gpm) == (2, 4, True)
    assert len(ranks(case)) == 8
    assert diagnose(case.recording.series()).cause in Cause


def test_the_table_marks_wrong_verdicts() -> None:
    right = JudgedVerdict(
        cause="hang", kind="", who=["n1 GPU 2"], confidence=0.9, by="window", right=True, named=True
    )
    wrong = JudgedVerdict(
        cause="healthy", kind="", who=[], confidence=0.8, by="timeline", right=False, named=False
    )
    verdicts = {"synthetic": right, "live": right, "over": wrong, "asked_s": 95.0, "over_can_tell": False}
    one = OfLab(fault="deadlock", cause="hang", culprits=[], gpus=8, since_s=60.0, **verdicts)
    assert one.right  # hangs are not reported in the first ten minutes after the end of a job
    last = table([one]).splitlines()[-1]
    assert "healthy 80% (wrong)" in last
    assert "35 s" in last
    one.over_can_tell = True
    assert not one.right
