"""Speeds of unmeasured pairs are predicted from the speeds of measured pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from statistics import fmean

import pytest

from slurm_gpu.controller.colocation.pair_fit import (
    EVERY_S,
    LEAST_SPEEDS,
    MOST_KEYS,
    MOST_SPEEDS,
    PairFit,
    Speeds,
    family_and_size,
    predicted,
)
from slurm_gpu.controller.colocation.store import ColocationStore, time_sliced
from tests.controller.fakes import Clock

APPLICATIONS = {
    "net16": 0.3,
    "net64": 0.45,
    "md": 0.6,
    "lm8": 0.5,
    "lm32": 0.65,
    "gan": 0.4,
    "bert": 0.7,
    "rl": 0.2,
}


def truth(one: str, other: str) -> float:
    """Return the true speed: the jobs alternate, and each is slowed down by the other's memory traffic."""
    ones, others = APPLICATIONS[one], APPLICATIONS[other]
    alternating = min(1.0, 1 / (ones + others))
    return alternating * (1 - 0.25 * others) * (0.9 if one.startswith("lm") else 1.0)


def filled(n_pairs: int, names: tuple[str, ...] = tuple(APPLICATIONS)) -> ColocationStore:
    """Return a store with the profiles of `names` and `n_pairs` measured speeds."""
    store = ColocationStore()
    for name in names:
        store.ran_alone(name, 100, 0.2, APPLICATIONS.get(name, 0.5))
    pairs = [(one, other) for one in names for other in names]
    for at in range(n_pairs):
        one, other = pairs[(at * 37) % len(pairs)]
        store.ran_with(one, other, truth(one, other) if one in APPLICATIONS else 0.8)
    return store


