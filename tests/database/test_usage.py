"""The cluster's usage is recorded every minute, and served in bins of equal length."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.usage.recorder import EVERY_S, UsageRecorder
from slurm_gpu.database.usage.sample import BIN_S, UsageBin, UsageSample, count_gpus, mean_of
from slurm_gpu.database.usage.store import read_usage, store_bins
from slurm_gpu.errors import DatabaseError, UsageError
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.usage import BINS_S
from tests.database.running_server import NOBODY, ROOT, Running
from tests.database.samples import CLUSTER, T0, node, queued
from tests.database.test_daemon import wait_for

DAY_S = 86400


def live(*util_pct: float | None, at_s: float = T0) -> Live:
    """Return the live values of a node whose devices are all allocated to job 1."""
    devices = {f"GPU-{place}": LiveDevice(util_pct=value, jobs=(1,)) for place, value in enumerate(util_pct)}
    return Live(at_s=at_s, devices=devices)


def counted(**given: Any) -> UsageSample:
    values: dict[str, Any] = {
        "nodes": {"n1": node(1, gpus_allocated={"a100": 2}), "n2": node(2)},
        "jobs": [queued(gpu_index={"n1": {"gpu": (0, 1)}})],
        "live": {"n1": live(100, 50)},
        "min_coverage": 0.8,
    }
    return count_gpus(**{**values, **given})


def sample(**given: Any) -> UsageSample:
    values: dict[str, Any] = {
        "gpus": 8,
        "allocated": 4,
        "busy": 2.0,
        "waiting_jobs": 1,
        "waiting_gpus": 2,
    }
    return UsageSample(**{**values, **given})


def test_busy_gpus_are_the_allocated_ones_times_their_utilisation() -> None:
    found = counted()
    assert (found.gpus, found.allocated, found.busy) == (8, 2, 1.5)


def test_a_free_gpu_that_computes_is_not_busy() -> None:
    stray = Live(at_s=T0, devices={"GPU-9": LiveDevice(util_pct=100.0)})
    assert counted(live={"n1": live(100, 50), "n2": stray}).busy == 1.5


def test_busy_is_unknown_if_too_few_gpus_are_measured() -> None:
    assert counted(live={"n1": live(100, None)}).busy is None
    assert counted(live={"n1": live(100, None)}, min_coverage=0.5).busy == 2
    assert counted(live={}).busy is None
    assert counted(nodes={"n1": node(1)}, jobs=[], live={}).busy == 0, "no GPU is allocated"


def test_machines_without_slurm_do_not_count() -> None:
    assert counted(live={"n1": live(100, 50), "desk": live(0, 0, 0, 0)}).busy == 1.5


def test_gpus_of_a_node_out_of_service_count_only_while_jobs_have_them() -> None:
    drained = node(1, state="mixed+drain", gpus_allocated={"a100": 2})
    found = counted(nodes={"n1": drained, "n2": node(2)})
    assert (found.gpus, found.allocated) == (6, 2)


def test_a_gpu_shared_by_jobs_is_one_allocated_gpu() -> None:
    shards = [queued(job_id=job_id, gpu_index={"n1": {"shard": (3,)}}) for job_id in (1, 2)]
    assert counted(nodes={"n1": node(1)}, jobs=shards).allocated == 1


def test_each_task_of_a_pending_array_waits() -> None:
    pending = {"state": "PENDING", "nodes": (), "gpu_index": {}, "gres_per_node": ""}
    array = queued(job_id=5, n_tasks=3, tres_requested={"gres/gpu": 2}, **pending)
    without = queued(job_id=6, tres_requested={"cpu": 1}, **pending)
    unknown = queued(job_id=7, tres_requested={}, **(pending | {"gres_per_node": "gres:??"}))
    found = counted(jobs=[array, without, unknown])
    assert (found.waiting_jobs, found.waiting_gpus) == (5, 6)


_COUNTS = st.integers(0, 1000)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.builds(
                UsageSample,
                gpus=_COUNTS,
                allocated=_COUNTS,
                busy=st.none() | _COUNTS,
                waiting_jobs=_COUNTS,
                waiting_gpus=_COUNTS,
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_mean_is_within_the_range_of_its_samples(weighted: list[tuple[int, UsageSample]]) -> None:
    found = mean_of(weighted)
    for name in ("gpus", "allocated", "waiting_jobs", "waiting_gpus"):
        values = [getattr(one, name) for _, one in weighted]
        assert min(values) <= getattr(found, name) <= max(values)
    known = sum(n for n, one in weighted if one.busy is not None)
    assert (found.busy is None) == (2 * known < sum(n for n, _ in weighted))


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 100), st.none() | st.floats(0, 1)),
        min_size=1,
        max_size=8,
    )
)
def test_no_more_gpus_are_busy_than_allocated(parts: list[tuple[int, int, float | None]]) -> None:
    """Test means of samples in which `busy` is known only while many or few GPUs are allocated."""
    found = mean_of(
        (n, sample(allocated=allocated, busy=None if share is None else share * allocated))
        for n, allocated, share in parts
    )
    assert found.busy is None or found.busy <= found.allocated + 1e-9


def test_busy_is_unknown_if_it_is_known_in_less_than_half_of_the_samples() -> None:
    known, unknown = sample(allocated=4, busy=3.0), sample(allocated=8, busy=None)
    assert mean_of([(2, known), (2, unknown)]).busy == 4.5, "75 % of the mean of 6"
    assert mean_of([(1, known), (2, unknown)]).busy is None


def stored(database: Database, *bins: tuple[int, UsageSample]) -> None:
    for from_s, one in bins:
        database.write(partial(store_bins, cluster=CLUSTER, bins=[UsageBin(from_s, [one])]))


def test_an_answer_ends_with_the_current_bin_and_has_gaps(database: Database) -> None:
    first_s = T0 // BIN_S * BIN_S
    stored(database, (first_s - 2 * BIN_S, sample(allocated=4)), (first_s, sample(allocated=6, busy=None)))
    with database.reading() as connection:
        found = read_usage(connection, CLUSTER, 1, T0 + 1)
    assert len(found.gpus) == DAY_S // BIN_S
    assert found.from_s + found.bin_s * len(found.gpus) == first_s + BIN_S
    assert list(found.allocated[-3:]) == [4, None, 6]
    assert list(found.busy[-3:]) == [2, None, None]
    assert not any(found.gpus[:-3])


@pytest.mark.parametrize("days", BINS_S)
def test_longer_bins_are_means_of_shorter_ones(database: Database, days: int) -> None:
    width_s = BINS_S[days]
    first_s = T0 // width_s * width_s
    each = [(first_s + place * BIN_S, sample(allocated=place)) for place in range(width_s // BIN_S)]
    stored(database, *each)
    with database.reading() as connection:
        found = read_usage(connection, CLUSTER, days, T0)
        other = read_usage(connection, "another", days, T0)
    assert found.bin_s == width_s
    assert len(found.gpus) == days * DAY_S // width_s
    assert found.allocated[-1] == pytest.approx((len(each) - 1) / 2, abs=0.05)
    assert not any(other.gpus)


def rows(server: Running) -> int:
    return server.contents()["cluster_usage"]


def record(server: Running, recorder: UsageRecorder) -> None:
    """Record a sample in a new bin, once slurmctld's cached answers have been renewed."""
    server.clock.now = server.clock.now // BIN_S * BIN_S + BIN_S
    before = rows(server)

    def is_recorded() -> bool:
        recorder.run_once()
        return rows(server) > before

    wait_for(is_recorded, lambda: "no sample was recorded")


