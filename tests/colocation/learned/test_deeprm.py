"""The planners of DeepRM and of the thesis respect their bounds, which have the expected effects."""

import numpy as np
import pytest

from slurm_gpu.colocation.learned.deeprm import ImagePlanner
from slurm_gpu.colocation.learned.images import RESOURCES, ImageContent, Images, options_of
from slurm_gpu.colocation.profiles.profile import ApplicationProfile, ProfilePhase
from slurm_gpu.colocation.simulation.known_belief import KnownBelief
from slurm_gpu.colocation.simulation.simulator import SharingJob, simulate
from slurm_gpu.colocation.simulation.world import TableWorld
from tests.colocation.building import pairs, profile
from tests.colocation.learned.nets import any_images_net, beliefs_of

NAMES = ("deeprm_max", "deeprm_mean", "dqngpu_thesis")


def growing() -> TableWorld:
    """Return an application that uses little memory for a long time, then more than half of the GPU's."""
    return pairs([[0.9]], profile("growing", (90.0, 1000.0), (10.0, 7000.0)))


def planner(name: str, world: TableWorld, seed: int = 0) -> ImagePlanner:
    belief = KnownBelief(world, most_together=2)
    return ImagePlanner(name, any_images_net(name, seed), belief, world.profiles, world.capacity_mib)


def together(name: str, seed: int) -> tuple[int, int]:
    world = growing()
    ran = simulate(world, [SharingJob(0, 100.0)] * 6, planner(name, world, seed))
    return ran.most_together, ran.out_of_memory


def test_means_let_memory_run_out_and_maxima_do_not():
    assert any(together("deeprm_mean", seed)[1] > 0 for seed in range(5))
    assert all(together("deeprm_max", seed) == (1, 0) for seed in range(5))


def test_the_area_bound_of_the_thesis_allows_out_of_memory():
    assert any(together("dqngpu_thesis", seed)[1] > 0 for seed in range(8))


@pytest.mark.parametrize("name", NAMES)
def test_all_jobs_end_for_any_net(name: str):
    world = growing()
    for seed in range(3):
        some = [SharingJob(0, 20.0 + number, submit_s=5.0 * number) for number in range(12)]
        ran = simulate(world, some, planner(name, world, seed), n_gpus=2)
        assert np.isfinite(ran.end_s).all()


def test_the_thesiss_groups_are_the_subsets_of_three_slots():
    slots = [tuple(int(one) for one in row if one < 3) for row in options_of("dqngpu_thesis")]
    assert slots == [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]


def test_missing_profile_values_count_as_the_mean_or_set_no_limit():
    known = ApplicationProfile("known", "card", (ProfilePhase(seconds=50, util=0.4, memory_mib=3000.0),))
    unknown = ApplicationProfile("unknown", "card", (ProfilePhase(seconds=50, memory_mib=6000.0),))
    world = pairs([[0.9, 0.9], [0.9, 0.9]], known, unknown)
    images = Images(beliefs_of(world), world.capacity_mib, ImageContent.MEAN)
    use = images.uses(np.array([1]), np.zeros(1, np.float32), np.array([50.0], np.float32))[0, :, 0]
    assert dict(zip(RESOURCES, use.tolist(), strict=True)) == pytest.approx(
        {"util": 0.4, "memory_mib": 0.5, "sm": 0.0, "pcie": 0.0}
    )
    assert images.bounded.tolist() == [True, True, False, False]


def test_an_image_is_filled_up_to_the_use_for_as_long_as_the_job_runs():
    world = growing()
    images = Images(beliefs_of(world), world.capacity_mib, ImageContent.COURSE)
    assert images.step_s == 10
    half_way, left = np.array([[85.0]], np.float32), np.array([[15.0]], np.float32)
    use = images.uses(np.array([[0]]), half_way, left)
    bits = images.inputs(use.sum(axis=1), np.zeros((1, 3, 4, 20), np.float32), np.array([2]))
    image = bits[0, : 4 * 20 * 10].reshape(4, 20, 10)
    memory = RESOURCES.index("memory_mib")
    assert image[memory].sum(axis=1).tolist()[:4] == [1, 6, 0, 0]
    assert image[RESOURCES.index("util")].sum(axis=1).tolist()[:3] == [5, 5, 0]
    assert bits[0, -30:].sum() == 2
