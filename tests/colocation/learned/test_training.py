"""Training is effective and reproducible, and survives being killed."""

import os
import signal
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu.colocation.learned.deeprm import ImageMethod
from slurm_gpu.colocation.learned.dqngpu import GroupMethod
from slurm_gpu.colocation.learned.gradients import Lesson, NumpyLearner, learner_on
from slurm_gpu.colocation.learned.model_file import read_arrays, write_arrays
from slurm_gpu.colocation.learned.net import new_net
from slurm_gpu.colocation.learned.play import DecisionBatch, EpisodeOptions
from slurm_gpu.colocation.learned.training import Progress, TrainedNet, TrainingSettings, advantages, train
from slurm_gpu.colocation.tables.pair_table import PairTable
from slurm_gpu.errors import InputError
from tests.colocation.building import CAPACITY_MIB
from tests.colocation.learned.nets import any_scorer, beliefs_of, light_and_heavy

SHORT = TrainingSettings(
    taught_epochs=2, taught_queues=4, epochs=3, queues=2, plays=4, judged_queues=4, judged_every=1
)


def short(checkpoint: Path | None = None, settings: TrainingSettings = SHORT) -> TrainedNet:
    return train(GroupMethod(), beliefs_of(light_and_heavy()), settings, checkpoint=checkpoint)


@cache
def undisturbed() -> TrainedNet:
    return short()


def same(one: TrainedNet, other: TrainedNet) -> bool:
    return one.history == other.history and all(
        np.array_equal(a, b) for a, b in zip(one.net.weights, other.net.weights, strict=True)
    )


def test_the_same_seed_learns_the_same_and_another_something_else():
    assert same(short(), undisturbed())
    assert not same(undisturbed(), short(settings=replace(SHORT, seed=1)))


def killed_after(checkpoint: Path, epoch: int) -> None:
    """Train in a separate process that kills itself after an epoch."""

    def note_progress(progress: Progress) -> None:
        if progress.epoch == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads; the child has none
        child = os.fork()
    if not child:
        try:
            train(
                GroupMethod(),
                beliefs_of(light_and_heavy()),
                SHORT,
                checkpoint=checkpoint,
                report_progress=note_progress,
            )
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_training_that_was_killed_continues_to_the_same_end(tmp_path: Path, epoch: int):
    checkpoint = tmp_path / "training.npz"
    killed_after(checkpoint, epoch)
    seen: list[Progress] = []
    resumed = train(
        GroupMethod(),
        beliefs_of(light_and_heavy()),
        SHORT,
        checkpoint=checkpoint,
        report_progress=seen.append,
    )
    assert seen[0].epoch == epoch + 1
    assert same(resumed, undisturbed())


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path):
    checkpoint = tmp_path / "training.npz"
    short(checkpoint)
    with pytest.raises(InputError, match="speeds or settings"):
        short(checkpoint, replace(SHORT, seed=1))
    with pytest.raises(InputError, match="another initial model"):
        train(GroupMethod(), beliefs_of(light_and_heavy()), SHORT, start=any_scorer(0), checkpoint=checkpoint)
    other = light_and_heavy()
    assert isinstance(other.table, PairTable)
    speeds = other.table.speeds.copy()
    speeds[0, 1] = 0.5
    other = replace(other, table=PairTable(other.table.names, speeds))
    with pytest.raises(InputError, match="applications, speeds"):
        train(GroupMethod(), beliefs_of(other), SHORT, checkpoint=checkpoint)
    write_arrays(checkpoint, {"format": "?"}, {})
    with pytest.raises(InputError, match="is not a checkpoint"):
        short(checkpoint)


def test_it_ends_early_where_nothing_becomes_better():
    settings = replace(SHORT, epochs=30, rate=1e-12, last_rate=1e-12, patience=2)
    assert train(GroupMethod(), beliefs_of(light_and_heavy()), settings, start=any_scorer(0)).epochs == 2


def test_a_trained_net_is_not_taught_again_and_never_gets_worse():
    first = undisturbed()
    again = train(
        GroupMethod(), beliefs_of(light_and_heavy()), replace(SHORT, rate=1.0, last_rate=1.0), start=first.net
    )
    assert again.taught_score is None
    assert again.score <= first.score


