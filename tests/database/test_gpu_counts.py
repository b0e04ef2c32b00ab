"""All counts of a job's GPUs agree for every accounting setup and spelling of Slurm."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.controller.colocation.free_shards import has_gpus
from slurm_gpu.controller.queue.amounts import CountingFacts, mgpu_of_total
from slurm_gpu.database.accounting.importer import store_changed_runs
from slurm_gpu.database.accounting.reconcile import reconcile
from slurm_gpu.database.accounting.run_row import run_row
from slurm_gpu.database.accounting.writer import store_records
from slurm_gpu.database.api.cluster import cluster_state
from slurm_gpu.database.forecasts.runs import job_run
from slurm_gpu.database.ingest.job_facts import job_facts
from slurm_gpu.database.queries.run_filter import SORTS, RunFilter
from slurm_gpu.database.queries.run_queries import find_runs
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.http.identity import Caller
from slurm_gpu.monitor.cluster.summary import wait_reasons
from slurm_gpu.policy.explain.replay import as_request
from slurm_gpu.policy.lua.bundle import SiteFacts
from slurm_gpu.reports.period import ReportPeriod
from slurm_gpu.reports.recommend.past import PastRun, rebuild
from slurm_gpu.reports.rows import read_rows
from slurm_gpu.slurm import sacct
from slurm_gpu.slurm.client import QueuedJob, SlurmNode, SlurmSettings
from slurm_gpu.slurm.occupancy import occupancy
from slurm_gpu.slurm.scontrol import JobTexts, parse_jobs, parse_nodes
from slurm_gpu.slurm.tres import SharesPerGpu, count_mgpu, parse_gres, parse_job_tres, parse_tres, uses_gpus
from tests.database.samples import CLUSTER, T0, node, queued, record, row, segment
from tests.slurm.printed import MARK, NAMES, text_of

_HOST = "cpu=8,mem=64G,node=1,billing=8"
_PER_GPU = SharesPerGpu(shard=4, mps=100)
# Output of Slurm and its number of GPUs, with 4 shards and 100 MPS per GPU.
_TRES: dict[str, int] = {
    _HOST: 0,
    "cpu=1": 0,
    f"{_HOST},gres/gpu=0": 0,
    f"{_HOST},gres/gpu=1": 1000,
    f"{_HOST},gres/gpu=8": 8000,
    "gres/gpu=2,cpu=4": 2000,
    f"{_HOST},gres/gpu=1024": 1_024_000,
    f"{_HOST},gres/gpu:a100=1": 1000,
    f"{_HOST},gres/gpu:a100=8": 8000,
    f"{_HOST},gres/gpu:a100=0": 0,
    f"{_HOST},gres/gpu:3090=2": 2000,
    f"{_HOST},gres/gpu:A100-SXM4-80GB=2": 2000,
    f"{_HOST},gres/gpu:a100_3g.20gb=3": 3000,
    f"{_HOST},gres/gpu:a100=4,gres/gpu:v100=4": 8000,
    f"{_HOST},gres/gpu:a100=4,gres/gpu:v100=0": 4000,
    f"{_HOST},gres/gpu=2,gres/gpu:a100=2": 2000,
    f"{_HOST},gres/gpu:a100=2,gres/gpu=2": 2000,
    f"{_HOST},gres/gpu=8,gres/gpu:a100=4,gres/gpu:v100=4": 8000,
    f"{_HOST},gres/gpu=8,gres/gpu:a100=4": 8000,
    f"{_HOST},gres/gpu=0,gres/gpu:a100=4": 4000,
    f"{_HOST},gres/shard=1": 250,
    f"{_HOST},gres/shard=4": 1000,
    f"{_HOST},gres/shard=6": 1500,
    f"{_HOST},gres/shard=0": 0,
    f"{_HOST},gres/shard:a100=2": 500,
    f"{_HOST},gres/shard=2,gres/shard:a100=2": 500,
    f"{_HOST},gres/mps=10": 100,
    f"{_HOST},gres/mps=50": 500,
    f"{_HOST},gres/mps=100": 1000,
    f"{_HOST},gres/mps=150": 1500,
    f"{_HOST},gres/mps=0": 0,
    f"{_HOST},gres/mps:a100=50": 500,
    f"{_HOST},gres/mps=50,gres/mps:a100=50": 500,
    f"{_HOST},gres/gpu=1,gres/shard=2": 1500,
    f"{_HOST},gres/gpu=1,gres/mps=25": 1250,
    f"{_HOST},gres/gpu:a100=1,gres/shard=2": 1500,
    f"{_HOST},gres/gpu=2,gres/gpu:a100=2,gres/shard=1": 2250,
    f"{_HOST},gres/craynetwork=2": 0,
    f"{_HOST},gres/gpumem=80": 0,
    f"{_HOST},license/gpu=3,gres/nvme=1": 0,
    f"{_HOST},energy=18446744073709551614,gres/gpu=3": 3000,
}
every = pytest.mark.parametrize(("text", "mgpu"), list(_TRES.items()))


def mps_node(number: int, **given: Any) -> SlurmNode:
    """Return a node of four GPUs with both shards and MPS, which Slurm does not allow."""
    return node(number, mps=400, **given)


def is_shared(text: str) -> bool:
    return any(item.startswith(("gres/shard", "gres/mps")) and item[-2:] != "=0" for item in text.split(","))


def asked(text: str, mgpu: int) -> int | None:
    """Return the GPUs requested if no nodes are known: the sizes of shards and MPS are then unknown."""
    return None if is_shared(text) else mgpu


def waiting(text: str) -> QueuedJob:
    return queued(
        state="PENDING",
        nodes=(),
        gpu_index={},
        gres_per_node="",
        tres_allocated={},
        tres_requested=parse_job_tres(text),
    )


def running(text: str) -> QueuedJob:
    tres = parse_job_tres(text)
    return queued(tres_requested=tres, tres_allocated=tres, gpu_index={}, gres_per_node="")


@pytest.fixture(scope="module")
def lua_amounts() -> Callable[[CountingFacts], Any]:
    """Return amounts.lua, generated from the facts of a policy."""
    source = Path("plugins/job_submit/amounts.lua").read_text()
    lua = importlib.import_module("lupa.lua51").LuaRuntime()
    load = lua.execute(f"return function(...) {source} end")
    return lambda facts: load(lua.table_from(asdict(facts)))


def test_there_are_forty() -> None:
    assert len(_TRES) >= 40


@every
def test_the_one_function(text: str, mgpu: int) -> None:
    tres = parse_tres(text)
    assert count_mgpu(tres, _PER_GPU) == mgpu
    assert count_mgpu(parse_job_tres(text), _PER_GPU) == mgpu
    assert count_mgpu(tres) == asked(text, mgpu)
    assert count_mgpu(tres, _PER_GPU, is_accounted=False) == (mgpu or None)
    assert uses_gpus(tres) == (mgpu > 0)


@every
def test_imported_runs(text: str, mgpu: int) -> None:
    (run,) = sacct.parse_rows([text_of([{"AllocTRES": text, "ReqTRES": text}])], NAMES, MARK)
    imported = run_row(run, {"n1": mps_node(1)})
    assert (imported.allocated_mgpu, imported.requested_mgpu) == (mgpu, mgpu)
    assert run_row(run, {}).requested_mgpu == asked(text, mgpu)


def test_runs_that_never_began_in_answers_filters_and_reports(database: Database) -> None:
    never = {"state": "CANCELLED", "start_s": None, "end_s": T0 + 99, "elapsed_s": 0, "nodes": ""}
    rows = [
        row(job_id=n, submit_s=T0 + n, tres_requested=parse_job_tres(text), tres_allocated={}, **never)
        for n, text in enumerate(_TRES, 1)
    ]
    database.write(lambda connection: store_changed_runs(connection, [run_row(one, {}) for one in rows]))
    reconcile(database)
    root = Caller(0, "root", sees_all=True, writes=True)
    for least in (None, 0.001, 2, 8):
        query = {"limit": "500"} if least is None else {"limit": "500", "min_gpus": str(least)}
        with database.reading() as connection:
            found = find_runs(connection, CLUSTER, RunFilter.from_query(query), root, T0 + 5000.0).runs
        wanted = {
            n: None if (n_mgpu := asked(text, mgpu)) is None else n_mgpu / 1000
            for n, (text, mgpu) in enumerate(_TRES.items(), 1)
        }
        expected = {n: gpus for n, gpus in wanted.items() if least is None or (gpus or 0) >= least}
        assert {run.job_id: run.n_gpus for run in found} == expected
    with database.reading() as connection:
        shown = read_rows(connection, CLUSTER, ReportPeriod(since=date(2020, 1, 1), until=date(2040, 1, 1)))
    numbers = shown.numbers
    reported = dict(zip(numbers["job_id"].tolist(), numbers["requested_mgpu"].tolist(), strict=True))
    assert {n: None if np.isnan(n_mgpu) else n_mgpu / 1000 for n, n_mgpu in reported.items()} == wanted


@every
def test_the_page_and_notices(text: str, mgpu: int) -> None:
    for job in (waiting(text), running(text)):
        (shown,) = cluster_state(occupancy([mps_node(1)], [job]), [job], T0).jobs
        assert shown.n_gpus == mgpu / 1000


@every
def test_forecasts(text: str, mgpu: int) -> None:
    gpus = job_run(waiting(text)).gpus[0]
    assert gpus == mgpu / 1000 if not is_shared(text) else 0 < gpus <= 1


@every
def test_sums_of_limits_and_their_lua(
    lua_amounts: Callable[[CountingFacts], Any], text: str, mgpu: int
) -> None:
    assert mgpu_of_total(parse_tres(text), CountingFacts(shards_per_gpu=4)) == mgpu
    assert (lua_amounts(CountingFacts(shards_per_gpu=4)).total_mgpu(text) or 0) == mgpu


_TOTAL = "cpu=8,gres/gpu={},gres/shard={},gres/mps={}"
_N = st.integers(0, 10_000)
_SIZE = st.none() | st.integers(1, 1000)


@given(gpus=_N, shards=_N, mps=_N, shards_per_gpu=_SIZE, mps_per_gpu=_SIZE)
def test_python_and_lua_agree_on_any_size_of_a_share(
    lua_amounts: Callable[[CountingFacts], Any], gpus: int, shards: int, mps: int, **sizes: int | None
) -> None:
    text, facts = _TOTAL.format(gpus, shards, mps), CountingFacts(**sizes)
    assert mgpu_of_total(parse_tres(text), facts) == lua_amounts(facts).total_mgpu(text)


@pytest.mark.parametrize(("count", "of_one", "mgpu"), [(1, 16, 63), (3, 16, 188), (1, 3, 333), (2, 3, 667)])
def test_halves_are_rounded_up_everywhere(count: int, of_one: int, mgpu: int) -> None:
    tres = {"cpu": 1.0, "node": 1.0, "gres/shard": float(count)}
    parted = node(1, shards=4 * of_one)
    assert count_mgpu(tres, SharesPerGpu(shard=of_one)) == mgpu
    assert run_row(row(tres_allocated=tres), {"n1": parted}).allocated_mgpu == mgpu
    job = queued(tres_requested=tres, tres_allocated=tres, gpu_index={"n1": {"shard": (0,)}})
    assert job_facts(job, "n1", parted)["granted_mgpu"] == mgpu
    (shown,) = cluster_state(occupancy([parted], [job]), [job], T0).jobs
    assert shown.n_gpus == mgpu / 1000


def test_limits_take_the_size_of_mps_from_the_nodes(lua_amounts: Callable[[CountingFacts], Any]) -> None:
    settings = SlurmSettings(
        cluster="lab", version="24.11.5", slurm_user="slurm", slurm_user_uid=1, conf_path="", raw={}
    )
    facts = SiteFacts.of(settings, [node(1, shards=0, mps=800)], Path("/run"), "UTC")
    assert (facts.shards_per_gpu, facts.mps_per_gpu) == (None, 200)
    counted = CountingFacts(mps_per_gpu=facts.mps_per_gpu)
    text = "cpu=1,gres/mps=100"
    assert mgpu_of_total(parse_tres(text), counted) == lua_amounts(counted).total_mgpu(text) == 500


@pytest.mark.parametrize(
    ("configured", "unaccounted"),
    [
        (",gres/gpu=4,gres/mps=400", []),
        (",gres/gpu:a100=2,gres/gpu:v100=2,gres/mps=400", []),
        (",gres/gpu:a100=2,gres/mps=400", ["gpu"]),
        (",gres/mps=400", ["gpu"]),
    ],
)
def test_a_type_that_is_not_tracked_is_not_accounted_for(configured: str, unaccounted: list[str]) -> None:
    printed = _MPS_NODE.replace("gpu:a100:4,", "gpu:a100:2,gpu:v100:2,")
    (found,) = parse_nodes(printed.format(configured=configured, allocated=""))
    assert found.unaccounted == unaccounted


@every
def test_replay_of_a_policy(text: str, mgpu: int) -> None:
    sums: dict[str, float] = {}
    for entry in parse_gres(as_request(parse_job_tres(text))):
        sums[f"gres/{entry.name}"] = sums.get(f"gres/{entry.name}", 0) + entry.count
    assert count_mgpu(sums, _PER_GPU) == mgpu


@every
def test_recommended_limits(text: str, mgpu: int) -> None:
    tres = parse_job_tres(text)
    run = PastRun(
        job_id=1,
        user="alice",
        uid=1001,
        account="vision",
        qos="normal",
        partition="gpu",
        eligible_s=T0,
        start_s=T0 + 1,
        end_s=T0 + 100,
        time_limit_s=3600,
        n_nodes=1,
        tres_requested=tres,
        tres_allocated=tres,
        n_gpus=mgpu / 1000,
    )
    (counted,) = rebuild([run], [mps_node(1)], T0, T0 + 1000).requested_mgpu()
    assert counted == mgpu


@every
def test_places_of_jobs_that_share(text: str, mgpu: int) -> None:
    assert has_gpus(running(text)) == (mgpu > 0)


@pytest.mark.parametrize(
    ("index", "granted"),
    [({"mps": (0,)}, 500), ({"shard": (0,)}, None), ({"mps": ()}, 500), ({"gpu": (0,)}, None)],
)
def test_each_of_two_mps_jobs_is_granted_its_half(
    index: dict[str, tuple[int, ...]], granted: int | None
) -> None:
    job = queued(tres_allocated={"cpu": 1, "gres/mps": 50}, gpu_index={"n1": index})
    assert job_facts(job, "n1", mps_node(1))["granted_mgpu"] == granted


@pytest.mark.parametrize(
    ("index", "unaccounted", "granted"),
    [
        ({}, ("gpu", "mps"), None),
        ({"gpu": (2,)}, ("gpu", "mps"), 1000),
        ({}, ("gpu",), 1000),
        ({}, (), 1000),
    ],
)
def test_no_job_is_granted_a_whole_gpu_of_which_it_may_have_a_share(
    index: dict[str, tuple[int, ...]], unaccounted: tuple[str, ...], granted: int | None
) -> None:
    job = queued(state="COMPLETING", tres_allocated={"cpu": 1}, gpu_index={"n1": index})
    assert job_facts(job, "n1", mps_node(1, unaccounted=unaccounted))["granted_mgpu"] == granted


def test_unaccounted_gres_are_read_from_the_layout_of_a_job() -> None:
    printed = (
        "JobId=12 JobName=wrap\n   UserId=alice(1001) GroupId=alice(1001)\n   JobState=RUNNING Reason=None\n"
        "   NumNodes=2 NumCPUs=2\n   NodeList=n[1-2]\n   TRES=cpu=2,mem=2G,node=2,billing=2\n"
        "   JOB_GRES=mps:40\n     Nodes=n[1-2] CPU_IDs=1 Mem=1024 GRES=mps:20(IDX:1)\n"
        "   Command=/tmp/GRES=gpu:8\n"
    )
    ([job], _) = parse_jobs(printed, {12: JobTexts("wrap", "")})
    assert job.tres_allocated["gres/mps"] == job.tres_requested["gres/mps"] == 40
    nodes = [mps_node(1, unaccounted=("gpu", "mps")), mps_node(2, unaccounted=("gpu", "mps"))]
    (shown,) = cluster_state(occupancy(nodes, [job]), [job], T0).jobs
    assert shown.n_gpus == 0.4
    assert [job_facts(job, one.name, one)["granted_mgpu"] for one in nodes] == [200, 200]


# Output of slurmctld 22.05 for a node with MPS, and two jobs that share one of its GPUs.
_MPS_NODE = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=3 CPUEfctv=32 CPUTot=32 CPULoad=0.03
   ActiveFeatures=zone1,a100
   Gres=gpu:a100:4,mps:a100:400
   GresUsed=gpu:a100:2(IDX:1-2),mps:a100:1(IDX:0)
   NodeAddr=127.0.0.1 NodeHostName=localhost Port=17001 Version=22.05.8
   RealMemory=100000 AllocMem=34816 FreeMem=23323 Sockets=32 Boards=1
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   CfgTRES=cpu=32,mem=100000M,billing=32{configured}
   AllocTRES=cpu=3,mem=34G{allocated}
"""
_TRACKED = {
    "configured": ",gres/gpu=4,gres/gpu:a100=4,gres/mps=400",
    "allocated": ",gres/gpu=2,gres/gpu:a100=2,gres/mps=100",
}


