"""Deviations are measured in standard deviations of healthy peers."""

import numpy as np
import pytest

from slurm_gpu.diagnose.peers import groups_given
from slurm_gpu.diagnose.signals import Signal, deviation

# Logarithms of the time in which each of 16 equal GPUs computes. Most of the faster half are alike by chance.
_ONE_GROUP = [13, -2, -4, 39, 21, 17, 0, -12, 2, -3, -23, 7, -2, 14, 19, 9]


@pytest.mark.parametrize(("n_groups", "is_far"), [(1, True), (8, False)])
def test_peers_of_all_groups_show_how_much_equal_gpus_differ(n_groups, is_far):
    random = np.random.default_rng(1)
    levels = random.normal(0, 0.0165, 16 * n_groups)
    levels[:16] = 1e-3 * np.array(_ONE_GROUP)
    rows = 0.6 * np.exp(levels[:, None] + random.normal(0, 0.002, (len(levels), 20)))
    found = deviation(Signal.BUSY, rows, groups_given(f"pp={n_groups}", len(levels)))
    assert bool(found.z[3] >= 6) is is_far
