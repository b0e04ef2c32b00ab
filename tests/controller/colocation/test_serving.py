"""Planners are selected by name, annealing replaces unavailable planners, and decisions are checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from slurm_gpu.colocation.learned import LEARNED_PLANNERS
from slurm_gpu.colocation.learned.dqngpu import HIDDEN
from slurm_gpu.colocation.learned.model_file import PlannerModel, write_model
from slurm_gpu.colocation.learned.models import inputs_of
from slurm_gpu.colocation.learned.net import new_net
from slurm_gpu.colocation.planner import Member, Planner, PlannerGpu, PlannerView, Start
from slurm_gpu.colocation.registry import PLANNERS, Setting
from slurm_gpu.controller.colocation.serving import Planners, Serving
from slurm_gpu.controller.colocation.status import serving_of
from slurm_gpu.controller.colocation.store import ColocationStore
from slurm_gpu.policy.language import model
from slurm_gpu.policy.lua.installed import ColocationInForce
from tests.controller.fakes import Clock

from .cluster import OF, POLICY, Cluster, Site


def write_net(path: Path, seed: int = 0) -> None:
    net = new_net((len(inputs_of("dqngpu")), *HIDDEN, 1), np.random.default_rng(seed))
    write_model(path, PlannerModel("dqngpu", inputs_of("dqngpu"), net, {}))


def by(planner: str, model: Path | None = None) -> ColocationInForce:
    return dataclasses.replace(POLICY, planner=planner, model=model)


@pytest.fixture
def store() -> ColocationStore:
    found = ColocationStore()
    for key in ("a", "b"):
        found.ran_alone(key, 50, 0.2, 0.4)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    found = Cluster(Clock(), str(tmp_path), n_nodes=2)
    found.memory = {"a": 0.2, "b": 0.3, "c": 0.6}
    found.util = {"a": 0.4, "b": 0.5, "c": 0.5}
    return found


def started(cluster: Cluster, policy: ColocationInForce) -> Site:
    """Return a site with the known keys a, b and c."""
    site = Site(cluster, policy)
    site.pass_s(1)
    for key in cluster.memory:
        cluster.submit(key, None, 20)
    site.until_all_end()
    site.pass_s(15)
    return site


def test_the_policy_accepts_the_existing_planners() -> None:
    assert set(model.PLANNERS) == set(PLANNERS)


@pytest.mark.parametrize("name", [*PLANNERS, "dqngpu"])
def test_any_planner_serves_by_its_name(name: str, cluster: Cluster, tmp_path: Path) -> None:
    write_net(tmp_path / "model.npz")
    site = started(cluster, by(name, tmp_path / "model.npz" if name in LEARNED_PLANNERS else None))
    jobs = [cluster.submit("a", 2, 30) for _ in range(8)]
    most = 0
    while any(job.state in ("PENDING", "RUNNING") for job in jobs):
        site.pass_s(1)
        most = max(most, *(len(cluster.co_runners(job)) + 1 for job in jobs if job.state == "RUNNING"), 0)
        assert cluster.clock.wall() < 2_000_000_000
    assert most == (1 if name == "sjf" else 2)
    assert all(job.restarts == 0 for job in jobs)
    reported = serving_of(tmp_path / "colocation.json")
    assert reported == Serving(name, name)


def test_annealing_serves_until_a_model_is_there_and_whenever_it_cannot_be_read(
    tmp_path: Path, store: ColocationStore
) -> None:
    planners, policy = Planners(), by("dqngpu", tmp_path / "model.npz")

    def serving() -> Serving:
        planners.server("gpu", policy, store, ["a", "b"])
        assert planners.serving is not None
        return planners.serving

    assert (serving().serves, "does not exist yet" in (serving().why or "")) == ("annealing", True)
    write_net(tmp_path / "model.npz")
    assert serving() == Serving("dqngpu", "dqngpu")
    (tmp_path / "model.npz").write_text("damaged")
    assert serving().serves == "annealing"
    assert "model.npz" in (serving().why or "")
    write_net(tmp_path / "model.npz", seed=1)
    assert serving() == Serving("dqngpu", "dqngpu")


def test_a_model_of_another_planner_is_not_used(tmp_path: Path, store: ColocationStore) -> None:
    write_net(tmp_path / "model.npz")
    planners = Planners()
    assert planners.server("gpu", by("deeprm_max", tmp_path / "model.npz"), store, ["a"]).name == "annealing"


def test_a_planner_whose_library_is_missing_leaves_it_to_annealing(store: ColocationStore) -> None:
    from slurm_gpu.colocation.registry import planner

    def without(name: str, setting: Setting) -> Planner:
        if name == "lp":
            raise ImportError("No module named 'scipy'")
        return planner(name, setting)

    planners = Planners(without)
    assert planners.server("gpu", by("lp"), store, ["a"]).name == "annealing"
    assert planners.serving == Serving("lp", "annealing", "No module named 'scipy'")


def test_annealing_continues_from_its_last_plan_and_learned_planners_are_rebuilt(
    tmp_path: Path, store: ColocationStore
) -> None:
    planners = Planners()
    first = planners.server("gpu", by("annealing"), store, ["a"])
    store.ran_with("a", "b", 0.5)
    assert planners.server("gpu", by("annealing"), store, ["a", "b"]).planner is first.planner
    assert planners.server("long", by("annealing"), store, ["a"]).planner is not first.planner
    write_net(tmp_path / "model.npz")
    learned = by("dqngpu", tmp_path / "model.npz")
    second = planners.server("gpu", learned, store, ["a", "b"])
    assert planners.server("gpu", learned, store, ["b", "a"]) is second
    store.ran_with("a", "b", 0.9)
    third = planners.server("gpu", learned, store, ["a", "b"])
    assert third.planner is not second.planner
    assert planners.server("gpu", learned, store, ["a", "b", "c"]).planner is not third.planner


def test_jobs_within_the_promise_share(cluster: Cluster) -> None:
    """Each job is slowed down slightly, within the cap; the number of jobs does not matter."""
    cluster.names, cluster.n_gpus = ["n1"], 2
    cluster.speeds = {(one, other): 0.85 for one in "ab" for other in "ab"}
    cluster.memory = {"a": 0.2, "b": 0.3}
    site = started(cluster, dataclasses.replace(POLICY, goal="considerate", slowdown=1.25))
    store = site.controller._store
    assert store is not None
    for pair in cluster.speeds:
        store.ran_with(*pair, 0.85)
    for _ in range(6):
        cluster.submit("a", 2, 60), cluster.submit("b", 3, 60)
    assert site.until_all_end() < 0.65 * 6 * 60


class Packs:
    """A planner that places the first job next to any other job, ignoring the belief."""

    name = "packs"

    def choose(self, view: PlannerView) -> Sequence[Start]:
        return [Start(gpu, (view.waiting[0].job,)) for gpu in range(len(view.gpus)) if view.waiting][:1]


def test_no_planner_can_exceed_the_memory_of_a_gpu(cluster: Cluster) -> None:
    cluster.names, cluster.n_gpus = ["n1"], 1
    site = started(cluster, POLICY)
    site.controller._planners = Planners(lambda name, setting: Packs())
    first, second = cluster.submit("c", 6, 60), cluster.submit("c", 2, 60)
    for _ in range(20):
        site.pass_s(1)
        assert not cluster.co_runners(first)
    assert first.state == "RUNNING"
    assert second.state == "PENDING"
    assert sum(cluster.free("n1")) == OF - 6


@pytest.mark.parametrize("name", ["annealing", "greedy"])
@pytest.mark.parametrize("done_s", [0.0, 5.0])
def test_of_two_equal_jobs_the_one_with_free_shards_gets_a_co_runner(
    store: ColocationStore, name: str, done_s: float
) -> None:
    """No shards are left next to the other job, although both started at the same time."""
    server = Planners().server("gpu", by(name), store, ["a"])
    index = server.belief.index("a")
    left_s = store.profiles["a"].alone_s - done_s
    gpus = tuple(PlannerGpu((Member(job, index, left_s, done_s),), f"n1/{job}") for job in (0, 1))
    server.belief.update({1})
    view = PlannerView(10.0, (Member(2, index, store.profiles["a"].alone_s),), gpus)
    assert list(server.planner.choose(view)) == [Start(0, (2,))]
