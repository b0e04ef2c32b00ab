"""bench/soak.py distinguishes a leak from growth that ends."""

import random

import pytest

from bench.soak_leaks import LEAK_MIB_PER_H, NODES_DISK, UsageSample, leaking, leaks, settled_per_h

MINUTE = 60.0
EACH_S = 5.0


def life(minutes, memory, files=lambda at_s: 9, seed=1):
    """Return samples of a daemon with short-lived memory for answers and commands."""
    dice = random.Random(seed)
    samples = []
    for n in range(int(minutes * MINUTE / EACH_S)):
        moment_mib = dice.choice((0, 0, dice.uniform(0, 2), dice.uniform(0, 30)))
        samples.append(UsageSample(n * EACH_S, memory(n * EACH_S) + moment_mib, files(n * EACH_S)))
    return samples


def warming_up(at_s, mib=60.0, tau_s=600.0):
    """Return the additional memory of a daemon whose caches fill gradually."""
    return 80 + mib * (1 - 2.718 ** (-at_s / tau_s))


def of_one(samples):
    return leaks({("slurm-gpudbd", 1): samples})["slurm-gpudbd"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", [60, 77, 110])
def test_a_daemon_that_grows_for_a_while_does_not_leak(minutes, seed):
    found = leaks({("slurm-gpudbd", 1): life(minutes, warming_up, seed=seed)})
    assert leaking(found) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("minutes", [60, 77, 110])
def test_a_leak_is_found_beneath_that(minutes, seed):
    samples = life(minutes, lambda at_s: warming_up(at_s) + (LEAK_MIB_PER_H + 1) * at_s / 3600, seed=seed)
    assert leaking(leaks({("slurm-gpudbd", 1): samples})) == ["slurm-gpudbd"]


def test_a_leak_that_comes_in_steps_is_found():
    """Python requests memory from the system in steps of 1 MiB."""
    stepwise = life(77, lambda at_s: 80 + (LEAK_MIB_PER_H + 1) * at_s // 3600)
    assert of_one(stepwise)["mib_per_h"] == pytest.approx(LEAK_MIB_PER_H + 1, rel=0.2)


@pytest.mark.parametrize("at_min", range(40, 76, 4))
def test_growing_once_and_staying_so_is_no_leak(at_min):
    once = life(77, lambda at_s: 80 if at_s < at_min * MINUTE else 95)
    assert of_one(once)["mib_per_h"] <= LEAK_MIB_PER_H


def test_open_files_that_become_more_are_a_leak():
    samples = life(77, lambda at_s: 80, lambda at_s: 9 + int(4 * at_s / 3600))
    assert leaking(leaks({("slurm-gpud-n1", 1): samples})) == ["slurm-gpud"]


def test_a_disk_that_fills_is_a_leak_and_one_that_is_emptied_is_none():
    filling = [(n * EACH_S, 2 + 8 * n * EACH_S / 3600) for n in range(1440)]
    waiting = [(n * EACH_S, 2 + n % 100 / 25) for n in range(1440)]
    assert leaking(leaks({}, filling)) == [NODES_DISK]
    assert leaking(leaks({}, waiting)) == []


def test_the_longest_life_of_each_kind_is_judged():
    short, long = life(30, lambda at_s: 80 + at_s), life(77, lambda at_s: 80)
    found = leaks({("slurm-gpud-n1", 1): short, ("slurm-gpud-n2", 2): long})
    assert leaking(found) == []
    assert found["slurm-gpud"]["longest_min"] == pytest.approx(72, abs=0.1)
    assert found["slurm-gpud"]["mib_per_h_of_all"] > LEAK_MIB_PER_H


def test_a_short_life_gives_no_growth():
    assert of_one(life(40, lambda at_s: 80 + at_s))["mib_per_h"] is None
    assert settled_per_h([]) is None
