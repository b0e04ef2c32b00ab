"""Alerts are shown with their squares; operators see all alerts, and users see their own."""

from __future__ import annotations

from slurm_gpu.monitor.viewer import Viewer
from tests.monitor.small_cluster import Here


def watched() -> Here:
    """Run a cluster for five minutes, during which no job starts or ends and some jobs are idle."""
    here = Here(churn=0.0)
    for _ in range(31):
        here.poll()
        here.source.step(10.0)
    return here


def test_jobs_that_never_computed_are_flagged_and_no_others():
    here = watched()
    idle = {item.job.job_id for item in here.source._jobs.values() if item.level == 0}
    alerts = here.get("/api/v1/attention").json()["alerts"]
    assert idle
    assert {alert["job_id"] for alert in alerts} == idle
    assert {alert["alert"] for alert in alerts} == {"never_used"}


def test_a_flag_lists_the_squares_of_its_job():
    here = watched()
    rows = {job["job_id"]: job for job in here.get("/api/v1/jobs").json()["jobs"]}
    for alert in here.get("/api/v1/attention").json()["alerts"]:
        assert alert["squares"] == rows[alert["job_id"]]["squares"]


def test_alerts_that_remain_are_not_sent_again():
    here = watched()
    first = here.get("/api/v1/attention")
    here.poll()
    again = here.get("/api/v1/attention", headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert again.headers["X-As-Of-S"] > first.headers["X-As-Of-S"]


def test_users_see_only_their_own():
    here = watched()
    everything = here.get("/api/v1/attention").json()["alerts"]
    user = everything[0]["user"]
    here.viewer = Viewer(user, None, operator=False)
    assert here.get("/api/v1/attention").json()["alerts"] == [
        alert for alert in everything if alert["user"] == user
    ]
    here.viewer = Viewer("nobody", None, operator=False)
    assert here.get("/api/v1/attention").json()["alerts"] == []


def test_without_values_nothing_is_flagged():
    here = Here(churn=0.0)
    here.source.live = dict  # type: ignore[method-assign]
    for _ in range(31):
        here.poll()
        here.source.step(10.0)
    assert here.get("/api/v1/attention").json()["alerts"] == []


def test_in_the_first_minutes_records_show_which_jobs_never_used_their_gpus():
    here = Here(churn=0.0)
    here.poll()
    idle = {item.job.job_id: item.job.start_s for item in here.source._jobs.values() if item.level == 0}
    got = here.get("/api/v1/attention")
    answer = got.json()
    assert answer["complete_from_s"] > float(got.headers["X-As-Of-S"])
    assert answer["alerts"]
    for alert in answer["alerts"]:
        assert alert["alert"] == "never_used"
        assert alert["since_s"] <= idle[alert["job_id"]] + 60


def test_later_the_watch_and_the_records_agree_on_the_duration():
    here = watched()
    got = here.get("/api/v1/attention")
    answer, as_of_s = got.json(), float(got.headers["X-As-Of-S"])
    assert answer["complete_from_s"] <= as_of_s
    start_s = {item.job.job_id: item.job.start_s for item in here.source._jobs.values()}
    old = [one for one in answer["alerts"] if start_s[one["job_id"]] < as_of_s - 3600]
    assert old
    assert all(one["since_s"] <= start_s[one["job_id"]] + 60 for one in old)
