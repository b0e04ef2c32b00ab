"""Events after t change no forecast made at t."""

import numpy as np
import pytest

from slurm_gpu.forecast.forecaster import train
from slurm_gpu.forecast.model import known_runs, make_model
from slurm_gpu.forecast.model_file import model_bytes
from slurm_gpu.forecast.queue import TABLE_ORDER, Vocabulary, past_samples
from tests.forecast.plainlearner import plain_learner
from tests.forecast.queues import DAY_S, NOW_S, made_up_runs, with_other_future


@pytest.mark.parametrize("learner", [None, plain_learner], ids=["tables", "learned"])
@pytest.mark.parametrize("seed", [1, 2])
def test_events_after_t_change_no_forecast_made_at_t(learner, seed):
    runs = made_up_runs(seed=seed)
    at_s = NOW_S - 3 * DAY_S
    models = [make_model(known, at_s, learner) for known in (runs, with_other_future(runs, at_s))]
    wanted = known_runs(runs, at_s)[-30:]
    one, other = (model.forecast(known_runs(runs, at_s), wanted, at_s) for model in models)
    for name in ("lower_s", "median_s", "upper_s", "source"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert model_bytes(models[0]) == model_bytes(models[1])


def test_known_outcomes_do_not_depend_on_later_events():
    runs, at_s = made_up_runs(), NOW_S - 3 * DAY_S
    vocabulary = Vocabulary.of(runs)
    samples = past_samples(runs, vocabulary, NOW_S)
    known = samples.known_at(at_s)
    assert (known.samples.at_s < at_s).all()
    assert not (known.samples.start_s >= at_s).any()
    assert (known.wait_s <= at_s - known.samples.at_s + 1).all()
    # `train` gets only `known`, which has no later events.
    hidden = train(known, TABLE_ORDER, samples.names)
    again = train(known.samples.known_at(at_s), TABLE_ORDER, samples.names)
    for name in TABLE_ORDER:
        np.testing.assert_array_equal(hidden.tables.started[name], again.tables.started[name])


def test_a_cancelled_job_has_the_same_wait_when_known_outcomes_are_read_again():
    runs, at_s = made_up_runs(), NOW_S - 3 * DAY_S
    known = past_samples(runs, Vocabulary.of(runs), NOW_S).known_at(at_s)
    again = known.samples.known_at(at_s)
    assert (~np.isnan(known.samples.gone_s)).any()
    np.testing.assert_array_equal(again.wait_s, known.wait_s)
