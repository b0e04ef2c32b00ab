"""Profiles from timelines, several runs, similar inputs and other GPUs; gaps remain gaps, 0 remains 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.profiles.gpu_models import GpuModel, faster, transferred
from slurm_gpu.colocation.profiles.library import Library, merged
from slurm_gpu.colocation.profiles.phases import MOST_PHASES, phases_of, segments
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.wire.timeline import GAP, Timeline


def timeline(width_s: int = 4, **series: list[int]) -> Timeline:
    return Timeline(width_s=width_s, start_s=0, series={name: bytes(row) for name, row in series.items()})


def test_a_run_of_three_levels_has_three_phases() -> None:
    util = [0] * 20 + [125] * 30 + [250] * 10
    memory = [0] * 20 + [100] * 40
    found = phases_of(timeline(util=util, mem_used=memory), 10000.0)
    assert found == [
        ProfilePhase(seconds=80, util=0.0, memory_mib=0.0),
        ProfilePhase(seconds=120, util=0.5, memory_mib=4000.0),
        ProfilePhase(seconds=40, util=1.0, memory_mib=4000.0),
    ]


def test_noise_is_no_phase_and_a_change_behind_it_is() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 20, 200)
    steady = np.clip(120 + noise, 0, 250).astype(int).tolist()
    assert len(phases_of(timeline(util=steady), None)) == 1
    changed = np.clip(120 + noise + 100 * (np.arange(200) >= 120), 0, 250).astype(int).tolist()
    first, second = phases_of(timeline(util=changed), None)
    assert abs(first.seconds - 480) <= 8
    assert second.util is not None
    assert first.util is not None
    assert second.util - first.util == pytest.approx(0.4, abs=0.05)


def test_a_long_gap_is_a_phase_of_which_nothing_is_known_and_a_short_one_is_none() -> None:
    known = [200] * 40
    long, short = known + [GAP] * 40 + known, [*known, GAP, *known]
    assert [phase.util for phase in phases_of(timeline(util=long), None)] == [0.8, None, 0.8]
    assert [phase.util for phase in phases_of(timeline(util=short), None)] == [0.8]


def test_a_series_that_was_never_measured_is_none_and_memory_takes_the_cards_size() -> None:
    (phase,) = phases_of(timeline(util=[250] * 9, pcie=[GAP] * 9, mem_used=[0] * 8 + [5]), None)
    assert phase == ProfilePhase(seconds=36, util=1.0)
    phases = phases_of(timeline(util=[250] * 9, mem_used=[99, 100] * 4 + [99]), 1000.0)
    assert [one.memory_mib for one in phases] == [400.0]


def test_bins_that_are_not_whole_do_not_make_it_longer() -> None:
    assert sum(one.seconds for one in phases_of(timeline(util=[9] * 10), None, 37.0)) == pytest.approx(37)


def test_nothing_recorded_is_no_phase() -> None:
    assert phases_of(timeline(), 1000.0) == []
    assert phases_of(timeline(util=[]), 1000.0) == []


LEVEL = st.integers(0, 250) | st.just(GAP)


@given(st.data(), st.integers(1, 256), st.sampled_from([None, 0.0, 81920.0]))
def test_phases_are_few_and_as_long_as_the_timeline(
    data: st.DataObject, n: int, memory_mib: float | None
) -> None:
    one = st.lists(LEVEL, min_size=n, max_size=n)
    names = data.draw(st.lists(st.sampled_from(["util", "mem_used", "sm_active", "pcie"]), unique=True))
    series = {name: data.draw(one) for name in names} or {"power": [3] * n}
    found = phases_of(timeline(**series), memory_mib)
    assert 1 <= len(found) <= MOST_PHASES
    assert sum(phase.seconds for phase in found) == pytest.approx(4 * n)
    levels = [level for level in series.get("mem_used", []) if level != GAP]
    for phase in found:
        assert phase.memory_mib is None or phase.memory_mib <= max(levels) / 250 * (memory_mib or 0) + 1e-9
        assert phase.util is None or "util" in series


def test_segments_of_one_bin_and_of_nothing_but_gaps() -> None:
    assert segments(np.array([[0.5]]), 8) == [1]
    assert segments(np.full((2, 5), np.nan), 8) == [5]


def run(*phases: ProfilePhase, application: str = "app", **key: object) -> ApplicationProfile:
    return ApplicationProfile(application, str(key.pop("gpu_model", "V100")), phases, **key)  # type: ignore[arg-type]


def test_several_runs_are_one_profile_as_long_as_their_median() -> None:
    def of(scale: float, util: float, mib: float) -> ApplicationProfile:
        return run(
            ProfilePhase(seconds=10 * scale, util=0.0, memory_mib=0.0),
            ProfilePhase(seconds=30 * scale, util=util, memory_mib=mib),
        )

    one = merged([of(1, 0.5, 900), of(2, 0.7, 1000), of(1.1, 0.6, 950)])
    assert one.runs == 3
    assert one.seconds == pytest.approx(44)
    first, second = one.phases
    assert (first.util, first.memory_mib) == (0.0, 0.0)
    assert second.memory_mib == 1000
    assert second.util == pytest.approx(0.6)
    assert first.seconds == pytest.approx(11)


def test_a_gap_of_one_run_is_filled_by_another_and_one_of_all_stays() -> None:
    known, gap = run(ProfilePhase(seconds=10, util=0.5)), run(ProfilePhase(seconds=10))
    assert merged([known, gap]).phases == (ProfilePhase(seconds=10, util=0.5),)
    assert merged([gap, gap]).phases == (ProfilePhase(seconds=10),)


def test_runs_weigh_as_many_as_they_come_from() -> None:
    many, one = run(ProfilePhase(seconds=10, util=0.4), runs=9), run(ProfilePhase(seconds=10, util=0.9))
    found = merged([many, one])
    assert (found.runs, found.phases[0].util) == (10, pytest.approx(0.45))


def test_profiles_of_different_things_are_not_merged() -> None:
    with pytest.raises(ValueError, match="different keys"):
        merged([run(ProfilePhase(seconds=1)), run(ProfilePhase(seconds=1), application="other")])
    with pytest.raises(ValueError, match="no profiles"):
        merged([])


PHASE = st.builds(
    ProfilePhase,
    seconds=st.floats(1e-3, 1e6),
    util=st.none() | st.floats(0, 1),
    memory_mib=st.none() | st.floats(0, 1e6),
    sm=st.none() | st.floats(0, 1),
    pcie=st.none() | st.floats(0, 1),
)
RUN = st.builds(lambda phases: run(*phases), st.lists(PHASE, min_size=1, max_size=8))


@given(st.lists(RUN, min_size=2, max_size=4))
def test_no_memory_of_any_run_is_lost_when_they_become_one(runs: list[ApplicationProfile]) -> None:
    one = merged(runs)
    peaks = [peak for peak in (run.peak("memory_mib") for run in runs) if peak is not None]
    assert (one.peak("memory_mib") is None) == (not peaks)
    assert one.peak("memory_mib") == (max(peaks) if peaks else None)
    assert len(one.phases) <= MOST_PHASES
    assert min(r.seconds for r in runs) * 0.999 <= one.seconds <= max(r.seconds for r in runs) * 1.001


def test_the_same_application_with_another_input_is_nearer_than_any_other() -> None:
    small = run(ProfilePhase(seconds=1), input_size=16, kind="training")
    large = run(ProfilePhase(seconds=2), input_size=256, kind="training")
    other = run(ProfilePhase(seconds=3), application="other", input_size=64, kind="training")
    strange = run(ProfilePhase(seconds=4), application="strange", input_size=64)
    library = Library([strange, other, large, small])

    def asked(application: str, size: float | None = None, gpu: str = "V100") -> tuple[float, float]:
        match = library.nearest(application, gpu, kind="training", input_size=size)
        assert match is not None
        return match.profile.seconds, match.distance

    assert asked("app", 16) == (1, 0)
    assert asked("app", 32) == (1, 1)
    assert asked("app", 100)[0] == 2
    assert asked("app", 1e9) == (2, 4)
    assert asked("app") == (2, 2) or asked("app") == (1, 2)
    assert asked("never seen", 64) == (3, 8)
    assert asked("app", 16, "A100") == (1, 0.5)
    assert library.nearest("never seen", "V100", input_size=64) is not None
    assert Library().nearest("app", "V100") is None


def test_parameters_that_differ_make_it_farther_but_less_than_an_octave() -> None:
    fp16 = run(ProfilePhase(seconds=1), input_size=16, parameters=(("dtype", "fp16"), ("opt", "sgd")))
    fp32 = run(ProfilePhase(seconds=2), input_size=16, parameters=(("dtype", "fp32"), ("opt", "sgd")))
    match = Library([fp32, fp16]).nearest("app", "V100", input_size=16, parameters=(("dtype", "fp16"),))
    assert match is not None
    assert (match.profile.seconds, match.distance) == (1, 0.5)


def test_the_same_thing_seen_again_is_one_profile_of_more_runs() -> None:
    library = Library([run(ProfilePhase(seconds=1)), run(ProfilePhase(seconds=3))])
    assert [(one.runs, one.seconds) for one in library] == [(2, 2)]
    assert len(library) == 1


SMALL = GpuModel(
    name="small", multiprocessors=20, clock_mhz=1000, memory_gb_s=100, memory_mib=10000, pcie_gb_s=10
)
LARGE = GpuModel(
    name="large", multiprocessors=80, clock_mhz=1000, memory_gb_s=400, memory_mib=40000, pcie_gb_s=20
)


def test_on_a_card_four_times_as_fast_only_the_time_in_which_kernels_ran_is_shorter() -> None:
    here = run(ProfilePhase(seconds=100, util=0.8, memory_mib=3000, sm=0.4, pcie=0.1), gpu_model="small")
    (phase,) = transferred(here, SMALL, LARGE).phases
    assert phase.seconds == pytest.approx(100 * (0.2 + 0.2))
    assert phase.util == pytest.approx(0.5)
    assert phase.memory_mib == 3000
    # The same number of bytes is sent in 0.4 of the time, over a link that is twice as fast.
    assert phase.pcie == pytest.approx(0.1 / 0.4 / 2)
    assert phase.sm == pytest.approx(0.4 * 0.25 / 0.4 / 4)
    assert faster(SMALL, LARGE) == 4


def test_a_job_that_used_the_whole_memory_does_so_on_other_gpus() -> None:
    pool = run(ProfilePhase(seconds=1, memory_mib=9500), gpu_model="small")
    assert transferred(pool, SMALL, LARGE).phases[0].memory_mib == 38000


def test_a_transfer_between_unknown_gpus_changes_only_the_name() -> None:
    here = run(ProfilePhase(seconds=100, util=0.8, memory_mib=3000, sm=0.4, pcie=0.1))
    there = transferred(here, GpuModel(name="V100"), GpuModel(name="new"))
    assert there.gpu_model == "new"
    assert there.phases[0] == here.phases[0]
    assert Library([here], {"V100": SMALL, "A100": LARGE}).nearest("app", "A100") != there


def test_a_card_of_nothing_is_refused() -> None:
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="clock_mhz must be more than 0"):
            GpuModel(name="x", clock_mhz=value)


CARD = st.builds(
    GpuModel,
    name=st.just("card"),
    multiprocessors=st.none() | st.integers(1, 200),
    clock_mhz=st.none() | st.floats(100, 3000),
    memory_gb_s=st.none() | st.floats(10, 9000),
    memory_mib=st.none() | st.floats(1000, 300000),
    pcie_gb_s=st.none() | st.floats(1, 200),
)


@given(RUN, CARD, CARD)
def test_a_transferred_profile_keeps_its_gaps(
    profile: ApplicationProfile, one: GpuModel, two: GpuModel
) -> None:
    there = transferred(profile, one, two)
    for before, after in zip(profile.phases, there.phases, strict=True):
        for use in ("util", "memory_mib", "sm", "pcie"):
            assert (getattr(before, use) is None) == (getattr(after, use) is None)