class Later:
    """A background worker that a test controls."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[[], Speeds], Future[Speeds]]] = []

    def __call__(self, task: Callable[[], Speeds]) -> Future[Speeds]:
        future: Future[Speeds] = Future()
        self.tasks.append((task, future))
        return future

    def do(self) -> None:
        task, future = self.tasks.pop(0)
        try:
            future.set_result(task())
        except ImportError as error:
            future.set_exception(error)


def test_unmeasured_pairs_are_predicted_better_than_by_their_use_alone() -> None:
    store = filled(24)
    reported = predicted(store.profiles, store.speeds)
    assert len(reported) == len(APPLICATIONS) ** 2 - 24
    by_use = fmean(
        abs(time_sliced(store.profiles[one], store.profiles[other]) - truth(one, other))
        for one, other in reported
    )
    by_fit = fmean(abs(one.speed - truth(*pair)) for pair, one in reported.items())
    assert by_fit < by_use / 2
    assert all(0 < one.lower <= one.speed <= 1 for one in reported.values())


def test_the_chance_to_keep_the_guaranteed_slowdown_depends_on_it() -> None:
    store = filled(24)
    assert {one.chance for one in predicted(store.profiles, store.speeds).values()} == {0.0}
    strict, loose = (predicted(store.profiles, store.speeds, cap) for cap in (1.1, 1.5))
    assert all(0 <= strict[pair].chance <= loose[pair].chance <= 1 for pair in strict)
    assert fmean(one.chance for one in strict.values()) < fmean(one.chance for one in loose.values())


def test_a_planner_uses_a_prediction_until_the_pair_is_measured() -> None:
    store, later = filled(24), Later()
    pair_fit = PairFit(later, Clock())
    pair_fit.refresh(store, {"md": 1})
    before, version = store.speed("md", ["gan"]), store.version
    assert ("md", "gan") not in store.speeds
    later.do()
    pair_fit.refresh(store, {"md": 1})
    assert store.version != version
    assert abs(store.speed("md", ["gan"]) - truth("md", "gan")) < abs(before - truth("md", "gan"))
    store.ran_with("md", "gan", 0.5)
    assert store.speed("md", ["gan"]) == 0.5


def test_a_fit_runs_once_a_minute_at_most_and_only_after_something_was_learned() -> None:
    store, later, clock = filled(12), Later(), Clock()
    pair_fit = PairFit(later, clock)
    pair_fit.refresh(store, {})
    pair_fit.refresh(store, {})
    assert len(later.tasks) == 1
    later.do()
    pair_fit.refresh(store, {})
    clock.advance(EVERY_S)
    pair_fit.refresh(store, {})
    assert not later.tasks
    store.ran_with("md", "rl", 0.7)
    pair_fit.refresh(store, {})
    assert len(later.tasks) == 1
    store.ran_with("md", "rl", 0.6)
    later.do()
    pair_fit.refresh(store, {})
    assert not later.tasks
    clock.advance(EVERY_S)
    pair_fit.refresh(store, {})
    assert len(later.tasks) == 1


def test_too_few_speeds_give_no_prediction() -> None:
    store, later = filled(LEAST_SPEEDS - 1), Later()
    PairFit(later, Clock()).refresh(store, {})
    assert not later.tasks


def test_without_numpy_pairs_are_judged_by_their_use() -> None:
    store, clock = filled(24), Clock()

    def fails(task: Callable[[], Speeds]) -> Future[Speeds]:
        future: Future[Speeds] = Future()
        future.set_exception(ImportError("No module named 'numpy'"))
        return future

    pair_fit = PairFit(fails, clock)
    for _ in range(3):
        pair_fit.refresh(store, {})
        clock.advance(EVERY_S)
    assert store.predicted == {}
    pair = next(
        (one, other) for one in APPLICATIONS for other in APPLICATIONS if (one, other) not in store.speeds
    )
    assert store.speed(pair[0], [pair[1]]) == time_sliced(*(store.profiles[one] for one in pair))


def test_the_size_of_a_fit_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(1500, tuple(f"k{number}" for number in range(60)))
    sizes: list[tuple[int, int]] = []

    def noted(profiles: object, speeds: object, slowdown: object) -> Speeds:
        assert isinstance(profiles, dict)
        assert isinstance(speeds, dict)
        sizes.append((len(profiles), len(speeds)))
        assert "k59" in profiles
        return {}

    monkeypatch.setattr("slurm_gpu.controller.colocation.pair_fit.predicted", noted)
    later = Later()
    PairFit(later, Clock()).refresh(store, {"k59": 1})
    later.do()
    assert sizes[0][0] == MOST_KEYS
    assert LEAST_SPEEDS < sizes[0][1] <= MOST_KEYS**2


def test_a_limited_fit_uses_speeds_of_all_keys() -> None:
    """If speeds were ordered by name, the speeds of the last key would be left out first."""
    names = tuple(f"k{number:02}" for number in range(MOST_KEYS))
    store = ColocationStore()
    for name in names:
        store.ran_alone(name, 100, 0.2, 0.5)
    last = names[-1]
    for one, other in itertools.product(names, names):
        if (one, other) != (last, names[0]):
            store.ran_with(one, other, 0.5 if one == last else 0.9)
    assert len(store.speeds) > MOST_SPEEDS
    assert predicted(store.profiles, store.speeds)[last, names[0]].speed == pytest.approx(0.5, abs=0.05)


def test_a_limited_fit_uses_keys_with_the_most_jobs_and_logs_the_number_of_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tuple(f"k{number:02}" for number in range(MOST_KEYS + 8))
    store, later, clock = filled(1500, names), Later(), Clock()
    taken: list[frozenset[str]] = []

    def noted(profiles: Mapping[str, object], speeds: object, slowdown: object) -> Speeds:
        taken.append(frozenset(profiles))
        return {}

    monkeypatch.setattr("slurm_gpu.controller.colocation.pair_fit.predicted", noted)
    pair_fit = PairFit(later, clock)
    with caplog.at_level("WARNING"):
        for _ in range(3):
            pair_fit.refresh(store, {name: 1 + (name >= "k30") for name in names})
            if later.tasks:
                later.do()
            store.ran_with(names[-1], names[-2], 0.5)
            clock.advance(EVERY_S)
    assert all(taken_now.issuperset(names[30:]) for taken_now in taken)
    (message,) = caplog.messages
    assert f"{MOST_KEYS + 8} keys have jobs but a fit uses at most {MOST_KEYS}" in message
    assert "speeds of the 8 keys" in message


@pytest.mark.parametrize(
    ("key", "family", "size"),
    [
        ("resnet50", "resnet#", 50.0),
        ("alice/train", "alice/train", None),
        ("ResNet-18%20%28batch%20size%2016%29", "ResNet-18 (batch size #)", 16.0),
        ("7", "#", 7.0),
        ("", "", None),
        ("run1234567890123", "run1234#", 567890123.0),
    ],
)
def test_a_name_without_its_last_number_is_the_family(key: str, family: str, size: float | None) -> None:
    assert family_and_size(key) == (family, size)