def printed_node(configured: str = "", allocated: str = "") -> SlurmNode:
    (found,) = parse_nodes(_MPS_NODE.format(configured=configured, allocated=allocated))
    return found


def test_a_gpu_that_jobs_share_by_mps_is_not_free() -> None:
    found = printed_node(**_TRACKED)
    assert (found.per_gpu.mps, found.mps_allocated, found.shared_mgpu, found.unaccounted) == (
        100,
        100,
        1000,
        [],
    )
    halves = [
        queued(
            job_id=n,
            tres_requested={"gres/mps": 50},
            tres_allocated={"gres/mps": 50},
            gpu_index={"n1": {"mps": (0,)}},
        )
        for n in (1, 2)
    ]
    two = {"gres/gpu": 2}
    whole = queued(job_id=3, tres_requested=two, tres_allocated=two, gpu_index={"n1": {"gpu": (1, 2)}})
    (node_now,) = occupancy([found], [*halves, whole])
    assert node_now.gpus_free == 1
    assert [holder.shared_gpus for holder in node_now.holders] == [[0], [0], []]
    state = cluster_state([node_now], [*halves, whole], T0)
    assert [job.n_gpus for job in state.jobs] == [0.5, 0.5, 2.0]


def test_gpu_counts_are_unknown_if_slurm_does_not_account_for_gpus() -> None:
    untracked = printed_node()
    assert untracked.unaccounted == ["gpu", "mps"]
    assert printed_node(",gres/gpu:a100=4,gres/mps=400").unaccounted == []
    cpu_only = node(2, gpus={}, shards=0)
    tres = {"cpu": 1.0, "mem": 1024.0, "node": 1.0}

    def counted(nodes: str, tres: dict[str, float] = tres, *known: SlurmNode) -> int | None:
        run = row(nodes=nodes, tres_allocated=tres)
        return run_row(run, {one.name: one for one in known}).allocated_mgpu

    assert counted("n1", tres, untracked, cpu_only) is None
    assert counted("n2", tres, untracked, cpu_only) == 0
    assert counted("n[1-2]", tres, untracked, cpu_only) is None
    assert counted("gone", tres, untracked, cpu_only) is None
    assert counted("gone", tres, cpu_only) == counted("n1", tres, node(1)) == 0
    assert counted("n1", {}, node(1)) is None  # an allocation always has CPUs: this one was not readable
    assert counted("n1", tres | {"gres/gpu": 2.0}, untracked) == 2000


