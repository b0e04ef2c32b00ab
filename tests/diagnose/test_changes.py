"""Changes of level are found where they exist, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.diagnose.changes import noise, segments, split
from slurm_gpu.diagnose.robust import middle, quantile, smooth


def a_row(levels, each=60, sigma=0.02, seed=1):
    random = np.random.default_rng(seed)
    return np.concatenate([level + sigma * random.standard_normal(each) for level in levels])


def test_noise_does_not_depend_on_changes_of_level():
    assert noise(a_row([0, 5, -3], each=200)[None])[0] == pytest.approx(0.02, rel=0.2)


def test_one_change_is_found_in_each_row():
    found = split(np.stack([a_row([1.0, 0.85]), a_row([1.0, 1.0], seed=2)]))
    assert found.at[0] == pytest.approx(60, abs=2)
    assert (found.before[0], found.after[0]) == (pytest.approx(1, abs=0.02), pytest.approx(0.85, abs=0.02))
    assert found.z[0] > 15
    assert found.z[1] < 5


def test_gaps_and_single_spikes_are_no_changes():
    row = a_row([1.0, 1.0])
    row[10:30] = np.nan
    row[70] = 40.0
    assert split(row[None]).z[0] < 5


def test_all_gaps_and_too_short_rows_have_no_change():
    assert split(np.full((2, 50), np.nan)).z.tolist() == [0, 0]
    assert split(np.ones((1, 4))).z.tolist() == [0]
    assert segments(np.full(9, np.nan)) == []


def test_segments_are_those_that_were_made():
    found = segments(a_row([1.0, 0.8, 1.0]))
    assert [round(segment.level, 1) for segment in found] == [1.0, 0.8, 1.0]
    assert [segment.start for segment in found] == [0, pytest.approx(60, abs=2), pytest.approx(120, abs=2)]


def test_noise_alone_is_one_segment():
    assert len(segments(a_row([1.0], each=300))) == 1


def by_trying_all(row, penalty, least):
    """Return the same optimum, computed without pruning."""
    n = len(row)
    price = penalty * 2 * np.log(n) * max(noise(row[None])[0], 1e-6) ** 2
    best = {0: (-price, [])}
    for end in range(least, n + 1):
        options = [
            (best[start][0] + ((row[start:end] - row[start:end].mean()) ** 2).sum() + price, start)
            for start in best
            if end - start >= least
        ]
        if options:
            total, start = min(options)
            best[end] = (total, [*best[start][1], start])
    return best[n][1]


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=5), st.integers(0, 1000))
def test_pruning_loses_nothing(levels, seed):
    row = a_row(levels, each=9, sigma=0.1, seed=seed)
    low, high = np.quantile(row, [0.1, 0.9])
    reach = 5 * noise(row[None])[0]
    tamed = np.clip(row, low - reach, high + reach)
    if (tamed == row).all():
        assert [segment.start for segment in segments(row)] == by_trying_all(row, 3.0, 3)


@given(st.lists(st.one_of(st.floats(-5, 5), st.just(float("nan"))), min_size=1, max_size=30))
def test_quantiles_leave_gaps_out(values):
    row = np.array(values)
    known = row[np.isfinite(row)]
    for q in (0.0, 0.3, 0.5, 1.0):
        found = quantile(row[None], q)[0]
        assert (np.isnan(found) and not known.size) or found == pytest.approx(np.quantile(known, q))


def test_smoothing_is_the_mean_of_what_is_no_gap():
    assert smooth(np.array([[1.0, 3.0, np.nan, 5.0, 9.0]]), 2).tolist() == [[2.0, 5.0]]
    assert np.isnan(middle(np.array([np.nan])))
