"""The applications and workloads agree with the text of the thesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.colocation_contention import TurnTaking, level
from bench.colocation_workloads import (
    PROFILES,
    THESIS,
    THESIS_WORLD,
    TITAN_XP,
    application,
    thesis_jobs,
)
from slurm_gpu.colocation.planner import Member
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.research.workloads import JOBS
from slurm_gpu.colocation.simulation.sharing import look_ahead
from slurm_gpu.colocation.simulation.simulator import simulate
from tests.colocation.building import OneAtATime

BY_NAME = {one.application: one for one in PROFILES}


def mean(name: str, use: str) -> float:
    value = BY_NAME[name].mean(use)
    assert value is not None
    return value


def test_use_sorts_the_applications_into_the_thesis_classes() -> None:
    assert all(mean(name, "util") >= 0.4 for name in THESIS["gpu_heavy"])
    assert all(mean(name, "util") < 0.4 for name in THESIS["gpu_light"])
    assert all(mean(name, "memory_mib") >= 0.5 * TITAN_XP.memory_mib for name in THESIS["mem_heavy"])
    assert all(BY_NAME[name].peak("memory_mib") < 0.5 * TITAN_XP.memory_mib for name in THESIS["mem_light"])


def test_figures_1_and_2_lammps_grows_and_qmcpack_climbs_in_three_steps() -> None:
    lammps, qmcpack = BY_NAME["LAMMPS"], BY_NAME["QMCPACK"]
    memory = [phase.memory_mib for phase in lammps.phases]
    assert memory == sorted(memory)
    assert (memory[0], memory[-1]) == (363, 8499)
    assert lammps.phases[-1].util == 1.0
    assert mean("LAMMPS", "util") == pytest.approx(0.4, abs=0.02)
    util = [phase.util for phase in qmcpack.phases]
    assert len(util) == 3
    assert util == sorted(util)
    assert qmcpack.phases[0].seconds == 95
    assert [phase.memory_mib for phase in qmcpack.phases] == [0, 5135, 5135]
    for name in ("googlenet", "vgg16", "resnet50"):
        loading, training = BY_NAME[name].phases
        assert loading.seconds < 0.1 * training.seconds


def test_gpu_heavy_takes_about_as_long_one_after_the_other_as_in_the_thesis() -> None:
    names = THESIS["gpu_heavy"]
    assert JOBS * sum(BY_NAME[name].seconds for name in names) / len(names) == pytest.approx(4807, rel=0.01)
    used = sum(mean(name, "util") * BY_NAME[name].seconds for name in names)
    assert used / sum(BY_NAME[name].seconds for name in names) == pytest.approx(0.705, abs=0.01)


def test_gpu_light_takes_as_long_one_after_the_other_and_as_much_memory_together_as_in_the_thesis() -> None:
    assert mean("GROMACS", "memory_mib") < mean("alexnet", "memory_mib")
    assert BY_NAME["GROMACS"].seconds > BY_NAME["alexnet"].seconds
    assert JOBS * (BY_NAME["GROMACS"].seconds + BY_NAME["alexnet"].seconds) / 2 == 2295
    three = ("alexnet", "alexnet", "GROMACS")
    assert sum(BY_NAME[name].peak("memory_mib") or 0 for name in three) == 11755


def together(*names: str) -> bool:
    members = [Member(job, application(name), BY_NAME[name].seconds) for job, name in enumerate(names)]
    return look_ahead(THESIS_WORLD, members) is not None


def test_figure_3_who_is_short_of_memory_and_who_is_slow_though_little_is_in_use() -> None:
    assert not together("LAMMPS", "LAMMPS")
    assert not together("vgg16", "vgg16")
    # All other groups fit, including LAMMPS with vgg16, which ends before the peak of LAMMPS.
    for one in ("googlenet", "vgg16", "LAMMPS", "GROMACS"):
        for other in ("googlenet", "GROMACS"):
            assert together(one, other)
    assert together("LAMMPS", "vgg16")
    pair = (application("googlenet"), 1), (application("vgg16"), 1)
    phases = [BY_NAME[name].phases[1] for name in ("googlenet", "vgg16")]
    assert level(1 / min(THESIS_WORLD.speeds(pair)), 1, 2) == 4
    assert level(sum(one.memory_mib or 0 for one in phases), 0, TITAN_XP.memory_mib) == 3
    assert level(sum(one.sm or 0 for one in phases), 0, 1) == 2
    assert level(sum(one.pcie or 0 for one in phases), 0, 1) == 1


def test_three_light_jobs_barely_slow_each_other_and_two_heavy_ones_gain_little() -> None:
    alexnet, gromacs, vgg11, resnet50 = (
        (application(name), 1) for name in ("alexnet", "GROMACS", "vgg11", "resnet50")
    )
    assert min(THESIS_WORLD.speeds((alexnet, gromacs, gromacs))) > 0.9
    assert sum(THESIS_WORLD.speeds((vgg11, resnet50))) < 1.2


some_phases = st.builds(
    ProfilePhase, seconds=st.just(1.0), util=st.floats(0, 1), pcie=st.floats(0, 1), memory_mib=st.just(0.0)
)


@given(st.lists(some_phases, min_size=2, max_size=5), st.floats(0, 0.5))
def test_no_job_is_faster_than_alone_and_resources_are_not_exceeded(
    phases: list[ProfilePhase], refill: float
) -> None:
    profiles = [ApplicationProfile(f"app{i}", "card", (phase,)) for i, phase in enumerate(phases)]
    world = TurnTaking(profiles, [refill] * len(profiles), 1000.0)
    speeds = world.speeds(tuple((i, 0) for i in range(len(profiles))))
    assert all(0 < speed <= 1 for speed in speeds)
    for name in ("util", "pcie"):
        assert sum(getattr(one, name) * speed for one, speed in zip(phases, speeds, strict=True)) <= 1 + 1e-9


def test_a_profile_with_gaps_is_no_truth() -> None:
    with pytest.raises(ValueError, match="the profile of app has a phase without pcie"):
        TurnTaking([ApplicationProfile("app", "card", (ProfilePhase(seconds=1, util=0.5),))], [0.0], 1000.0)


@pytest.mark.parametrize("workload", THESIS)
def test_thirty_jobs_of_the_class_the_same_for_the_same_seed(workload: str) -> None:
    jobs = thesis_jobs(workload, 3)
    assert jobs == thesis_jobs(workload, 3) != thesis_jobs(workload, 4)
    assert len(jobs) == 30
    assert {PROFILES[job.application].application for job in jobs} <= set(THESIS[workload])
    alone = simulate(THESIS_WORLD, jobs, OneAtATime())
    assert alone.makespan_s == pytest.approx(sum(PROFILES[job.application].seconds for job in jobs))
