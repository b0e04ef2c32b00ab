"""Groups of peers are given explicitly, derived from the launcher's options, or inferred from the work."""

import numpy as np
import pytest

from slurm_gpu.diagnose.metric import Metric
from slurm_gpu.diagnose.peers import groups_given, infer_groups
from slurm_gpu.diagnose.series import JobWorker, Series


def a_series(**levels):
    """Return workers with these levels of each metric in 20 bins, four workers per node."""
    rows = {Metric(name): np.asarray(values, dtype=np.float64) for name, values in levels.items()}
    n = len(next(iter(rows.values())))
    random = np.random.default_rng(3)
    return Series(
        workers=tuple(JobWorker(node=f"n{i // 4}", device=f"GPU-{i}", rank=i) for i in range(n)),
        start_s=0.0,
        width_s=1.0,
        n_bins=20,
        values={m: row[:, None] * (1 + 0.01 * random.standard_normal((n, 20))) for m, row in rows.items()},
    )


def inferred(**levels):
    return infer_groups(a_series(**levels), np.ones(20, dtype=bool)).of.tolist()


def test_megatrons_ranks_fall_into_stages():
    assert groups_given("pp=4,tp=2", 16).of.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_groups_by_hand():
    groups = groups_given("0-1,4/2", 6)
    assert groups.of.tolist() == [0, 0, 1, 2, 0, 2]
    assert groups.names == ("group 0", "group 1", "others")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pp=3", "3 pipeline stages do not divide 16"),
        ("pp=2,tp=3", "tensor parallel size 3 does not divide the 8"),
        ("tp=2", "tp=2 does not define groups; add the number of stages: pp=N,tp=2"),
        ("dp=2", "must be pp=N or tp=N"),
        ("pp=x", "'x' must be a whole number"),
        ("0-3,2", "repeats a rank"),
        ("0-16", "not among the ranks 0 to 15"),
        ("a", "must be a rank"),
    ],
)
def test_invalid_groups_are_errors_with_the_reason(text, message):
    with pytest.raises(ValueError, match=message):
        groups_given(text, 16)


def test_workers_that_do_alike_are_one_group():
    assert set(inferred(mem_used=[0.6] * 16, tensor=[0.4] * 16)) == {0}


def test_stages_are_reported_by_their_memory():
    of = inferred(mem_used=[0.9] * 4 + [0.8] * 4 + [0.7] * 4 + [0.6] * 4)
    assert of == [3] * 4 + [2] * 4 + [1] * 4 + [0] * 4


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("each", [4, 8])
def test_stages_whose_memory_spreads_into_each_others_are_reported_by_the_order_of_ranks(seed, each):
    """Each stage uses 2 of 80 GB less than the one before; the last also stores logits; noise is 0.2 GB."""
    random = np.random.default_rng(seed)
    memory = np.repeat([0.78, 0.755, 0.725, 0.74], each) + 0.003 * random.normal(size=4 * each)
    assert inferred(mem_used=memory) == [0] * each + [1] * each + [2] * each + [3] * each


@pytest.mark.parametrize("seed", range(5))
def test_a_node_with_more_memory_in_use_is_not_a_stage(seed):
    memory = np.repeat([0.72, 0.74, 0.72, 0.72], 8) + 0.005 * np.random.default_rng(seed).normal(size=32)
    assert set(inferred(mem_used=memory)) == {0}


def test_a_faulty_worker_is_no_role_of_its_own():
    memory = np.array([0.9] * 8 + [0.6] * 8)
    memory[2] = 0.75
    assert inferred(mem_used=memory) in ([1] * 8 + [0] * 8, [1, 1, 0] + [1] * 5 + [0] * 8)
    assert set(inferred(mem_used=[0.6] * 15 + [0.9])) == {0}


def test_work_shows_stages_where_memory_does_not():
    assert inferred(mem_used=[0.6] * 8, tensor=[0.5] * 4 + [0.3] * 4) == [1] * 4 + [0] * 4


def test_a_slow_node_is_no_stage():
    """A slow node has lower clocks and a busier tensor pipe, but does as much work as its peers."""
    of = inferred(mem_used=[0.6] * 8, tensor=[0.3] * 4 + [0.4] * 4, sm_clock=[1.0] * 4 + [0.75] * 4)
    assert set(of) == {0}


def test_workers_of_which_nothing_is_known_are_in_no_bodys_way():
    of = inferred(mem_used=[np.nan] + [0.9] * 7 + [0.6] * 8)
    assert of[1:] == [1] * 7 + [0] * 8