@pytest.mark.parametrize("name", ["deeprm_max", "deeprm_mean", "dqngpu_thesis"])
def test_the_thesiss_planners_learn_as_well(name: str):
    settings = TrainingSettings(
        seed=1, epochs=4, queues=6, plays=8, judged_queues=8, judged_every=2, rate=2e-3
    )
    learned = train(ImageMethod(name, CAPACITY_MIB), beliefs_of(light_and_heavy()), settings)
    assert learned.score < learned.history[0][1]


def test_reinforcement_makes_what_paid_more_likely_and_what_did_not_less():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(2, 3, any_scorer(0).widths[0])).astype(np.float32)
    lesson = Lesson(inputs, np.ones((2, 3), dtype=bool), np.array([1, 2]), np.array([1, -1], np.float32))
    learner = NumpyLearner(any_scorer(0), 1e-2)

    def shares() -> list[float]:
        odds = np.exp(learner.net(inputs)[..., 0])
        return (odds / odds.sum(axis=1, keepdims=True))[[0, 1], [1, 2]].tolist()

    before = shares()
    for _ in range(20):
        learner.step([lesson])
    after = shares()
    assert after[0] > before[0]
    assert after[1] < before[1]


@pytest.mark.parametrize("shared", [True, False], ids=["a row for each option", "one row for all"])
def test_another_device_takes_the_same_steps_and_continues_from_the_same_state(shared: bool):
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    n, n_options = 40, 5
    net = new_net((6, 8, 1), rng) if shared else new_net((60, 8, n_options), rng)
    inputs = rng.normal(size=(n, n_options, 6)).astype(np.float32) if shared else rng.random((n, 60)) < 0.5
    allowed = rng.random((n, n_options)) < 0.7
    allowed[:, 0] = True
    choice = (rng.random((n, n_options)) * allowed).argmax(axis=1)
    lesson = Lesson(inputs, allowed, choice, rng.normal(size=n).astype(np.float32))
    ours, other = NumpyLearner(net, 1e-2), learner_on("cpu:0", net, 1e-2)
    assert not isinstance(other, NumpyLearner)
    for entropy in (0.0, 0.1, 0.1):
        assert ours.step([lesson], entropy) == pytest.approx(other.step([lesson], entropy), rel=1e-4)
    other.restore(ours.state())
    ours.restore(other.state())
    ours.step([lesson])
    other.step([lesson])
    for one, two in zip(ours.net.weights, other.net.weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("of_epoch", [1, 3])
def test_a_checkpoint_whose_momenta_are_of_another_net_is_damaged(tmp_path: Path, of_epoch: int):
    checkpoint = tmp_path / "training.npz"
    killed_after(checkpoint, of_epoch)
    header, arrays = read_arrays(checkpoint)
    write_arrays(checkpoint, header, arrays | {"adam.exp_avg.0": np.zeros((2, 2), np.float32)})
    with pytest.raises(InputError, match=r"is a damaged checkpoint: .*exp_avg\.0 has shape \(2, 2\)"):
        short(checkpoint)


def test_a_decision_is_judged_against_the_same_step_of_the_same_queue():
    def kept(episode: list[int], step: list[int]) -> DecisionBatch:
        n = len(episode)
        options = EpisodeOptions(
            np.zeros((n, 1, 1), np.float32),
            np.ones((n, 1), bool),
            np.zeros((n, 1, 1), np.intp),
            np.zeros(n, np.float32),
        )
        return DecisionBatch(
            options, np.array(episode), np.array(step), np.zeros(n), np.zeros(n), np.zeros(n, np.intp)
        )

    some = [kept([0, 1], [0, 0]), kept([2, 3, 0], [0, 0, 1])]
    better = advantages(some, [np.array([1.0, 3.0]), np.array([10.0, 10.0, 7.0])], plays=2)
    assert np.sign(better[0]).tolist() == [1, -1]
    assert better[1].tolist() == [0, 0, 0]
