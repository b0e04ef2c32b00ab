"""Priority points of waiting jobs by scale and waiting time."""

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.placement.priority import PriorityWeights, is_earned, points
from slurm_gpu.placement.zones import JobScale

WEIGHTS = PriorityWeights({JobScale.MEDIUM: 20, JobScale.LARGE: 40}, most=500)
HOUR = 3600.0

weights = st.builds(
    PriorityWeights,
    st.dictionaries(st.sampled_from(list(JobScale)), st.floats(0, 1e4)),
    st.integers(1, 1_000_000),
)
waits = st.floats(-HOUR, 1e7)


def test_a_large_job_earns_by_the_hour_what_its_scale_is_worth_up_to_a_bound():
    assert [points(WEIGHTS, JobScale.LARGE, hours * HOUR) for hours in (0, 1, 10, 100)] == [0, 40, 400, 500]
    assert points(WEIGHTS, JobScale.MEDIUM, 10 * HOUR) == 200
    assert points(WEIGHTS, JobScale.SMALL, 1000 * HOUR) == 0


@given(weights, st.sampled_from(list(JobScale)), waits, waits)
def test_a_longer_wait_never_has_fewer_points(
    weights: PriorityWeights, scale: JobScale, one_s: float, other_s: float
):
    less, more = sorted((one_s, other_s))
    assert 0 <= points(weights, scale, less) <= points(weights, scale, more) <= weights.most


@given(weights, st.sampled_from(list(JobScale)), waits, waits)
def test_points_set_earlier_are_recognised_as_earned(
    weights: PriorityWeights, scale: JobScale, one_s: float, other_s: float
):
    earlier, later = sorted((one_s, other_s))
    assert is_earned(weights, points(weights, scale, earlier), points(weights, scale, later))


@given(weights)
def test_points_have_few_values_as_each_is_a_call_of_slurmctld(weights: PriorityWeights):
    assert weights.most // weights.step < 100


def test_points_that_no_job_can_have_earned_were_set_by_hand():
    assert WEIGHTS.step == 10
    assert [is_earned(WEIGHTS, now, 100) for now in (-10, 0, 55, 100, 110)] == [
        False,
        True,
        False,
        True,
        False,
    ]
