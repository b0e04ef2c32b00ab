"""A state of the cluster contains the values and the job of each GPU; unknown values are gaps."""

import json

import pytest

from slurm_gpu.alerts.alert import Alert, AlertKind
from slurm_gpu.monitor.cluster.overview import make_overview
from slurm_gpu.wire import DeviceFacts, Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.runs import NodeReport
from tests.monitor.clusters import NOW_S, cluster, holds, job, node, waiting


def _two_jobs() -> ClusterState:
    return cluster(
        [node("n1", holds(7, 0, 1), holds(8, 2)), node("n2", partitions=["cpu", "gpu"])],
        [job(7, "alice"), job(8, "bob"), waiting(9, user="bob"), waiting(10, partition="cpu")],
    )


def _live(**devices: LiveDevice) -> dict[str, Live]:
    return {"n1": Live(at_s=NOW_S, devices=devices)}


def _alert(job_id: int) -> Alert:
    return Alert(job_id=job_id, kind=AlertKind.NEVER_USED, devices=("a",), since_s=NOW_S - 9.0, coverage=1.0)


def test_values_are_those_of_the_job_s_devices_in_slurm_gpud() -> None:
    # In the driver's order, which is neither Slurm's nor that of UUIDs.
    live = _live(
        a=LiveDevice(util_pct=50.0, jobs=(7,)), b=LiveDevice(util_pct=0.0, jobs=(7,)), c=LiveDevice(jobs=(8,))
    )
    facts = [DeviceFacts(uuid=uuid, node="n1", at_s=5, index=index) for uuid, index in (("a", 2), ("b", 0))]
    report = NodeReport(node="n1", last_seen_s=5.0, version=None, devices=facts)
    overview = make_overview("neuron", _two_jobs(), live, [report])
    values = {
        shown.row.job.job_id: [device.util_pct for device in shown.devices]
        for shown in overview.rows
        if shown.row.job is not None
    }
    assert values == {7: [0.0, 50.0], 8: [None]}


def test_users_are_ordered_by_their_allocated_gpus() -> None:
    assert make_overview("neuron", _two_jobs(), {}, []).users == [("alice", 2), ("bob", 1)]


def test_a_user_s_shards_count_as_fractions_and_unrequested_gpus_as_whole() -> None:
    state = cluster(
        [node("n1", holds(7, shared=[0]), holds(8, 1, 2), holds(9, shared=[0, 3]))],
        [job(7, "alice", n_gpus=0.25), job(8, "alice", n_gpus=1.0), job(9, "bob", n_gpus=None)],
    )
    assert make_overview("neuron", state, {}, []).users == [("alice", 2.25), ("bob", 2)]


def test_shards_are_added_exactly_and_whole_sums_are_integers() -> None:
    thirds = [job(number, "alice", n_gpus=0.333) for number in (7, 8, 9)]
    one = node("n1", *(holds(one.job_id, shared=[0]) for one in thirds), shards_per_gpu=3)
    users = make_overview("neuron", cluster([one], thirds), {}, []).to_json()["users"]
    assert json.dumps(users) == '[{"user": "alice", "gpus": 1}]'


def test_a_job_without_any_shards_uses_no_gpu() -> None:
    state = cluster([node("n1", holds(7, shared=[0]))], [job(7, "alice", n_gpus=0.0)])
    assert make_overview("neuron", state, {}, []).users == [("alice", 0)]


@pytest.mark.parametrize(
    ("whole", "n_gpus", "partition", "n"),
    [((), 0.5, "a", 0.25), ((), 0.5, None, 0.5), ((1,), 1.5, "a", 1.25)],
)
def test_only_the_gpus_of_the_shown_partition_count(
    whole: tuple[int, ...], n_gpus: float, partition: str | None, n: float
) -> None:
    nodes = [
        node("n1", holds(7, *whole, shared=[0]), partitions=["a"]),
        node("n2", holds(7, shared=[0]), partitions=["b"]),
    ]
    state = cluster(nodes, [job(7, "alice", n_gpus=n_gpus, n_nodes=2)])
    assert make_overview("neuron", state, {}, [], partition=partition).users == [("alice", n)]


def test_with_a_user_only_their_jobs_but_all_free_gpus_are_shown() -> None:
    overview = make_overview("neuron", _two_jobs(), {}, [], user="bob", alerts=[_alert(7), _alert(8)])
    assert [shown.row.job and shown.row.job.job_id for shown in overview.rows] == [8]
    assert overview.waiting_jobs == 1
    assert overview.types[0].free == 5
    assert [shown.job.user for shown in overview.alerts or ()] == ["bob"]


def test_with_a_partition_only_its_nodes_and_waiting_jobs_are_shown() -> None:
    overview = make_overview("neuron", _two_jobs(), {}, [], partition="cpu")
    assert [shown.row.nodes for shown in overview.rows] == [("n2",)]
    assert (overview.types[0].total, overview.waiting_jobs) == (4, 1)


def test_alerts_that_were_not_judged_are_null_and_not_empty() -> None:
    def attention_of(alerts: list[Alert] | None) -> object:
        return make_overview("neuron", _two_jobs(), {}, [], alerts=alerts).to_json()["attention"]

    assert (attention_of(None), attention_of([])) == (None, [])
    assert json.loads(json.dumps(attention_of([_alert(7)])))[0]["alert"] == "never_used"


def test_a_flag_of_a_job_that_has_just_gone_is_left_out() -> None:
    assert make_overview("neuron", _two_jobs(), {}, [], alerts=[_alert(99)]).alerts == []
