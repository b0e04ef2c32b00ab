"""The store of learned properties of jobs that share GPUs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.colocation import store as stores
from slurm_gpu.controller.colocation.job_history import CorunHistory, CorunStretch, RunKey
from slurm_gpu.controller.colocation.store import HEADROOM, ColocationStore, PairPrediction
from slurm_gpu.errors import OutsideError

FRACTIONS = st.floats(0.001, 1.0)


@pytest.fixture
def store() -> ColocationStore:
    found = ColocationStore()
    found.ran_alone("a", 100, 0.3, 0.5)
    found.ran_alone("b", 200, 0.4, 0.7)
    return found


def test_a_job_gets_the_shards_that_hold_its_memory_with_headroom(store: ColocationStore) -> None:
    assert store.shards("a", 8) == 3  # 0.33 of 8 are 2.64
    assert store.shards("b", 8) == 4
    assert store.shards("never seen", 8) is None


def test_dropping_the_oldest_key_drops_its_speeds_too(
    store: ColocationStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stores, "_MOST_KEYS", 3)
    for pair in (("a", "b"), ("b", "a"), ("b", "c")):
        store.ran_with(*pair, 0.8)
    store.part("a", "c")
    store.part("b", "b")
    for key in ("c", "d"):
        store.ran_alone(key, 100, 0.3, 0.5)
    assert set(store.profiles) == {"b", "c", "d"}
    assert set(store.speeds) == {("b", "c")}
    assert store.apart == {frozenset("b")}
    store.ran_alone("e", 100, 0.3, 0.5)
    assert caplog.messages == ["more than 3 keys share GPUs: the least recently seen keys are dropped"]


@given(memory=FRACTIONS, of=st.integers(1, 32))
def test_shards_always_hold_the_memory_and_fit_one_gpu(memory: float, of: int) -> None:
    store = ColocationStore()
    store.ran_alone("x", 10, memory, None)
    shards = store.shards("x", of)
    assert shards is not None
    assert 1 <= shards <= of
    assert shards / of >= min(1.0, memory * (1 + HEADROOM)) - 1e-6


def test_a_mean_follows_what_is_seen_and_memory_is_the_most_of_all(store: ColocationStore) -> None:
    store.ran_alone("a", 120, 0.2, 0.6)
    assert (store.profiles["a"].runs, store.profiles["a"].alone_s) == (2, 110)
    assert (store.profiles["a"].memory_frac, store.profiles["a"].util_frac) == (0.3, 0.55)


def test_speed_is_predicted_by_what_is_left_of_the_gpus_time_until_it_was_seen(
    store: ColocationStore,
) -> None:
    assert store.speed("a", ["b"]) == pytest.approx(1 / 1.2)
    assert store.speed("a", ["a"]) == 1
    store.ran_with("a", "b", 0.6)
    assert store.speed("a", ["b"]) == 0.6
    assert store.speed("b", ["a"]) == pytest.approx(1 / 1.2)  # the speed of a does not change the speed of b
    assert store.speed("a", ["b", "a"]) == pytest.approx(0.6)
    assert store.speed("a", ["never seen"]) == pytest.approx(1 / 1.5)


def test_pairs_kept_apart_do_not_meet_in_larger_groups(store: ColocationStore) -> None:
    assert store.may_be_together(["a", "b"])
    store.part("a", "b")
    assert not store.may_be_together(["b", "a"])
    assert store.may_be_together(["a", "a"])
    store.part("a", "a")
    assert not store.may_be_together(["a", "a"])


def test_the_memory_of_all_must_fit_with_headroom(store: ColocationStore) -> None:
    store.ran_alone("c", 10, 0.65, None)
    assert not store.may_be_together(["a", "c"])
    assert not store.may_be_together(["a", "never seen"])


def test_the_store_survives_slurm_gpuctld(store: ColocationStore, tmp_path: Path) -> None:
    store.ran_with("a", "b", 0.6)
    store.part("a", "a")
    store.part("a", "b")
    path = tmp_path / "slurm-gpu" / stores.FILE_NAME
    stores.write(path, store, 1.5, os.geteuid())
    assert path.stat().st_mode & 0o777 == 0o600
    again = stores.read(path)
    assert (again.profiles, again.speeds, again.apart) == (store.profiles, store.speeds, store.apart)
    assert not store.is_changed


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "profiles": {"a": 3}}', "\0", '"x"']
)
def test_a_damaged_store_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "b").write_text(text)
    with pytest.raises(OutsideError, match="move it away"):
        stores.read(tmp_path / "b")
    assert stores.read(tmp_path / "none").profiles == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alone_s", 0),
        ("alone_s", math.nan),
        ("memory_frac", math.nan),
        ("memory_frac", -0.1),
        ("util_frac", math.inf),
        ("runs", math.inf),
    ],
)
def test_impossible_profiles_are_damage(
    tmp_path: Path, store: ColocationStore, name: str, value: float
) -> None:
    plain = store.to_json(0)
    next(iter(plain["profiles"].values()))[name] = value
    (tmp_path / "b").write_text(json.dumps(plain))
    with pytest.raises(OutsideError, match="move it away"):
        stores.read(tmp_path / "b")


def test_speeds_that_cannot_be_are_damage(tmp_path: Path, store: ColocationStore) -> None:
    plain = store.to_json(0) | {"speeds": [["a", "b", 1.5, 1]]}
    (tmp_path / "b").write_text(json.dumps(plain))
    with pytest.raises(OutsideError, match=r"invalid speed of a with b: 1\.5"):
        stores.read(tmp_path / "b")


def test_lost_time_is_kept_for_running_jobs(tmp_path: Path, store: ColocationStore) -> None:
    runs = [RunKey(7, 1000), RunKey(7, 2000)]
    for run in runs:
        store.lost(run, 12.5)
    plain = json.loads(json.dumps(store.to_json(0)))
    assert ColocationStore.from_json(plain).lost_s == dict.fromkeys(runs, 12.5)
    store.is_changed = False
    store.keep_lost(runs)
    assert not store.is_changed
    store.keep_lost(runs[1:])
    assert (store.lost_s, store.is_changed) == ({runs[1]: 12.5}, True)
    del plain["lost"]  # as written by 0.2
    assert ColocationStore.from_json(plain).lost_s == {}
    with pytest.raises(ValueError, match="invalid lost time of job 7: -1"):
        ColocationStore.from_json(plain | {"lost": [[7, 1000, -1]]})


def test_a_prediction_says_how_likely_a_speed_keeps_the_cap(store: ColocationStore) -> None:
    # By utilisation, two jobs "a" do not slow each other down, and "b" slows "a" down by a factor of 1.2.
    assert store.prediction("a", "a", 1.1) == (1.0, 0.02, pytest.approx(math.sqrt(0.5)))
    assert store.prediction("a", "b", 1.1) == (pytest.approx(1 / 1.2), 0.02, 0.0)
    store.predict({("a", "b"): PairPrediction(0.95, 0.85, 0.7)})
    assert store.prediction("a", "b", 1.1) == (0.95, 0.85, 0.7)
    store.ran_with("a", "b", 0.92)
    assert store.prediction("a", "b", 1.1) == (0.92, 0.92, 1.0)
    assert store.prediction("a", "b", 1.05) == (0.92, 0.92, 0.0)
    assert not store.is_measured(["a", "b"])
    store.ran_with("b", "a", 1.0)
    assert store.is_measured(["a", "b"])
    assert not store.is_measured(["a", "b", "a"])


class TestCourse:
    def test_a_complete_run_shows_the_speed_with_another(self, store: ColocationStore) -> None:
        course = CorunHistory("a", 1000)
        course.seen(1000, [])
        course.seen(1040, ["b"])
        course.seen(1120, [])
        course.end_s = 1140
        # 60 of 100 s of work were done alone, and the remaining 40 s of work in 80 s.
        assert course.speeds(100, 140, store.speed) == {"b": pytest.approx(0.5)}
        assert course.done_s(1140, lambda _, others: 0.5 if others else 1.0) == 100

    def test_with_several_co_runners_all_speeds_deviate_by_one_factor(self, store: ColocationStore) -> None:
        course = CorunHistory("a", 0, [CorunStretch(0, ("a",)), CorunStretch(60, ("b",))], 120)
        speeds = course.speeds(55, 120, store.speed)
        assert speeds["a"] == pytest.approx(
            0.5
        )  # predicted 1 and 1/1.2: 110 s of work, and half of it was done
        assert speeds["b"] == pytest.approx(0.5 / 1.2)

    def test_the_nodes_time_is_finer_than_slurms(self, store: ColocationStore) -> None:
        course = CorunHistory("a", 0, [CorunStretch(0, ("b",))], 120)
        assert course.speeds(60, 119.2, store.speed) == {"b": pytest.approx(60 / 119.2)}

    @pytest.mark.parametrize(
        "course",
        [
            CorunHistory("a", 0, [CorunStretch(0, ("b",))], None),
            CorunHistory("a", 0, [CorunStretch(0, ("b",))], 100, is_whole=False),
            CorunHistory("a", 0, [CorunStretch(0, ())], 100),
            CorunHistory("a", 0, [CorunStretch(0, ()), CorunStretch(97, ("b",))], 100),
            CorunHistory("a", 5, [CorunStretch(5, ("b",))], 5),
            CorunHistory(
                "a", 0, [CorunStretch(0, ()), CorunStretch(90, ("b",))], 110
            ),  # 10 s late, because of a speed of 0.5 or by chance
            CorunHistory("a", 0, [], 100),
        ],
    )
    def test_inconclusive_runs_are_not_learned_from(
        self, course: CorunHistory, store: ColocationStore
    ) -> None:
        assert course.speeds(100, 100, store.speed) == {}
        assert course.done_s(100, store.speed) >= 0
