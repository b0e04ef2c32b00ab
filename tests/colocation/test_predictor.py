"""Speeds of unmeasured pairs are predicted from similar applications, with their likely errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.colocation.profiles.traits import Floats, Traits, likeness, traits_of_table
from slurm_gpu.colocation.speeds.low_rank import complete
from slurm_gpu.colocation.speeds.predictor import MOST_FITTED, Predicted, _warn_once, predict
from slurm_gpu.colocation.tables.measured import Measured

_SIZES = (8, 16, 32, 64)


def zoo(seed: int, noise: float = 0.0) -> tuple[list[Traits], Floats]:
    """Return twelve applications that share time; larger inputs need more of the GPU."""
    rng = np.random.default_rng(seed)
    traits, wants = [], []
    for family in "abc":
        most = rng.uniform(0.4, 1.0)
        for step, size in enumerate(_SIZES):
            wants.append(most * (step + 2) / (len(_SIZES) + 1))
            traits.append(Traits(family, size, (wants[-1],)))
    want = np.array(wants)
    speeds = 1 / (1 + want[:, None] * np.maximum(want[:, None] + want - 0.7, 0))
    return traits, np.clip(speeds + rng.normal(0, noise, speeds.shape), 0.05, 1)


def some_missing(speeds: Floats, seed: int, part: float) -> Floats:
    """Remove random pairs in both directions."""
    gone = np.triu(np.random.default_rng(seed).random(speeds.shape) < part)
    return np.where(gone | gone.T, np.nan, speeds)


def mae(found: Floats, true: Floats, where: Floats) -> float:
    return float(np.abs(found - true)[where].mean())


def test_a_pair_that_never_met_is_predicted_from_those_that_did() -> None:
    traits, speeds = zoo(1)
    seen = some_missing(speeds, 1, 0.3)
    unseen = np.isnan(seen)
    found = predict(traits, seen).speed
    constant = np.full_like(speeds, np.nanmedian(seen))
    assert mae(found, speeds, unseen) < 0.02 < 0.15 * mae(constant, speeds, unseen) + 0.02


def test_an_application_that_never_shared_is_predicted_from_its_family_and_size() -> None:
    traits, speeds = zoo(2)
    seen = speeds.copy()
    seen[5], seen[:, 5] = np.nan, np.nan
    unseen = np.isnan(seen)
    found = predict(traits, seen)
    assert mae(found.speed, speeds, unseen) < 0.05
    assert found.deviation[unseen].mean() > 1.2 * found.deviation[~unseen].mean()


def test_measured_speeds_exceed_the_lower_bound_at_its_confidence() -> None:
    above = []
    for seed in range(6):
        traits, speeds = zoo(seed, noise=0.05)
        seen = some_missing(speeds, seed, 0.25)
        unseen = np.isnan(seen)
        found = predict(traits, seen)
        above += (speeds >= found.lower(0.9))[unseen].tolist()
        assert (found.lower(0.9) <= found.speed).all()
    assert 0.85 <= np.mean(above) <= 0.99


def test_a_higher_confidence_gives_a_lower_bound() -> None:
    traits, speeds = zoo(3, noise=0.05)
    found = predict(traits, some_missing(speeds, 3, 0.25))
    bounds = [found.lower(confidence) for confidence in (0.5, 0.8, 0.95, 1.0)]
    assert all((higher >= lower).all() for higher, lower in itertools.pairwise(bounds))


def test_one_measurement_that_is_far_off_does_not_spoil_its_neighbours() -> None:
    traits, speeds = zoo(4)
    seen = some_missing(speeds, 4, 0.2)
    unseen = np.isnan(seen)
    at = tuple(np.argwhere(~unseen & (speeds < 0.7))[0])
    wrong = seen.copy()
    wrong[at] -= 0.4
    assert mae(predict(traits, wrong).speed, speeds, unseen) < 0.03


def test_often_measured_pairs_count_for_more() -> None:
    traits = [Traits("a", 8), Traits("a", 16)]
    speeds = np.array([[np.nan, 0.9], [0.3, np.nan]])
    often = np.array([[1.0, 20.0], [1.0, 1.0]])
    assert predict(traits, speeds, often).speed[0, 1] > predict(traits, speeds).speed[0, 1]
    assert predict(traits, speeds, often).deviation[0, 1] < predict(traits, speeds).deviation[0, 1]


def test_the_order_of_applications_does_not_matter() -> None:
    traits, speeds = zoo(5, noise=0.03)
    seen = some_missing(speeds, 5, 0.3)
    order = np.random.default_rng(5).permutation(len(traits))
    other = predict([traits[at] for at in order], seen[np.ix_(order, order)])
    assert other.speed == pytest.approx(predict(traits, seen).speed[np.ix_(order, order)], abs=1e-6)


def test_without_measurements_the_prior_is_returned_without_certainty() -> None:
    traits, speeds = zoo(6)
    nothing = np.full_like(speeds, np.nan)
    found = predict(traits, nothing, prior=speeds)
    assert found.speed == pytest.approx(speeds)
    assert (found.lower(0.9) < 0.1).all()
    assert predict(traits, nothing).speed == pytest.approx(0.7)


def test_pairs_that_cannot_run_together_do_not_affect_speeds() -> None:
    traits, speeds = zoo(7)
    without, with_zeros = speeds.copy(), speeds.copy()
    without[3, 3], with_zeros[3, 3] = np.nan, 0.0
    assert predict(traits, without).speed == pytest.approx(predict(traits, with_zeros).speed)


FAMILY = st.sampled_from(["a", "b", ""])
NUMBER = st.none() | st.sampled_from([0.0, -1.0, 1e-300, 1e300]) | st.floats(0, 1e6)


@st.composite
def anything(draw: st.DrawFn) -> tuple[list[Traits], Floats, Floats]:
    n = draw(st.integers(1, 5))
    uses = draw(st.integers(0, 2))
    numbers = st.tuples(*[st.none() | st.floats(-1e6, 1e6)] * uses)
    traits = [Traits(draw(FAMILY), draw(NUMBER), draw(numbers)) for _ in range(n)]
    speed = st.just(math.nan) | st.just(0.0) | st.just(1.0) | st.floats(1e-9, 1)
    count = st.sampled_from([math.nan, 0.0, 1.0, 1e9])
    square = [draw(st.lists(cell, min_size=n * n, max_size=n * n)) for cell in (speed, count)]
    speeds, counts = (np.array(one).reshape(n, n) for one in square)
    return traits, speeds, counts


@given(anything())
def test_predicted_speeds_and_errors_are_finite_for_any_input(
    case: tuple[list[Traits], Floats, Floats],
) -> None:
    traits, speeds, counts = case
    found = predict(traits, speeds, counts)
    for lower in (found.lower(0.5), found.lower(0.999)):
        assert ((lower > 0) & (lower <= 1)).all()
    assert ((found.speed > 0) & (found.speed <= 1)).all()
    assert ((found.deviation > 0) & (found.deviation < 2)).all()
    again = predict(traits, speeds, counts)
    assert (again.speed == found.speed).all()


@pytest.mark.parametrize("value", [-0.1, 1.1, math.inf])
def test_speeds_that_cannot_be_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        predict([Traits("a")], np.array([[value]]))


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"speeds of 2 applications must have the shape \(2, 2\), not \(1, 1\)"
    ):
        predict([Traits("a"), Traits("b")], np.zeros((1, 1)))
    with pytest.raises(ValueError, match="the same number"):
        likeness([Traits("a", None, (1.0,)), Traits("b")])


def test_a_bounded_fit_omits_the_least_informative_pairs() -> None:
    speeds, counts = np.array([[np.nan, 0.2], [0.9, np.nan]]), np.array([[0.0, 1.0], [5.0, 0.0]])
    found = predict([Traits("a"), Traits("b")], speeds, counts, most=1)
    assert found.speed[0, 0] == pytest.approx(0.8, abs=0.15)
    assert found.n_not_fitted == 1


@pytest.mark.parametrize("n", [31, 33, 40])
def test_the_last_of_many_applications_is_predicted_from_its_own_pairs(n: int) -> None:
    """One application is slowed down by all others, and a fit does not include all of these pairs."""
    speeds = np.full((n, n), 0.9)
    speeds[-1] = 0.5
    speeds[0, -1] = speeds[-1, 0] = np.nan
    found = predict([Traits(f"application {number}") for number in range(n)], speeds)
    assert found.n_not_fitted == max(0, n * n - 2 - MOST_FITTED)
    assert found.speed[-1, 0] == pytest.approx(0.5, abs=0.02)
    assert found.speed[0, -1] == pytest.approx(0.9, abs=0.02)
    assert found.lower(0.95)[-1, 0] <= 0.52


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [20, 40])
def test_a_bounded_fit_is_better_than_one_to_the_first_or_to_chance(most: int, seed: int) -> None:
    traits, speeds = zoo(seed, noise=0.02)
    seen = some_missing(speeds, seed, 0.2)
    unseen = np.isnan(seen)

    def error_of(kept: Floats) -> float:
        some = np.full_like(seen, np.nan)
        some.ravel()[kept] = seen.ravel()[kept]
        return mae(predict(traits, some).speed, speeds, unseen)

    measured = np.flatnonzero(~unseen.ravel())
    by_chance = np.mean(
        [error_of(np.random.default_rng(draw).permutation(measured)[:most]) for draw in range(5)]
    )
    found = mae(predict(traits, seen, most=most).speed, speeds, unseen)
    assert found <= 1.1 * by_chance
    assert found < 0.7 * error_of(measured[:most])


@pytest.mark.parametrize("most", [30, 60])
def test_the_lower_bound_of_a_bounded_fit_holds_at_its_confidence(most: int) -> None:
    above, own = [], []
    for seed in range(6):
        traits, speeds = zoo(seed, noise=0.05)
        seen = some_missing(speeds, seed, 0.25)
        unseen = np.isnan(seen)
        found = predict(traits, seen, most=most)
        above += (speeds >= found.lower(0.9))[unseen].tolist()
        own += np.abs(found.speed - seen)[~unseen].tolist()
        assert found.deviation[unseen].mean() > predict(traits, seen).deviation[unseen].mean()
    assert 0.85 <= np.mean(above) <= 0.99
    # The measurement of a pair still determines its own prediction if the pair is excluded from the fit.
    assert np.mean(own) < 0.05


def test_a_measurement_that_is_not_fitted_to_and_far_off_counts_less() -> None:
    traits, speeds = zoo(8)
    at = np.unravel_index(np.argmin(np.abs(speeds - 0.8)), speeds.shape)
    shifts = []
    for off in (0.02, 0.4):
        wrong = speeds.copy()
        wrong[at] -= off
        usual = wrong.copy()
        usual[at] = np.nan
        most = int((~np.isnan(usual)).sum())
        found = predict(traits, wrong, np.where(wrong == wrong[at], 1.0, 20.0), most=most)
        assert found.n_not_fitted == 1
        shifts.append(float((found.speed[at] - speeds[at]) / -off))
    assert shifts[1] < shifts[0]


def test_pairs_that_are_not_fitted_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    traits, speeds = zoo(9)
    _warn_once.cache_clear()
    with caplog.at_level("WARNING"):
        predict(traits, speeds)
        assert not caplog.messages
        for _ in range(3):
            predict(traits, speeds, most=50)
    (message,) = caplog.messages
    assert "than a fit takes (50)" in message


def test_traits_come_from_a_table_of_names() -> None:
    table = Measured("V100", ("ResNet-18 (batch size 16)", "A3C"), (4.0, None), {})
    assert traits_of_table(table) == (Traits("ResNet-18", 16, (-2.0,)), Traits("A3C", None, (None,)))


def test_oddness_is_the_deviation_from_the_family_s_line_over_sizes() -> None:
    steady = [Traits("a", size, (at + 1.0,)) for at, size in enumerate(_SIZES)]
    assert likeness(steady).odd == pytest.approx(0.0, abs=1e-9)
    slow = [*steady[:2], Traits("a", 32, (4.5,)), steady[3]]
    odd = likeness(slow).odd[:, 0]
    assert odd.argmax() == 2
    assert odd.sum() == pytest.approx(0.0, abs=1e-9)
    # Two points always define a line, and a single member of a family deviates from none.
    assert (
        likeness([Traits("a", 8, (1.0,)), Traits("a", 16, (5.0,)), Traits("b", 8, (2.0,))]).odd == 0
    ).all()
    # Among several of one size, each deviates from their mean.
    same = likeness([Traits("a", 8, (one,)) for one in (0.0, 0.0, 3.0)]).odd[:, 0]
    assert same[2] == pytest.approx(-2 * same[0])


def test_an_application_slow_alone_for_its_family_loses_less_when_sharing() -> None:
    """With co-runners all speeds follow the size; alone, one application of each family is slower."""
    traits, speeds = [], []
    for family, slow in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
        for step, size in enumerate(_SIZES):
            factor = 1.5 if step == slow else 1.0
            traits.append(Traits(family, size, (step + math.log2(factor),)))
            speeds.append(0.5 * factor)
    table = np.repeat(np.array(speeds)[:, None], len(speeds), axis=1)
    seen, unseen = table.copy(), 6
    seen[unseen], seen[:, unseen] = np.nan, np.nan
    found = predict(traits, seen).speed
    assert found[unseen] == pytest.approx(table[unseen], abs=0.1)
    unknown = predict([Traits(one.family, one.size) for one in traits], seen).speed
    assert (unknown[unseen] < table[unseen] - 0.15).all()


def test_nothing_at_all_is_alike_itself() -> None:
    like = likeness([Traits("a", 8, (None,)), Traits("a", None, (None,))])
    assert (like.uses == 0).all()
    assert (like.octaves == 0).all()
    assert (like.odd == 0).all()
    assert isinstance(predict([], np.zeros((0, 0))), Predicted)


def test_factors_that_no_trait_shows_are_found_in_the_measured_pairs() -> None:
    rng = np.random.default_rng(7)
    n = 24
    speeds = 0.9 - 0.6 * rng.beta(0.5, 0.5, (n, 2)) @ rng.beta(0.5, 0.5, (2, n)) / 2
    seen = some_missing(speeds, 7, 0.2)
    found = predict([Traits(f"app{one}") for one in range(n)], seen).speed
    assert mae(found, speeds, np.isnan(seen)) < 0.01


def test_slowdowns_that_multiply_are_completed_by_their_logarithms() -> None:
    speeds = np.exp(-3 * np.outer(*np.random.default_rng(7).uniform(0, 1, (2, 12))))
    found = complete(some_missing(speeds, 7, 0.2))
    assert found is not None
    assert found.everywhere == pytest.approx(speeds, abs=1e-6)


def test_a_completion_needs_many_pairs_and_leaves_out_both_directions() -> None:
    _, speeds = zoo(5)
    assert complete(np.where(np.arange(12) < 3, speeds, np.nan)) is None
    before = complete(speeds)
    assert before is not None
    changed = speeds.copy()
    changed[2, 7], changed[7, 2] = speeds[2, 7] + 1e-6, speeds[7, 2] - 1e-6
    after = complete(changed)
    assert after is not None
    assert (before.left_out[2, 7], before.left_out[7, 2]) == pytest.approx(
        (after.left_out[2, 7], after.left_out[7, 2]), abs=1e-9
    )


def test_an_application_with_few_measurements_is_not_completed() -> None:
    _, speeds = zoo(6)
    speeds[3], speeds[:, 3] = np.nan, np.nan
    found = complete(speeds)
    assert found is not None
    assert np.isnan(found.everywhere[3]).all()
    assert np.isfinite(np.delete(np.delete(found.everywhere, 3, 0), 3, 1)).all()


def test_the_chance_of_a_speed_is_the_share_of_past_errors_that_would_permit_it() -> None:
    shape = (1, 1)
    one = Predicted(np.full(shape, 0.9), np.full(shape, 0.1), np.array([-2.0, -1.0, 0.0, 1.0]))
    assert [one.chance(least)[0, 0] for least in (0.5, 0.85, 0.95, 1.2)] == pytest.approx(
        [0.8, 0.6, 0.4, 0.0]
    )
