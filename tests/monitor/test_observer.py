"""The last state is kept while slurm-gpudbd is unreachable; jobs are judged only after an observation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slurm_gpu.alerts.alert import AlertKind, in_words
from slurm_gpu.errors import DatabaseError
from slurm_gpu.monitor.cluster.observer import Observer
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.cluster import ClusterState
from slurm_gpu.wire.answers.running import RecentXid, Running, RunningUse
from slurm_gpu.wire.answers.runs import NodeReport
from slurm_gpu.wire.answers.verdicts import JobVerdict, Verdicts
from tests.monitor.clusters import NOW_S, cluster, holds, job, node


class _Site:
    """A clock and a slurm-gpudbd that may be unreachable; job 7 has a GPU and leaves it idle."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.unavailable = self.database_unavailable = False
        self.asked_for_devices = 0
        self.records: Running | None = None
        self.found: Verdicts | None = None
        self.job: dict[str, Any] = {"start_s": NOW_S - 1}
        self.util_pct: float | None = 0.0
        self.reported_at_s = 0.0
        """The age of the node's values."""
        self.observer = Observer(self.connect, lambda: NOW_S + self.passed_s, lambda: self.passed_s)

    @contextmanager
    def connect(self) -> Iterator["_Site"]:
        if self.unavailable:
            raise DatabaseError("slurm-gpudbd cannot be reached")
        yield self

    def cluster(self) -> ClusterState:
        return cluster([node("n1", holds(7, 0))], [job(7, **self.job)])

    def live(self, refresh: str = "all") -> dict[str, Live]:
        device = LiveDevice(util_pct=self.util_pct, jobs=(7,))
        return {"n1": Live(at_s=NOW_S + self.passed_s - self.reported_at_s, devices={"GPU-1": device})}

    def nodes(self) -> list[NodeReport]:
        self.asked_for_devices += 1
        if self.database_unavailable:
            raise DatabaseError("slurm-gpudbd answered 503: the database does not answer")
        return []

    def running(self) -> Running:
        if self.records is None:
            raise DatabaseError("slurm-gpudbd answered 404: there is no /v1/running")
        return self.records

    def verdicts(self) -> Verdicts:
        if self.found is None:
            raise DatabaseError("slurm-gpudbd answered 404: there is no /v1/verdicts")
        return self.found

    def watch_for(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.passed_s += 10
            self.observer.poll()


@pytest.fixture
def site() -> _Site:
    return _Site()


def test_without_any_answer_the_error_has_the_reason(site: _Site) -> None:
    site.unavailable = True
    with pytest.raises(DatabaseError, match="cannot be reached"):
        site.observer.poll()


def test_the_last_state_stays_with_the_reason_and_is_replaced_afterwards(site: _Site) -> None:
    site.watch_for(10)
    seen = site.observer.last
    site.unavailable = True
    site.watch_for(30)
    assert site.observer.last is seen
    assert site.observer.error == "slurm-gpudbd cannot be reached"
    site.unavailable = False
    site.watch_for(10)
    assert site.observer.error is None
    assert site.observer.last is not None
    assert site.observer.last.at_s == NOW_S + 50


def test_a_job_that_leaves_its_gpu_idle_is_flagged_within_five_minutes_and_nothing_before(
    site: _Site,
) -> None:
    site.watch_for(230)
    assert site.observer.last is not None
    assert site.observer.last.alerts is None
    site.watch_for(70)
    assert [alert.kind for alert in site.observer.last.alerts or ()] == [AlertKind.NEVER_USED]


def test_a_gpu_of_a_machine_without_slurm_is_none_of_the_job_with_the_same_number(site: _Site) -> None:
    site.util_pct = 90.0
    idle = LiveDevice(util_pct=0.0, jobs=(7,))  # counted there
    of_slurm = site.live
    site.live = lambda: {**of_slurm(), "ws1": Live(at_s=NOW_S + site.passed_s, devices={"GPU-2": idle})}  # type: ignore[method-assign]
    site.watch_for(600)
    assert site.observer.last is not None
    assert site.observer.last.alerts == []


def test_devices_are_requested_once_a_minute(site: _Site) -> None:
    site.watch_for(100)
    assert site.asked_for_devices == 2


def test_while_mariadb_is_down_data_of_slurm_and_nodes_continues(site: _Site) -> None:
    site.database_unavailable = True
    site.watch_for(30)
    assert site.observer.error is None
    assert site.observer.last is not None
    assert site.observer.last.at_s == NOW_S + 30
    site.database_unavailable = False
    site.watch_for(20)
    assert site.asked_for_devices == 4


def _use(job_id: int, **given: Any) -> RunningUse:
    """Return the use of a job that has been idle for an hour."""
    values: dict[str, Any] = {
        "job_id": job_id,
        "start_s": NOW_S - 3600,
        "coverage": 0.9,
        "used": False,
        "util_p25": 0.0,
        "util_p95": 0.0,
        "mem_p25": 0.0,
        "mem_p95": 0.0,
    }
    return RunningUse(**{**values, **given})


@pytest.mark.parametrize(
    ("use", "alert_kinds"),
    [
        (_use(7), [AlertKind.NEVER_USED]),
        (_use(7, used=True), []),
        (_use(7, used=None), []),
        (_use(7, coverage=0.7), []),
        (_use(7, start_s=NOW_S - 100), []),
        (_use(8), []),  # job 8 has ended
    ],
)
def test_records_show_at_once_who_never_used_a_gpu_but_nothing_below_coverage(
    site: _Site, use: RunningUse, alert_kinds: list[AlertKind]
) -> None:
    site.job = {"start_s": use.start_s}
    site.records = Running(as_of_s=NOW_S, jobs=(use,), xids=())
    site.observer.poll()
    assert site.observer.last is not None
    assert [alert.kind for alert in site.observer.last.alerts or ()] == alert_kinds


@pytest.mark.parametrize(
    "but",
    [
        {"job": {"start_s": NOW_S - 600}},
        {"job": {"start_s": NOW_S - 3600, "state": "SUSPENDED"}},
        {"job": {"start_s": NOW_S - 3600, "n_gpus": 2.0}},
        {"util_pct": 80.0},
        {"util_pct": None},
        {"reported_at_s": 7200.0},
    ],
    ids=[
        "requeued since",
        "suspended",
        "half of it unseen",
        "computes now",
        "not measured now",
        "node is down",
    ],
)
def test_records_alone_accuse_no_job_of_which_it_may_not_be_so_now(site: _Site, but: dict[str, Any]) -> None:
    site.job = {"start_s": NOW_S - 3600}
    site.records = Running(as_of_s=NOW_S, jobs=(_use(7),), xids=())
    for name, value in but.items():
        setattr(site, name, value)
    site.observer.poll()
    assert site.observer.last is not None
    assert list(site.observer.last.alerts or ()) == []


def test_an_error_before_a_requeue_is_not_one_of_the_new_run(site: _Site) -> None:
    xid = RecentXid(job_id=7, device="GPU-1", at_s=NOW_S - 60, code=79)
    site.records = Running(as_of_s=NOW_S, jobs=(), xids=(xid,))
    site.observer.poll()
    assert site.observer.last is not None
    assert list(site.observer.last.alerts or ()) == []
    site.watch_for(240)
    assert [alert.kind for alert in site.observer.last.alerts or ()] == [AlertKind.NEVER_USED]


def test_records_show_at_once_of_errors_of_a_gpu(site: _Site) -> None:
    site.job = {"start_s": NOW_S - 3600}
    xid = RecentXid(job_id=7, device="GPU-1", at_s=NOW_S - 60, code=79)
    site.records = Running(as_of_s=NOW_S, jobs=(), xids=(xid,))
    site.observer.poll()
    assert site.observer.last is not None
    (alert,) = site.observer.last.alerts or ()
    assert (alert.kind, alert.devices, alert.since_s) == (AlertKind.XID, ("GPU-1",), NOW_S - 60)


def test_findings_of_slurm_gpudbd_are_shown_at_once(site: _Site) -> None:
    verdict = JobVerdict(
        job_id=7,
        start_s=NOW_S - 1,
        user="alice",
        cause="hang",
        kind="waits for others",
        confidence=0.9,
        devices=(("n1", "GPU-1"),),
        nodes=(),
        since_s=NOW_S + 2.5,
        reported_at_s=NOW_S,
        last_s=NOW_S,
        verdict={},
    )
    site.found = Verdicts(as_of_s=NOW_S, watched=1, verdicts=(verdict,), suspects=())
    site.watch_for(10)
    assert site.observer.last is not None
    (alert,) = site.observer.last.alerts or ()
    assert (alert.kind, alert.since_s, alert.devices) == (AlertKind.UNHEALTHY, NOW_S + 2.5, ("GPU-1",))
    assert in_words(alert) == "hang (waits for others): n1 GPU-1, 90% confidence"
