"""GET /v1/running returns the GPU use of all running jobs in one answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete

from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.database.api.running_use import KEPT_S, RunningUse
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.wire.answers.codec import from_json, to_json
from slurm_gpu.wire.answers.running import Running as Answer
from tests.database.running_server import NOBODY, OPERATOR, ROOT, UNRESOLVED, WEB, Running
from tests.database.samples import T0, row, segment
from tests.database.test_run_detail import account, event, here, ship


@pytest.fixture
def site(server: Running) -> Iterator[Running]:
    with server.database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
    server.clock.now += 1000  # drop the cached answer of the previous test
    yield server
    server.slurm.queue.clear()


def running(**given: Any) -> Any:
    return row(**{"nodes": "here", "state": "RUNNING", "end_s": None, **given})


def uses(site: Running) -> list[RunningUse]:
    with DatabaseClient(site.config) as client:
        return list(client.running().jobs)


def test_percentiles_are_over_all_devices_together(site: Running) -> None:
    busy = here(util_hist_ms={100: 10_000}, mem_hist_ms={50: 10_000})
    idle = here(device="GPU-2", util_hist_ms={0: 10_000}, mem_hist_ms={10: 9_999, 11: 1})
    ship(site, records=[busy, idle])
    account(site, running(tres_allocated={"gres/gpu": 2}))
    (use,) = uses(site)
    assert (use.job_id, use.util_p25, use.util_p95, use.mem_p25, use.mem_p95) == (1, 0, 100, 10, 50)
    assert (use.used, use.coverage) == (True, 1.0)


@pytest.mark.parametrize(
    ("idle", "unused"),
    [
        ({"util_hist_ms": {0: 9_000, 1: 1_000}}, ["GPU-2"]),
        ({"util_hist_ms": {0: 9_990, 2: 10}}, []),
        ({"util_hist_ms": {0: 2_000}, "sampled_s": 2.0}, []),  # the rest was not sampled
        ({"util_hist_ms": None}, []),
    ],
)
def test_gpus_that_were_never_used_while_others_were_are_listed(
    site: Running, idle: dict[str, Any], unused: tuple[str, ...]
) -> None:
    ship(site, records=[here(util_hist_ms={100: 10_000}), here(device="GPU-2", **idle)])
    account(site, running(tres_allocated={"gres/gpu": 2}))
    (use,) = uses(site)
    assert (use.used, use.unused_devices) == (True, unused)


def test_an_older_slurm_gpudbd_reports_no_such_gpus(site: Running) -> None:
    ship(site, records=[here()])
    account(site, running())
    with DatabaseClient(site.config) as client:
        reported = to_json(client.running())
    del reported["jobs"][0]["unused_devices"]
    assert from_json(Answer, reported).jobs[0].unused_devices == ()


def test_a_time_that_two_watches_saw_counts_once(site: Running) -> None:
    longer = here(util_hist_ms={90: 10_000})
    doubled = here(segment=segment(2), util_hist_ms={0: 9_000}, sampled_s=9.0)
    after = here(segment=segment(3), first_s=T0 + 20, util_hist_ms={80: 10_000})
    ship(site, records=[longer, doubled, after])
    account(site, running())
    (use,) = uses(site)
    assert (use.util_p25, use.util_p95) == (80, 90)


@pytest.mark.parametrize(
    ("percents", "sampled_s", "used"),
    [({0: 9_000, 1: 1_000}, 10.0, False), ({0: 9_999, 2: 1}, 10.0, True), ({0: 2_000}, 2.0, None)],
    ids=["never more than idle", "once", "too little was seen"],
)
def test_low_coverage_does_not_show_that_a_gpu_was_never_used(
    site: Running, percents: dict[int, int], sampled_s: float, used: bool | None
) -> None:
    ship(site, records=[here(util_hist_ms=percents, sampled_s=sampled_s)])
    account(site, running())
    assert [use.used for use in uses(site)] == [used]


def test_a_job_of_which_nothing_came_has_gaps_and_one_that_ended_is_not_there(site: Running) -> None:
    account(site, running(), row(job_id=2, nodes="here"))
    (use,) = uses(site)
    assert (use.job_id, use.used, use.coverage) == (1, None, 0.0)
    assert (use.util_p25, use.util_p95, use.mem_p25, use.mem_p95) == (None, None, None, None)


def test_errors_of_the_last_hour_are_listed_with_their_job(site: Running) -> None:
    now_s = int(site.clock.now)
    reported = {"device": "GPU-1", "job_id": 1, "data": {"code": 79}}
    events = [event(1, at_s=now_s - 3500, **reported), event(2, at_s=now_s - 3700, **reported)]
    ship(site, events=[*events, event(3, at_s=now_s - 3500, **{**reported, "job_id": 2})])
    account(site, running())
    with DatabaseClient(site.config) as client:
        (xid,) = client.running().xids
    assert (xid.job_id, xid.device, xid.at_s, xid.code) == (1, "GPU-1", now_s - 3500, 79)


def test_an_error_on_a_machine_without_slurm_is_not_of_the_job_with_its_number(site: Running) -> None:
    at_s = int(site.clock.now) - 60
    ship(site, events=[event(1, at_s=at_s, device="GPU-1", job_id=1, data={"code": 79})])
    account(site, running(nodes="n[1-4]"))
    with DatabaseClient(site.config) as client:
        assert client.running().xids == []


def test_an_answer_is_reused_for_a_while(site: Running) -> None:
    account(site, running())
    assert [use.util_p25 for use in uses(site)] == [None]
    ship(site, records=[here()])
    account(site, running())
    assert [use.util_p25 for use in uses(site)] == [None]
    site.clock.now += KEPT_S
    assert [use.util_p25 for use in uses(site)] == [40]


@pytest.mark.skipif(not ROOT, reason="becoming another user needs root")
def test_users_see_their_own_jobs_and_operators_all(site: Running) -> None:
    now_s = int(site.clock.now)
    xids = [
        event(n, at_s=now_s - 60, device=f"GPU-{job_id}", job_id=job_id, data={"code": 79})
        for n, job_id in ((1, 1), (2, 2))
    ]
    ship(site, events=xids)
    account(site, running(), running(job_id=2, user="nobody", uid=NOBODY))
    for uid, jobs in ((NOBODY, [2]), (UNRESOLVED, []), (OPERATOR, [1, 2]), (WEB, [1, 2])):
        status, answer = site.asked_by(uid, "GET", "/v1/running")
        assert status == 200
        assert [use["job_id"] for use in answer["jobs"]] == jobs
        assert [xid["job_id"] for xid in answer["xids"]] == jobs
