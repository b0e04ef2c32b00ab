"""Jobs that share GPUs are placed, run as fast as promised, and are never stuck."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_gpu.policy.lua.decisions import find_endings
from tests.controller.fakes import Clock

from .cluster import OF, POLICY, Cluster, Site, view_of


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    found = Cluster(Clock(), str(tmp_path))
    found.memory = {"a": 0.2, "b": 0.3, "c": 0.6}
    found.util = {"a": 0.4, "b": 0.5, "c": 0.5}
    return found


def shards(site: Site) -> dict[str, int]:
    table = site.controller.table()
    assert table is not None
    return dict(table.shares)


def test_a_job_that_ran_alone_is_known(site: Site) -> None:
    assert shards(site) == {"a": 2, "b": 3, "c": 6}


def test_there_is_no_table_before_the_first_cycle_or_without_sharing(cluster: Cluster) -> None:
    site = Site(cluster)
    assert site.controller.table() is None
    site.pass_s(1)
    assert site.controller.table() is not None
    site.policy = None  # type: ignore[assignment]
    site.pass_s(1)
    assert site.controller.table() is None


def test_jobs_that_suit_each_other_share_and_are_done_sooner(site: Site, cluster: Cluster) -> None:
    jobs = [cluster.submit("a", 2) for _ in range(8)]
    took_s = site.until_all_end()
    assert took_s < 0.6 * 8 / 2 * 100
    assert all(job.restarts == 0 for job in jobs)


def test_jobs_slowed_down_over_the_promise_are_not_placed_together(site: Site, cluster: Cluster) -> None:
    site.policy = dataclasses.replace(POLICY, goal="considerate", slowdown=1.1)
    cluster.util["a"] = cluster.util["b"] = 0.9
    for key in ("a", "b"):
        site.controller._store.profiles[key] = dataclasses.replace(  # type: ignore[union-attr]
            site.controller._store.profiles[key],
            util_frac=0.9,  # type: ignore[union-attr]
        )
    cluster.submit("a", 2), cluster.submit("b", 3), cluster.submit("a", 2)
    for _ in range(20):
        site.pass_s(5)
        assert not any(cluster.co_runners(job) for job in cluster.all.values() if job.state == "RUNNING")


def test_a_pair_over_the_promise_is_ended_and_not_repeated(site: Site, cluster: Cluster) -> None:
    site.policy = dataclasses.replace(POLICY, goal="considerate", slowdown=1.1)
    cluster.speeds = {("a", "a"): 0.6}  # although their GPU utilisation suggests that they fit
    site.expect(1500)
    jobs = [cluster.submit("a", 2, 1500) for _ in range(3)]
    site.pass_s(60)
    assert [job.restarts for job in jobs].count(1) == 1
    ((act, _, why),) = site.audited
    assert (act, "slowed down by a factor of 1.67, above the guaranteed 1.1" in why) == (
        "colocation ended",
        True,
    )
    (gone,) = (job for job in jobs if job.restarts)
    (stays,) = co_runners_of_last(site)
    said = [find_endings(Path(cluster.directory), f"x{job}") for job in (gone.job_id, stays)]
    assert [[line.fields["gone"] for line in one] for one in said] == [[str(gone.job_id)]] * 2
    assert said[0][0].fields["co_runners"] == str(stays)
    assert said[1][0].fields["why"] in (
        f"next to job {other}, job {one} was slowed down by a factor of 1.67, above the guaranteed 1.1"
        for one, other in ((gone.job_id, stays), (stays, gone.job_id))
    )
    site.until_all_end()
    assert sum(job.restarts for job in jobs) == 1
    again = [cluster.submit("a", 2) for _ in range(4)]
    site.until_all_end()
    assert sum(job.restarts for job in again) == 0
    assert site.controller._store is not None
    assert site.controller._store.speeds["a", "a"][0] == pytest.approx(0.6, abs=0.05)


def co_runners_of_last(site: Site) -> list[int]:
    """Return the co-runners of the job in the last event."""
    evidence = site.evidence[-1]
    assert isinstance(evidence, dict)
    assert {one["job"] for one in evidence["speeds"]} == {evidence["job"], *evidence["co_runners"]}
    assert [round(one["measured"], 2) for one in evidence["speeds"]] == [0.6, 0.6]
    return list(evidence["co_runners"])


def test_without_a_promise_a_pair_ends_that_does_less_than_one_alone(site: Site, cluster: Cluster) -> None:
    cluster.speeds = {("a", "c"): 0.3, ("c", "a"): 0.4}
    jobs = [cluster.submit("c", 6, 300), cluster.submit("c", 6, 300), cluster.submit("a", 2, 300)]
    site.pass_s(80)
    assert sum(job.restarts for job in jobs) == 1
    assert "together they do 0.70 of the work that one job does alone" in site.audited[0][2]


def test_a_job_that_fails_with_another_gets_one_more_run_alone(site: Site, cluster: Cluster) -> None:
    jobs = [cluster.submit("a", 2), cluster.submit("a", 2), cluster.submit("b", 3, fails_with="a")]
    site.until_all_end()
    assert [job.state for job in jobs] == ["COMPLETED"] * 3
    assert (jobs[2].restarts, jobs[2].shards) == (1, OF)
    assert frozenset(("a", "b")) in site.controller._store.apart  # type: ignore[union-attr]
    assert "it failed next to a, and jobs like it do not fail alone" in site.audited[0][2]
    (line,) = find_endings(Path(cluster.directory), f"x{jobs[2].job_id}")
    assert (line.fields["gone"], "probably out of memory" in line.fields["why"]) == (
        str(jobs[2].job_id),
        True,
    )


def test_a_job_that_fails_alone_is_not_run_again(site: Site, cluster: Cluster) -> None:
    job = cluster.submit("b", 3)
    site.pass_s(10)
    job.state, job.end_s = "FAILED", int(cluster.clock.wall())
    site.pass_s(30)
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_while_slurm_gpuctld_is_down_jobs_start_at_their_begin_time(site: Site, cluster: Cluster) -> None:
    site.runs = False
    jobs = [cluster.submit("a", 2, hold_s=60) for _ in range(3)]
    site.pass_s(59)
    assert {job.state for job in jobs} == {"PENDING"}
    site.pass_s(3)
    assert {job.state for job in jobs} == {"RUNNING"}


def test_a_job_without_a_place_at_the_end_of_its_wait_gets_a_gpu_alone(site: Site, cluster: Cluster) -> None:
    full = [cluster.submit("x", None, 400) for _ in range(2)]
    late = cluster.submit("a", 2, hold_s=60)
    site.pass_s(70)
    assert ({job.state for job in full}, late.state, late.shards) == ({"RUNNING"}, "PENDING", OF)
    site.until_all_end()
    assert late.state == "COMPLETED"


def test_a_job_for_a_node_that_is_gone_starts_elsewhere(site: Site, cluster: Cluster) -> None:
    job = cluster.submit("a", 2)
    site.pass_s(3)
    assert job.state == "RUNNING"
    cluster.requeue(job.job_id)
    job.wanted_node, job.begin_s = "gone", cluster.clock.wall()
    site.begin()
    site.pass_s(5)
    assert (job.state, job.node) == ("RUNNING", "n1")


def test_a_job_that_does_not_start_at_its_place_gets_another(site: Site, cluster: Cluster) -> None:
    first = cluster.submit("a", 2)
    site.controller.run(view_of(cluster.queue(), POLICY))
    first.wanted_node = "gone"  # as if its node had just gone down
    site.pass_s(30)
    assert (first.state, first.shards) == ("RUNNING", OF)


def test_no_job_is_placed_on_a_node_of_another_partition(site: Site, cluster: Cluster) -> None:
    job = cluster.submit("a", 2, partition="long")
    site.pass_s(5)
    assert (job.state, job.wanted_node) == ("PENDING", None)


def test_learned_data_survives_a_kill(site: Site, cluster: Cluster) -> None:
    before = shards(site)
    site.begin()
    site.pass_s(1)
    assert shards(site) == before


def test_a_damaged_store_keeps_every_job_alone_until_fixed(site: Site, cluster: Cluster) -> None:
    (path,) = Path(cluster.directory).glob("slurm-gpu/colocation.json")
    path.write_text("{")
    site.begin()
    site.pass_s(2)
    assert site.controller.table() is None
    path.unlink()
    site.pass_s(2)
    assert site.controller.table() is not None


def test_while_slurmctld_does_not_answer_there_is_no_table(site: Site, cluster: Cluster) -> None:
    cluster.submit("a", 2)
    queue = cluster.queue()
    cluster.down = True
    site.controller.run(view_of(queue, POLICY))
    assert site.controller.table() is None


def test_next_to_an_inactive_slurmctld_nothing_is_done(site: Site, cluster: Cluster) -> None:
    job = cluster.submit("a", 2)
    site.controller.run(view_of(cluster.queue(), POLICY, in_charge=False))
    assert (job.begin_s > cluster.clock.wall(), site.controller.table()) == (True, None)


def test_without_enforce_it_learns_and_places_no_job(site: Site, cluster: Cluster) -> None:
    site.policy = dataclasses.replace(POLICY, mode="observe")
    job = cluster.submit("a", 2)
    cluster.submit("b", None, 60)
    site.pass_s(100)
    assert job.state == "PENDING"
    assert site.controller._store is not None
    assert site.controller._store.profiles["b"].runs == 2


@pytest.mark.parametrize("is_accounted", [True, False])
def test_the_status_lists_co_runners(site: Site, cluster: Cluster, is_accounted: bool) -> None:
    cluster.is_accounted = is_accounted
    jobs = [cluster.submit("a", 2) for _ in range(4)]
    late = cluster.submit("c", 6)
    site.pass_s(10)
    reported = json.loads((Path(cluster.directory) / "colocation.json").read_text())
    there = [[one["job_id"] for one in gpu["jobs"]] for gpu in reported["gpus"]]
    assert list(map(len, there)) == [2, 2]
    assert sorted(job for gpu in there for job in gpu) == [job.job_id for job in jobs]
    assert [one["job_id"] for one in reported["waiting"]] == [late.job_id]
    assert (reported["shards_per_gpu"], len(reported["last"])) == (OF, 4)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_job_ends_and_no_gpu_is_overcommitted(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    cluster = Cluster(Clock(), str(tmp_path_factory.mktemp("any")), data.draw(st.integers(1, 2)))
    keys = "abc"
    cluster.memory = {key: data.draw(st.floats(0.05, 1)) for key in keys}
    cluster.util = {key: data.draw(st.floats(0.05, 1)) for key in keys}
    cluster.speeds = {(one, other): data.draw(st.floats(0.2, 1)) for one in keys for other in keys}
    planner = data.draw(st.sampled_from(["annealing", "greedy", "tetris"]))
    site = Site(
        cluster, dataclasses.replace(POLICY, jobs_per_gpu=data.draw(st.integers(2, 3)), planner=planner)
    )
    for _ in range(data.draw(st.integers(1, 10))):
        key = data.draw(st.sampled_from(keys))
        known = (site.controller.table().shares if site.controller.table() else {}).get(key)  # type: ignore[union-attr]
        wanted = known if known is not None and known <= 6 and data.draw(st.booleans()) else None
        cluster.submit(key, wanted, data.draw(st.integers(1, 60)), hold_s=data.draw(st.integers(5, 100)))
        site.pass_s(data.draw(st.integers(0, 40)))
        event = data.draw(st.sampled_from(["nothing", "nothing", "kill", "cancel", "gone", "back"]))
        if event == "kill":
            site.begin()
        elif event == "cancel":
            job = data.draw(st.sampled_from(list(cluster.all.values())))
            job.state, job.end_s = "CANCELLED", int(cluster.clock.wall())
        else:
            site.runs = event != "gone"
        for name in cluster.names:
            assert min(cluster.free(name)) >= 0
    site.until_all_end()
