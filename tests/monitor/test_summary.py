"""The summary of a cluster counts every GPU once, and counts no allocated GPU as free."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.monitor.cluster.reasons import meaning, short
from slurm_gpu.monitor.cluster.summary import (
    GpuRow,
    GpuType,
    WaitReason,
    folded,
    gpu_rows,
    gpu_types,
    node_states,
    wait_reasons,
    with_whole_gpus,
)
from slurm_gpu.wire.answers.cluster import ClusterState
from tests.monitor.clusters import NOW_S, cluster, holds, job, node, waiting


def _of(rows: list[GpuRow]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(",".join(row.nodes), "" if row.job is None else row.job.id, tuple(row.gpus)) for row in rows]


def test_gpus_are_allocated_free_or_out_of_service() -> None:
    state = cluster(
        [
            node("n1", holds(7, 0, 1), holds(8, shared=[3])),
            node("n2", gpus={"v100": 2}, state="down", reason="disk", in_service=False),
            node("n3", holds(9, 1), gpus={"v100": 2}, state="mixed+drain", in_service=False),
        ],
        [job(7, end_s=NOW_S + 500), job(8, end_s=NOW_S + 50), job(9, end_s=NOW_S + 5)],
    )
    assert gpu_types(state) == [
        GpuType(name="a100", total=4, allocated=3, free=1, out_of_service=0, next_free_s=NOW_S + 50),
        # Unallocated GPUs of a draining node are not free.
        GpuType(name="v100", total=4, allocated=1, free=0, out_of_service=3, next_free_s=None),
    ]


def test_a_shared_gpu_is_free_when_the_last_has_gone() -> None:
    state = cluster(
        [node("n1", holds(7, shared=[0]), holds(8, shared=[0]), gpus={"a100": 1})],
        [job(7, end_s=NOW_S + 5), job(8, end_s=NOW_S + 500)],
    )
    assert gpu_types(state)[0].next_free_s == NOW_S + 500


@pytest.mark.parametrize(
    ("n_gpus", "n_nodes", "shared"), [(0.5, 1, True), (1.0, 1, False), (1.0, 2, True), (2.0, 2, False)]
)
def test_a_job_with_every_shard_of_a_gpu_does_not_share_it(n_gpus: float, n_nodes: int, shared: bool) -> None:
    nodes = [node(f"n{number}", holds(7, shared=[3])) for number in range(n_nodes)]
    state = cluster(nodes, [job(7, n_gpus=n_gpus, n_nodes=n_nodes)])
    assert [row.shared for row in gpu_rows(with_whole_gpus(state)) if row.job] == [shared] * n_nodes


@pytest.mark.parametrize("given", [{"end_s": None}, {"state": "SUSPENDED"}])
def test_without_an_end_the_time_of_release_is_unknown(given: dict[str, Any]) -> None:
    state = cluster([node("n1", holds(7, 0))], [job(7, **given)])
    assert gpu_types(state)[0].next_free_s is None
    assert gpu_rows(state)[0].frees_s is None


def test_gpus_allocated_at_an_unknown_position_are_not_counted_as_free() -> None:
    state = cluster([node("n1", holds(7), gpus_free=3)], [job(7)])
    (kind,) = gpu_types(state)
    assert (kind.allocated, kind.free) == (1, 3)
    (row,) = gpu_rows(state)
    assert (row.job, tuple(row.gpus), row.n_free) == (None, (0, 1, 2, 3), 3)


def test_a_node_of_several_types_is_distinguished_by_the_order_of_its_types() -> None:
    state = cluster([node("n1", holds(7, 1, 2), gpus={"h100": 2, "a100": 2})], [job(7)])
    assert {kind.name: (kind.allocated, kind.free) for kind in gpu_types(state)} == {
        "h100": (1, 1),
        "a100": (1, 1),
    }
    assert [row.gpu_type for row in gpu_rows(state)] == ["h100/a100"] * 2


def test_one_row_for_each_holder_and_one_for_what_is_free() -> None:
    state = cluster(
        [node("n1", holds(8, 2), holds(7, 0, 1)), node("n2", gpus={}), node("n3")],
        [job(7, "alice"), job(8, "bob")],
    )
    assert _of(gpu_rows(state)) == [
        ("n1", "8", (2,)),
        ("n1", "7", (0, 1)),
        ("n1", "", (3,)),
        ("n3", "", (0, 1, 2, 3)),
    ]


def test_nodes_that_are_alike_are_one_row() -> None:
    whole = [node(f"n{n}", holds(7, 0, 1, 2, 3)) for n in (1, 2, 4)]
    state = cluster([*whole[:2], node("n3"), whole[2], node("n5", state="idle+cloud")], [job(7)])
    assert _of(folded(gpu_rows(state))) == [
        ("n1,n2,n4", "7", (0, 1, 2, 3)),
        ("n3", "", (0, 1, 2, 3)),
        ("n5", "", (0, 1, 2, 3)),
    ]


def test_wait_reasons_count_array_tasks() -> None:
    state = cluster(
        [],
        [
            waiting(1, "Resources", n_gpus=4.0, start_s=NOW_S + 60),
            waiting(2, "Priority", n_tasks=10, n_gpus=2.0),
            waiting(3, "Resources", start_s=NOW_S + 30),
            waiting(4, "ReqNodeNotAvail, UnavailableNodes:n[1-2]"),
            job(5),
        ],
    )
    assert wait_reasons(state) == [
        WaitReason(reason="Priority", n_jobs=10, n_gpus=20.0, next_start_s=None),
        WaitReason(reason="Resources", n_jobs=2, n_gpus=5.0, next_start_s=NOW_S + 30),
        WaitReason(reason="ReqNodeNotAvail", n_jobs=1, n_gpus=1.0, next_start_s=None),
    ]


def test_nodes_that_are_out_of_service_come_first_with_the_reason() -> None:
    state = cluster(
        [
            node("n1"),
            node("n2", state="down", reason="disk is full", in_service=False),
            node("n3", reason="an old reason"),
        ]
    )
    assert [(one.state, one.reason, tuple(one.nodes)) for one in node_states(state)] == [
        ("down", "disk is full", ("n2",)),
        ("idle", None, ("n1", "n3")),
    ]


@pytest.mark.parametrize(
    ("reason", "begins"),
    [
        ("Resources", "next in line"),
        ("QOSMaxGRESPerUser", "would exceed a limit per user of its QOS, alone or with other jobs"),
        ("MaxCpuPerAccount", "would exceed a limit per account of its QOS, alone or with other jobs"),
        ("MaxGRESPerAccount", "would exceed a limit per account of its QOS, alone or with other jobs"),
        ("QOSGrpGRES", "would exceed a limit of its QOS, alone or with other jobs"),
        ("QOSMaxNodePerJob", "larger than its QOS allows on the nodes that Slurm tried"),
        ("AssocGrpGRES", "would exceed a limit of its account, alone or with other jobs"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "nodes that it needs"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "nodes",
        ),
    ],
)
def test_a_reason_is_explained(reason: str, begins: str) -> None:
    assert (meaning(reason) or "").startswith(begins)


def test_an_unknown_reason_is_shown_unchanged() -> None:
    assert meaning("SomethingNew") is None
    assert short("SomethingNew, with more") == "SomethingNew"


@st.composite
def _clusters(draw: st.DrawFn) -> ClusterState:
    jobs = {n: job(n, state=draw(st.sampled_from(["RUNNING", "COMPLETING"]))) for n in range(1, 5)}
    nodes = []
    for n in range(draw(st.integers(0, 4))):
        gpus = draw(st.dictionaries(st.sampled_from(["a100", "v100", ""]), st.integers(1, 4), max_size=2))
        places = list(range(sum(gpus.values())))
        owners = [draw(st.sampled_from([None, *jobs])) for _ in places]
        holders = [
            holds(job_id, *own)
            for job_id in jobs
            if (own := [place for place, owner in zip(places, owners, strict=True) if owner == job_id])
        ]
        nodes.append(node(f"n{n}", *holders, gpus=gpus, in_service=draw(st.booleans())))
    return cluster(nodes, list(jobs.values()))


@given(_clusters())
def test_every_gpu_is_counted_once(state: ClusterState) -> None:
    kinds = gpu_types(state)
    n_gpus = sum(sum(one.gpus.values()) for one in state.nodes)
    assert sum(kind.total for kind in kinds) == n_gpus
    assert all(min(kind.allocated, kind.free, kind.out_of_service) >= 0 for kind in kinds)
    assert sum(kind.free for kind in kinds) == sum(one.gpus_free for one in state.nodes)
    rows = gpu_rows(state)
    assert sum(len(row.gpus) for row in rows) == n_gpus
    assert sum(row.n_free for row in rows) == sum(kind.free for kind in kinds)
    assert sum(len(row.nodes) * len(row.gpus) for row in folded(rows)) == n_gpus