def test_records_of_nodes_count_if_slurm_does_not_account_for_gpus(database: Database) -> None:
    untracked = node(1, unaccounted=("gpu", "shard"))
    runs = [row(job_id=n, submit_s=T0 + n, tres_allocated={"cpu": 1.0}) for n in (1, 2)]
    rows = [run_row(one, {"n1": untracked}) for one in runs]
    database.write(lambda connection: store_changed_runs(connection, rows))
    result = [
        record(job_id=1, segment=segment(n), device=f"GPU-{n}", granted_mgpu=1000, util_hist_ms={40: 10_000})
        for n in (1, 2)
    ]
    database.write(lambda connection: store_records(connection, result))
    reconcile(database)
    root = Caller(0, "root", sees_all=True, writes=True)
    with database.reading() as connection:
        found = find_runs(connection, CLUSTER, RunFilter.from_query({}), root, T0 + 5000.0).runs
    assert {run.job_id: (run.n_gpus, run.ugpucore) for run in found} == {1: (2.0, 40.0), 2: (None, None)}


def test_requests_are_unknown_too_where_slurm_does_not_account_for_gpus(database: Database) -> None:
    never = {
        "state": "PENDING",
        "start_s": None,
        "end_s": None,
        "elapsed_s": 0,
        "nodes": "",
        "tres_allocated": {},
    }
    result = {
        1: {"cpu": 8.0},
        2: {"cpu": 8.0, "gres/gpu": 8.0},
        3: {},  # as Slurm's accounting has it of some jobs until they start
    }
    for unaccounted, wanted in (((), {1: 0, 2: 8, 3: None}), (("gpu",), {1: None, 2: 8, 3: None})):
        nodes = {"n1": node(1, unaccounted=unaccounted), "n2": node(2, gpus={}, shards=0)}
        runs = [row(job_id=n, submit_s=T0, tres_requested=tres, **never) for n, tres in result.items()]
        rows = [run_row(one, nodes) for one in runs]
        database.write(lambda connection, rows=rows: store_changed_runs(connection, rows))
        reconcile(database)
        root = Caller(0, "root", sees_all=True, writes=True)
        with database.reading() as connection:
            found = find_runs(connection, CLUSTER, RunFilter.from_query({}), root, T0 + 5000.0).runs
        assert {run.job_id: run.n_gpus for run in found} == wanted
        assert {run.job_id: run.n_gpus_requested for run in found} == wanted


