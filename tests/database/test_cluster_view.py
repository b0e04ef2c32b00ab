"""GET /v1/cluster returns slurmctld's nodes and jobs, as far as they are visible to the user."""

from dataclasses import replace

import pytest

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.accounting.slurm_view import JOBS_FOR_S, QueueState
from slurm_gpu.database.api.cluster import show_cluster
from slurm_gpu.database.maintenance.node_periods import Places
from slurm_gpu.errors import DatabaseError
from slurm_gpu.http.identity import Caller
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.wire.answers.cluster import ClusterAllocation, ClusterState
from slurm_gpu.wire.answers.codec import from_json, to_json
from tests.database.running_server import NOBODY, ROOT, Running
from tests.database.samples import node, queued

ALICE = Caller(1001, "alice", sees_all=False, writes=False)
OPERATOR = Caller(0, "root", sees_all=True, writes=True)


def seen_by(caller: Caller, *jobs: QueuedJob) -> ClusterState:
    nodes = {name: node(number) for number, name in ((1, "n1"), (2, "n2"))}
    queue = QueueState(1000.0, {job.job_id: job for job in jobs}, {})
    return show_cluster(nodes, queue, Places({"n1": "dgx"}, {"n2": "pod2"}), caller)


def test_nodes_have_their_zones_and_allocations() -> None:
    state = seen_by(
        OPERATOR, queued(job_id=7, state="RUNNING", nodes=("n1",), gpu_index={"n1": {"gpu": (0, 2)}})
    )
    first, second = state.nodes
    assert (first.server_type, first.zone, second.server_type, second.zone) == ("dgx", None, None, "pod2")
    assert first.holders == [ClusterAllocation(job_id=7, gpus=[0, 2], shared_gpus=[])]
    assert second.holders == []


def test_pending_jobs_and_jobs_with_nodes_are_shown_and_no_others() -> None:
    state = seen_by(
        OPERATOR,
        queued(job_id=9, state="PENDING", nodes=(), gpu_index={}),
        queued(job_id=8, state="COMPLETED", nodes=("n1",)),
        queued(job_id=7, state="SUSPENDED", nodes=("n1",)),
    )
    assert [job.job_id for job in state.jobs] == [7, 9]


@pytest.mark.parametrize(
    ("asked", "nodes", "n_gpus"),
    [
        ({"gres/gpu": 2}, ("n1",), 2.0),
        ({"gres/shard": 2}, ("n1",), 0.5),
        ({"gres/shard": 6}, ("n1", "n2"), 1.5),
        ({"gres/shard": 1}, (), 0.25),
        ({"cpu": 4}, (), 0.0),
    ],
)
def test_requested_shards_count_as_parts_of_a_gpu(
    asked: dict[str, float], nodes: tuple[str, ...], n_gpus: float
) -> None:
    state = "RUNNING" if nodes else "PENDING"
    (job,) = seen_by(
        OPERATOR, queued(state=state, nodes=nodes, gpu_index={}, gres_per_node="", tres_requested=asked)
    ).jobs
    assert job.n_gpus == n_gpus


def test_shards_of_nodes_that_have_none_are_a_gap() -> None:
    nodes = {"n1": node(1, shards=0)}
    queue = QueueState(1000.0, {1: queued(state="PENDING", nodes=(), tres_requested={"gres/shard": 2})}, {})
    (job,) = show_cluster(nodes, queue, Places({}, {}), OPERATOR).jobs
    assert job.n_gpus is None


@pytest.mark.parametrize(("caller", "name"), [(ALICE, None), (OPERATOR, "secret")])
def test_the_name_of_a_job_is_its_owners_and_operators(caller: Caller, name: str | None) -> None:
    (job,) = seen_by(caller, queued(job_id=7, uid=1002, user="bob", name="secret")).jobs
    assert (job.full, job.name, job.user) == (name is not None, name, "bob")


def test_it_comes_over_the_wire_as_it_is(server: Running) -> None:
    server.slurm.queue = [queued(job_id=7, nodes=("here",), gpu_index={"here": {"gpu": (1,)}})]
    server.clock.now += 60  # the earlier queue is outdated
    with DatabaseClient(server.config) as client:
        state = client.cluster()
    assert from_json(ClusterState, to_json(state)) == state
    (here,) = (one for one in state.nodes if one.node == "here")
    assert here.holders == [ClusterAllocation(job_id=7, gpus=[1], shared_gpus=[])]


def test_free_gpus_are_as_new_as_allocated_ones(server: Running) -> None:
    with DatabaseClient(server.config) as client:
        before = {one.node: one for one in client.cluster().nodes}["here"]
        server.slurm.queue = [queued(job_id=7, nodes=("here",), gpu_index={"here": {"gpu": (1,)}})]
        server.slurm.node_list = [
            replace(one, state="mixed+drain", reason="fan", gpus_allocated={"a100": 1})
            if one.name == "here"
            else one
            for one in server.slurm.node_list
        ]
        server.clock.now += JOBS_FOR_S + 1
        after = {one.node: one for one in client.cluster().nodes}["here"]
    assert (before.state, before.in_service) == ("idle", True)
    assert (after.state, after.in_service, after.gpus_free) == ("mixed+drain", False, 0)
    assert after.holders == [ClusterAllocation(job_id=7, gpus=[1], shared_gpus=[])]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_every_user_may_read_the_cluster(server: Running) -> None:
    assert server.asked_by(NOBODY, "GET", "/v1/cluster")[0] == 200


def test_an_invalid_cluster_is_reported() -> None:
    for wrong in (
        None,
        {},
        {"as_of_s": 1, "nodes": [{}], "jobs": []},
        {"as_of_s": 1, "nodes": 3, "jobs": []},
    ):
        with pytest.raises(DatabaseError, match="cannot be read"):
            from_json(ClusterState, wrong)