def test_a_minute_adds_a_sample_to_the_bin(server: Running) -> None:
    recorder = UsageRecorder(server.services)
    server.slurm.node_list = [node(1)]
    record(server, recorder)
    before = rows(server)
    server.slurm.node_list = [node(1, gpus_allocated={"a100": 4})]
    server.clock.now += EVERY_S
    recorder.run_once()
    with DatabaseClient(server.config) as client:
        found = client.usage(1)
    assert (found.gpus[-1], found.allocated[-1]) == (4, 2)
    assert rows(server) == before


def test_nothing_is_recorded_while_slurmctld_is_down(server: Running) -> None:
    recorder = UsageRecorder(server.services)
    record(server, recorder)
    before = rows(server)
    server.slurm.unavailable = True
    server.clock.now += 2 * BIN_S
    recorder.run_once()
    assert rows(server) == before
    server.slurm.unavailable = False
    record(server, recorder)
    with DatabaseClient(server.config) as client:
        assert [value is None for value in client.usage(1).gpus[-4:]] == [False, True, True, False]


def test_bins_that_could_not_be_stored_are_stored_later(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = UsageRecorder(server.services)
    record(server, recorder)
    before = rows(server)

    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseError("the database does not answer")

    with monkeypatch.context() as down:
        down.setattr(type(server.database), "write", fail)
        for _ in range(3):
            server.clock.now += BIN_S
            with pytest.raises(DatabaseError):
                recorder.run_once()
    record(server, recorder)
    assert rows(server) == before + 4


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_only_operators_see_utilisation(server: Running) -> None:
    server.slurm.node_list = [node(1)]
    record(server, UsageRecorder(server.services))
    _, by_operator = server.asked_by(0, "GET", "/v1/usage")
    status, by_user = server.asked_by(NOBODY, "GET", "/v1/usage?days=1")
    assert status == 200
    assert by_operator["busy"][-1] == 0
    assert set(by_user["busy"]) == {None}
    assert by_user["allocated"] == by_operator["allocated"]


@pytest.mark.parametrize("query", ["days=2", "days=", "days=x", "days=01", "hours=1", "days=1&days=7"])
def test_an_invalid_query_is_refused(server: Running, query: str) -> None:
    target = f"/v1/usage?{query}"
    status, answer = server.raw("GET", target, b"", server.signed("GET", target))
    assert status == 400
    assert answer["error"]


def test_the_client_names_an_invalid_number_of_days(server: Running) -> None:
    with DatabaseClient(server.config) as client, pytest.raises(UsageError, match="days: '2' must be one of"):
        client.usage(2)