def test_a_0_that_an_earlier_version_stored_becomes_a_gap(database: Database) -> None:
    run = row(tres_requested={"cpu": 1.0}, tres_allocated={"cpu": 1.0})
    for unaccounted, wanted in (((), 0.0), (("gpu",), None), (("gpu",), None)):
        rows = [run_row(run, {"n1": node(1, unaccounted=unaccounted)})]
        database.write(lambda connection, rows=rows: store_changed_runs(connection, rows))
        reconcile(database)
        root = Caller(0, "root", sees_all=True, writes=True)
        with database.reading() as connection:
            (found,) = find_runs(connection, CLUSTER, RunFilter.from_query({}), root, T0 + 5000.0).runs
        assert (found.n_gpus, found.n_gpus_requested) == (wanted, wanted)


def test_times_that_cannot_be_read_are_stored_as_gaps(database: Database) -> None:
    ended = row(job_id=1, elapsed_s=None, suspended_s=None)
    goes_on = row(job_id=2, state="RUNNING", end_s=None, suspended_s=None)
    rows = [run_row(one, {"n1": node(1)}) for one in (ended, goes_on)]
    database.write(lambda connection: store_changed_runs(connection, rows))
    database.write(lambda connection: store_records(connection, [record(job_id=1)]))
    reconcile(database)
    root = Caller(0, "root", sees_all=True, writes=True)
    for sort in SORTS:
        query = RunFilter.from_query({"sort": sort})
        with database.reading() as connection:
            found = find_runs(connection, CLUSTER, query, root, T0 + 5000.0).runs
        assert {run.job_id: (run.elapsed_s, run.suspended_s, run.n_gpus) for run in found} == {
            1: (None, None, 1.0),
            2: (None, None, 1.0),
        }


