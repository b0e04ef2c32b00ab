"""A sample is reproducible and evenly spread, and contains the extremes."""

import numpy as np

from slurm_gpu.reports.sample import evenly, with_extremes


def test_a_sample_of_few_rows_contains_all():
    assert evenly(3, 10).tolist() == [0, 1, 2]
    assert with_extremes([np.zeros(3)], 3, 10).tolist() == [0, 1, 2]


def test_an_even_sample_reaches_over_all():
    sample = evenly(1000, 10)
    assert sample.tolist() == list(range(0, 1000, 100))


def test_the_largest_values_of_each_column_are_always_there():
    one, other = np.zeros(10_000), np.full(10_000, np.nan)
    one[[1, 7777]] = 5.0
    other[1234] = 0.1
    sample = with_extremes([one, other], 10_000, 100, extremes=10)
    assert {1, 7777, 1234} <= set(sample.tolist())
    assert len(sample) == len(set(sample.tolist())) <= 100 + 2 * 10
    assert (np.diff(sample) > 0).all()


def test_fewer_rows_than_extremes_are_all_sampled():
    assert len(with_extremes([np.arange(30.0)], 30, 20, extremes=400)) == 30
