"""Events between two cycles, or between a query and its answer, are not attributed to other jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from itertools import product
from pathlib import Path

import pytest

from slurm_gpu.controller.colocation import store as stores
from slurm_gpu.controller.colocation.database_queries import DatabaseQueries, QueryResults
from slurm_gpu.controller.colocation.guard import LEAST_S
from slurm_gpu.errors import SlurmError
from tests.controller.fakes import Clock

from .cluster import OF, POLICY, Cluster, Job, Site, view_of

PROMISE = dataclasses.replace(POLICY, goal="considerate", slowdown=1.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    found = Cluster(Clock(), str(tmp_path))
    found.memory = {"a": 0.2, "b": 0.3, "c": 0.2}
    found.util = {"a": 0.4, "b": 0.5, "c": 0.3}
    return found


def between_cycles(site: Site, seconds: int) -> None:
    site.runs = False
    site.pass_s(seconds)
    site.runs = True


def until(site: Site, what: Callable[[], bool], most_s: int = 400) -> None:
    for _ in range(most_s):
        if what():
            return
        site.pass_s(1)
    raise AssertionError(f"the condition is not met within {most_s} s")


def placed(job: Job) -> bool:
    return job.wanted_node is not None or job.state == "RUNNING"


def test_a_newcomer_that_runs_out_of_memory_before_it_was_seen_to_run_gets_its_run_alone(
    site: Site, cluster: Cluster
) -> None:
    cluster.n_gpus = 1
    stays = cluster.submit("a", 2)
    until(site, lambda: stays.state == "RUNNING")
    newcomer = cluster.submit("b", 3, fails_with="a")
    until(site, lambda: placed(newcomer))
    between_cycles(site, 3)
    assert newcomer.state == "FAILED"
    site.until_all_end()
    assert (newcomer.state, newcomer.restarts, newcomer.shards) == ("COMPLETED", 1, OF)
    assert (
        frozenset(("a", "b")) in stores.read(Path(cluster.directory) / "slurm-gpu" / stores.FILE_NAME).apart
    )


def test_a_job_that_failed_alone_before_it_was_observed_is_left_alone(site: Site, cluster: Cluster) -> None:
    job = cluster.submit("b", 3)
    until(site, lambda: placed(job))
    between_cycles(site, 1)
    job.state, job.end_s = "FAILED", int(cluster.clock.wall())
    site.pass_s(30)
    assert (job.state, job.restarts) == ("FAILED", 0)


def test_a_job_on_a_gpu_that_was_taken_out_of_the_configuration_keeps_others_off_that_node_alone(
    site: Site, cluster: Cluster
) -> None:
    jobs = [cluster.submit("a", None, 100) for _ in range(2)]
    until(site, lambda: all(job.state == "RUNNING" for job in jobs))
    waits = cluster.submit("b", 3)
    cluster.n_gpus = 1
    cluster.names.append("n2")
    site.pass_s(10)
    assert (waits.state, waits.wanted_node) == ("RUNNING", "n2")
    site.until_all_end()


class Slow:
    """Answer immediately until the utilisation has been measured for long enough, and then on request."""

    def __init__(self) -> None:
        self.waiting: tuple[Future[QueryResults], QueryResults] | None = None

    def __call__(self, task: Callable[[], QueryResults]) -> Future[QueryResults]:
        future: Future[QueryResults] = Future()
        answers = task()
        if any(seconds >= LEAST_S for _, seconds in answers.utilisation.values()):
            self.waiting = future, answers
        else:
            future.set_result(answers)
        return future

    def answer(self) -> None:
        assert self.waiting is not None
        future, answers = self.waiting
        future.set_result(answers)


def test_a_measurement_with_a_departed_co_runner_does_not_count_for_the_next(
    site: Site, cluster: Cluster
) -> None:
    site.policy, cluster.n_gpus = PROMISE, 1
    cluster.speeds = {("a", "b"): 0.5}
    slow = Slow()
    site.controller._queries = DatabaseQueries(cluster, slow)
    site.expect(2000)
    stays, goes = cluster.submit("a", 2, 2000), cluster.submit("b", 3, 2000)
    until(site, lambda: stays.state == goes.state == "RUNNING")
    until(site, lambda: slow.waiting is not None)
    goes.state, goes.end_s = "CANCELLED", int(cluster.clock.wall())
    comes = cluster.submit("c", 2, 2000)
    until(site, lambda: comes.state == "RUNNING")
    site.pass_s(1)
    slow.answer()
    site.pass_s(1)
    assert (comes.state, comes.restarts, site.audited) == ("RUNNING", 0, [])


def poll(site: Site, cluster: Cluster, *, in_charge: bool, seconds: int = 1) -> None:
    for _ in range(seconds):
        cluster.second()
        site.controller.run(view_of(cluster.queue(), site.policy, in_charge=in_charge))


def known(cluster: Cluster) -> set[str]:
    return set(stores.read(Path(cluster.directory) / "slurm-gpu" / stores.FILE_NAME).profiles)


def test_data_learned_by_the_backup_is_not_overwritten(site: Site, cluster: Cluster) -> None:
    backup = Site(cluster)
    cluster.memory |= {"d": 0.1, "e": 0.1}
    poll(site, cluster, in_charge=False)
    poll(backup, cluster, in_charge=True)
    cluster.submit("d", None, 20)
    poll(backup, cluster, in_charge=True, seconds=60)
    assert "d" in known(cluster)
    poll(backup, cluster, in_charge=False)
    poll(site, cluster, in_charge=True)
    cluster.submit("e", None, 20)
    poll(site, cluster, in_charge=True, seconds=60)
    assert known(cluster) >= {"a", "b", "d", "e"}


def test_a_change_of_co_runners_while_sharing_was_off_teaches_nothing(site: Site, cluster: Cluster) -> None:
    cluster.n_gpus = 1
    cluster.speeds = {("a", "b"): 0.5}
    job, first = cluster.submit("a", 2, 200), cluster.submit("c", 2, 1000)
    until(site, lambda: job.state == first.state == "RUNNING")
    site.pass_s(10)
    between_cycles(site, 0)
    site.controller.run(view_of(cluster.queue(), None))
    first.state, first.end_s = "CANCELLED", int(cluster.clock.wall())
    second = cluster.submit("b", 3, 100, hold_s=0)
    between_cycles(site, 150)
    assert second.state == "COMPLETED"
    site.until_all_end()
    site.pass_s(30)
    assert site.controller._store is not None
    assert ("a", "c") not in site.controller._store.speeds


def test_a_job_that_may_not_be_requeued_is_measured_once(
    site: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job_id: int) -> None:
        raise SlurmError("Requested operation is presently disabled")

    monkeypatch.setattr(cluster, "requeue", refuse)
    site.policy, cluster.n_gpus = PROMISE, 1
    cluster.speeds = {("a", "b"): 0.5}
    site.expect(2000)
    stays, goes = cluster.submit("a", 2, 2000), cluster.submit("b", 3, 2000)
    until(site, lambda: stays.state == goes.state == "RUNNING")
    site.pass_s(100)
    assert site.controller._store is not None
    assert site.controller._store.speeds["a", "b"][1] == 1
    assert frozenset(("a", "b")) in site.controller._store.apart


def test_a_job_that_may_not_be_requeued_is_logged_once(
    site: Site, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(job_id: int) -> None:
        raise SlurmError("Requested operation is presently disabled")

    monkeypatch.setattr(cluster, "requeue", refuse)
    site.policy = PROMISE
    cluster.speeds = dict.fromkeys(product("ab", "ab"), 0.5)
    site.expect(2000)
    jobs = [cluster.submit(key, shards, 2000) for key, shards in (("a", 2), ("b", 3), ("a", 2), ("b", 3))]
    until(site, lambda: all(cluster.co_runners(job) for job in jobs))
    site.pass_s(100)
    reported = [record.args[0] for record in caplog.records if "keeps sharing its GPU" in record.msg]
    assert len(reported) == len(set(reported)) == 2


@pytest.mark.parametrize("slow", [False, True])
def test_a_job_that_loads_data_is_not_slowed_down_by_its_co_runner(cluster: Cluster, slow: bool) -> None:
    cluster.n_gpus, cluster.memory = 1, {"a": 0.2, "loads": 0.2}
    cluster.util, cluster.loads_s = {"a": 0.3, "loads": 0.6}, {"loads": 60}
    site = Site(cluster, PROMISE)
    site.pass_s(1)
    for key in cluster.memory:
        cluster.submit(key, None, 1200)
    site.until_all_end()
    site.pass_s(15)
    cluster.speeds = {("loads", "a"): 0.5} if slow else {}
    jobs = [cluster.submit("a", 2, 1200), cluster.submit("loads", 2, 1200)]
    until(site, lambda: all(job.state == "RUNNING" for job in jobs))
    site.pass_s(70)
    assert site.audited == []
    site.pass_s(120)
    assert [act for act, _, _ in site.audited] == (["colocation ended"] if slow else [])


@pytest.mark.parametrize("who", [0, 1], ids=["who came first", "the newcomer"])
def test_a_suspended_job_does_not_count_as_slowed_down_and_teaches_nothing(
    site: Site, cluster: Cluster, who: int
) -> None:
    site.policy, cluster.n_gpus = PROMISE, 1
    for pair in (("a", "b"), ("b", "a")):
        site.store.ran_with(*pair, 1.0)
    jobs = [cluster.submit("a", 2, 200), cluster.submit("b", 3, 200)]
    until(site, lambda: all(job.state == "RUNNING" for job in jobs))
    assert cluster.co_runners(jobs[0]) == [jobs[1]]
    jobs[who].state = "SUSPENDED"
    site.pass_s(120)
    jobs[who].state = "RUNNING"
    site.pass_s(60)
    assert site.audited == []
    site.until_all_end()
    store = stores.read(Path(cluster.directory) / "slurm-gpu" / stores.FILE_NAME)
    assert not store.apart
    # The suspended job's co-runner ran alone for some time, so no speed is measured from its run, either.
    assert {times for _, times in store.speeds.values()} == {1}


def test_a_suspended_run_does_not_count_for_run_times(site: Site, cluster: Cluster) -> None:
    before = stores.read(Path(cluster.directory) / "slurm-gpu" / stores.FILE_NAME).profiles["a"]
    job = cluster.submit("a", None, 100)
    until(site, lambda: job.state == "RUNNING")
    site.pass_s(20)
    job.state = "SUSPENDED"
    site.pass_s(300)
    job.state = "RUNNING"
    site.until_all_end()
    site.pass_s(30)
    assert stores.read(Path(cluster.directory) / "slurm-gpu" / stores.FILE_NAME).profiles["a"] == before