def test_recommended_limits_leave_out_runs_whose_gpus_are_not_known() -> None:
    tres = {"cpu": 1.0, "node": 1.0}
    run = PastRun(
        job_id=1,
        user="alice",
        uid=1001,
        account="vision",
        qos="normal",
        partition="gpu",
        eligible_s=T0,
        start_s=T0 + 1,
        end_s=T0 + 100,
        time_limit_s=3600,
        n_nodes=1,
        tres_requested=tres,
        tres_allocated=tres,
        n_gpus=None,
    )
    recorded = replace(run, n_gpus=2.0)  # by its nodes
    past = rebuild([run, recorded], [node(1)], T0, T0 + 1000)
    assert past.requested_mgpu().tolist() == [2000]
    assert past.remarks == ("left out: 1 run with an unknown number of GPUs",)


def test_queue_and_forecasts_count_what_is_not_accounted_for() -> None:
    job = queued(
        state="PENDING",
        nodes=(),
        tres_requested={"cpu": 1},
        tres_allocated={},
        gpu_index={},
        gres_per_node="gres:gpu:3",
    )
    assert job_run(job).gpus[0] == 3
    by_task = replace(job, gres_per_node="", gres_per_task="gres:gpu:1")
    (shown,) = cluster_state(occupancy([node(1)], [by_task]), [by_task], T0).jobs
    assert shown.n_gpus is None
    (reason,) = wait_reasons(cluster_state(occupancy([node(1)], [job, by_task]), [job, by_task], T0))
    assert (reason.n_jobs, reason.n_gpus) == (2, None)
    assert 0 < job_run(by_task).gpus[0] <= 1


@pytest.mark.parametrize(
    ("given", "gpus"),
    [
        ({"gpu_index": {"n1": {"gpu": (0, 3)}}}, 2.0),
        ({"gpu_index": {}}, 0.0),
        ({"state": "PENDING", "nodes": (), "gres_per_node": "gres:gpu:a100:3"}, 3.0),
        (
            {
                "state": "PENDING",
                "nodes": (),
                "n_nodes": 2,
                "gres_per_node": "gres:gpu:3",
                "tres_per_node": "gres:gpu:3",
            },
            6.0,
        ),
        ({"state": "PENDING", "nodes": (), "gres_per_node": "gres:mps:50"}, 0.5),
        ({"state": "PENDING", "nodes": (), "gres_per_node": ""}, 0.0),
    ],
)
def test_jobs_in_the_queue_are_counted_without_accounting_too(given: dict[str, Any], gpus: float) -> None:
    job = queued(**({"tres_requested": {"cpu": 1}, "tres_allocated": {"cpu": 1}, "gpu_index": {}} | given))
    (shown,) = cluster_state(occupancy([mps_node(1)], [job]), [job], T0).jobs
    assert shown.n_gpus == gpus
