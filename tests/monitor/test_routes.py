"""Every route answers as in the OpenAPI document, and users see only what they may see."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from lab.synthetic import uid_of
from slurm_gpu.errors import DatabaseError
from slurm_gpu.monitor.http.rate_limiter import OF_A_USER
from slurm_gpu.monitor.job.me import LIMITS_KEPT_S
from slurm_gpu.monitor.routes import ROUTES, ApiRoute
from slurm_gpu.monitor.viewer import Viewer
from slurm_gpu.wire.answers.forecast import ForecastRecord
from slurm_gpu.wire.answers.quota import Quota
from tests.cli.test_forecast import FORECAST
from tests.monitor.small_cluster import Here

LISTED = [route for route in ROUTES if route.path != "/api/v1/events"]
OF_A_JOB = [route for route in ROUTES if route.missing]


def viewers(here: Here) -> list[Viewer]:
    return [
        here.viewer,
        Viewer(here.any_user(), None, operator=False),
        Viewer("nobody", 65534, operator=False),
    ]


def path_of(route: ApiRoute, here: Here) -> str:
    return route.path.replace("{job}", str(running(here)["job_id"]))


def running(here: Here) -> dict[str, Any]:
    """Return a job of any_user()."""
    user = here.any_user()
    jobs = json.loads(here.get("/api/v1/jobs").content)["jobs"]
    found: dict[str, Any] = next(job for job in jobs if job["user"] == user and job["state"] == "RUNNING")
    return found


@pytest.mark.parametrize("route", LISTED, ids=lambda route: route.path)
def test_answers_match_the_openapi_document(here: Here, route: ApiRoute):
    path, schemas = path_of(route, here), dict(route.answers)
    for viewer in viewers(here):
        here.viewer = viewer
        answer = here.get(path)
        if answer.status_code == 403:
            assert route.missing
            assert not viewer.operator
            continue
        assert answer.status_code == 200, answer.text
        media = answer.headers["content-type"].encode()
        assert media in schemas
        assert float(answer.headers["x-as-of-s"]) > 0
        assert answer.headers["etag"]
        if media == b"application/json":
            Draft202012Validator(schemas[media]).validate(answer.json())


def test_the_document_describes_every_route_and_needs_no_sign_in(here: Here):
    document = here.get("/openapi.json").json()
    assert set(document["paths"]) == {route.path for route in ROUTES}
    assert document["openapi"].startswith("3.1")
    for path in document["paths"].values():
        for answer in path["get"]["responses"].values():
            for media in answer.get("content", {}).values():
                Draft202012Validator.check_schema(media["schema"])


@pytest.mark.parametrize("route", OF_A_JOB, ids=lambda route: route.path)
def test_a_job_of_another_is_shown_without_what_it_does(here: Here, route: ApiRoute):
    path = path_of(route, here)
    here.viewer = Viewer("nobody", 65534, operator=False)
    answer = here.get(path)
    if route.path.endswith(("/window", "/diagnosis")):
        assert answer.status_code == 403
    elif route.path.endswith("/timeline"):
        assert [run["devices"] for run in answer.json()["runs"]] == [None]
    else:
        (run,) = answer.json()["runs"]
        visible_fields = {name for name, value in run.items() if value not in (None, False)}
        assert not visible_fields & {"name", "devices", "percentiles", "by_device", "coverage", "uGPUcore"}
        assert run["user"] == here.any_user()
    sheet = here.get(f"{path}?format=csv")
    assert sheet.status_code == 403 or list(csv.DictReader(io.StringIO(sheet.text))) == []


def test_a_pending_job_is_explained_in_full_only_to_its_owner(here: Here):
    job = next(job for job in here.source.cluster().jobs if job.state == "PENDING")
    path = f"/api/v1/jobs/{job.job_id}/queued"
    shown = here.get(path).json()["job"]
    assert (shown["id"], shown["wait"]["reason"], shown["full"]) == (job.id, job.reason, True)
    assert shown["wait"]["forecast"]["accuracy"] or shown["wait"]["forecast"]["why"]
    here.viewer = Viewer("nobody", 65534, operator=False)
    hidden = here.get(path).json()["job"]
    assert (hidden["name"], hidden["wait"]["dependency"], hidden["wait"]["forecast"]) == (None, None, None)
    assert hidden["wait"]["reason"] == job.reason
    running_id = running(here)["job_id"]
    assert here.get(f"/api/v1/jobs/{running_id}/queued").json()["job"]["wait"] is None
    assert here.get("/api/v1/jobs/999999999/queued").json() == {"job": None}


@pytest.mark.parametrize("path", ["/api/v1/frame", "/api/v1/jobs", "/squares.svg", "/api/v1/me"])
def test_a_name_that_was_given_again_opens_nothing_of_who_had_it_before(here: Here, path: str):
    name = here.any_user()
    waits = next(job for job in here.source.cluster().jobs if job.state == "PENDING")
    if path == "/api/v1/me":
        name = waits.user
    here.viewer = Viewer(name, uid_of(name), operator=False)
    before = here.get(path).content
    here.viewer = Viewer(name, 70_000, operator=False)
    after = here.get(path).content
    here.viewer = Viewer("nobody", 65534, operator=False)
    nothing = here.get(path).content
    if path == "/api/v1/me":
        found = [[wait["job_id"] for wait in json.loads(body)["waits"]] for body in (before, after)]
        assert waits.job_id in found[0]
        assert found[1] == []
    else:
        assert before != after == nothing


@pytest.mark.parametrize("route", OF_A_JOB, ids=lambda route: route.path)
def test_a_reused_name_gives_no_access_to_old_jobs(here: Here, route: ApiRoute):
    path, name = path_of(route, here), here.any_user()
    answers = []
    for uid in (uid_of(name), 70_000):
        here.viewer = Viewer(name, uid, operator=False)
        answers.append(here.get(path))
    here.viewer = Viewer("nobody", 65534, operator=False)
    assert answers[0].content != answers[1].content == here.get(path).content


def test_a_renamed_user_keeps_their_jobs(here: Here):
    name = here.any_user()
    here.viewer = Viewer(name, uid_of(name), operator=False)
    as_before = here.get("/api/v1/jobs").content
    here.viewer = Viewer("renamed", uid_of(name), operator=False)
    assert here.get("/api/v1/jobs").content == as_before


@pytest.mark.parametrize("job", ["0", "x", "1;drop", "1_", "../live", "%2e%2e%2flive", "1" * 30, "17+1+1"])
def test_invalid_job_ids_are_never_requested(here: Here, job: str):
    here.source.run = None  # type: ignore[assignment,method-assign]
    assert here.get(f"/api/v1/jobs/{job}").status_code in (400, 404)


def test_a_job_that_is_not_known_is_not_there(here: Here):
    answer = here.get("/api/v1/jobs/999999")
    assert (answer.status_code, answer.json()) == (404, {"error": "job 999999 has no runs"})


def test_the_timeline_of_a_job_can_be_downloaded_as_csv(here: Here):
    job = running(here)
    answer = here.get(f"/api/v1/jobs/{job['job_id']}/timeline?format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert f"job-{job['job_id']}-timeline.csv" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len({row["device"] for row in rows}) == job["n_gpus"]
    assert all(row["tensor"] == "" for row in rows), "not measured is empty"
    assert any(row["util"] == "0.0" for row in rows), "a measured zero is one"


@pytest.mark.parametrize("query", ["format=xml", "format="])
def test_a_format_that_is_none_is_refused(here: Here, query: str):
    assert here.get(f"/api/v1/jobs/{running(here)['job_id']}?{query}").status_code == 400


def test_the_picture_has_a_path_for_each_colour_and_no_script(here: Here):
    for metric in ("util", "state", "p95_mem"):
        picture = here.get(f"/squares.svg?metric={metric}").text
        assert 1 <= picture.count("<path") <= 18
        assert "<script" not in picture
        assert "style=" not in picture
        assert picture.count("z") >= 64


def test_a_user_sees_only_their_own_waits(here: Here):
    jobs = json.loads(here.get("/api/v1/jobs").content)["jobs"]
    waiting = [job for job in jobs if job["state"] == "PENDING"]
    user = waiting[0]["user"]
    here.viewer = Viewer(user, None, operator=False)
    waits = here.get("/api/v1/me").json()["waits"]
    assert {item["job_id"] for item in waits} == {job["job_id"] for job in waiting if job["user"] == user}
    assert all(item["forecast"] is None and "forecast train" in item["why"] for item in waits)


def test_an_array_whose_tasks_are_not_apart_is_forecast_as_a_whole(
    here: Here, monkeypatch: pytest.MonkeyPatch
):
    cluster = here.source.cluster()
    waits = next(job for job in cluster.jobs if job.state == "PENDING")
    others = [job for job in cluster.jobs if job.user != waits.user]
    tasks = [
        replace(waits, id="9_2-3%1", job_id=9),
        replace(waits, id="9_7", job_id=11),
        replace(waits, id="13+0", job_id=13),
    ]
    monkeypatch.setattr(here.source, "cluster", lambda: replace(cluster, jobs=[*others, *tasks]))
    asked: list[str] = []
    monkeypatch.setattr(here.source, "forecast", lambda job: asked.append(job) or "soon")
    here.poll()
    here.viewer = Viewer(waits.user, None, operator=False)
    here.get("/api/v1/me")
    assert sorted(asked) == ["13+0", "9", "9_7"]


def test_a_forecast_has_its_accuracy_in_the_words_of_slurm_gpu_forecast(
    here: Here, monkeypatch: pytest.MonkeyPatch
):
    waits = next(job for job in here.source.cluster().jobs if job.state == "PENDING")
    guess = replace(FORECAST, judged=None, past=ForecastRecord(n=3, correct=0, since_s=1))
    monkeypatch.setattr(here.source, "forecast", lambda job: guess)
    here.viewer = Viewer(waits.user, None, operator=False)
    assert here.get("/api/v1/me").json()["waits"][0]["accuracy"] == [
        "right so far: 0 of 3 forecasts (the job started in the interval)",
        "not validated, because too few jobs with GPUs waited recently; treat this forecast as a guess",
    ]


def test_a_user_sees_their_limits_or_why_there_are_none(here: Here, monkeypatch: pytest.MonkeyPatch):
    here.viewer = Viewer(here.any_user(), None, operator=False, by_link=True)
    me = here.get("/api/v1/me").json()
    assert (me["limits"][0]["on"], me["limits_why"], me["signed_in"]) == ("GPUs running", None, "link")
    here.viewer = Viewer("nobody", None, operator=False)

    def unreachable(_: str) -> Quota:
        raise DatabaseError("slurm-gpudbd is down")

    monkeypatch.setattr(here.source, "quota", unreachable)
    me = here.get("/api/v1/me").json()
    assert (me["limits"], me["limits_why"]) == (None, "slurm-gpudbd is down")
    assert me["signed_in"] == "proxy"
    unknown = Quota(user="nobody", as_of_s=1.0, limits=None, why="come again in 15 s")
    monkeypatch.setattr(here.source, "quota", lambda _: unknown)
    assert here.get("/api/v1/me").json()["limits_why"] == "come again in 15 s"
    here.clock.now += 1  # unknown values are requested again immediately, known ones after some seconds
    known = replace(unknown, limits=[])
    monkeypatch.setattr(here.source, "quota", lambda _: known)
    assert here.get("/api/v1/me").json()["limits"] == []
    monkeypatch.setattr(here.source, "quota", unreachable)
    assert here.get("/api/v1/me").json()["limits"] == []
    here.clock.now += LIMITS_KEPT_S
    assert here.get("/api/v1/me").json()["limits"] is None


def test_one_user_cannot_keep_all_threads_from_the_others(here: Here, monkeypatch: pytest.MonkeyPatch):
    go_on, begun = threading.Event(), threading.Semaphore(0)
    source = here.source

    def slow(job: str) -> Any:
        if job == "1":
            begun.release()
            assert go_on.wait(10)
        return ()

    monkeypatch.setattr(source, "run", slow)

    async def story() -> None:
        transport = httpx.ASGITransport(here.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
            here.viewer = Viewer("mallory", 1, operator=False)
            slow_ones = [asyncio.create_task(client.get("/api/v1/jobs/1")) for _ in range(OF_A_USER)]
            for _ in slow_ones:
                await asyncio.to_thread(begun.acquire)
            refused = await client.get("/api/v1/jobs/1")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            here.viewer = Viewer("alice", 2, operator=False)
            assert (await client.get("/api/v1/jobs/2")).status_code == 404
            go_on.set()
            assert {one.status_code for one in await asyncio.gather(*slow_ones)} == {404}
            here.viewer = Viewer("mallory", 1, operator=False)
            assert (await client.get("/api/v1/jobs/1")).status_code == 404

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "status"), [("/api/v1/jobs/x", 400), ("/none", 404), ("/api/v1/jobs/999999", 404)]
)
def test_no_cache_keeps_what_was_refused(here: Here, path: str, status: int):
    answer = here.get(path)
    assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")


def test_free_allocated_and_out_of_service_are_all_gpus(here: Here):
    types = here.get("/api/v1/free").json()["types"]
    assert sum(kind["total"] for kind in types) == 64
    assert all(kind["free"] + kind["allocated"] + kind["out_of_service"] == kind["total"] for kind in types)
