"""Operators and the owner of a job see the findings of slurm-gpudbd's watch with the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from slurm_gpu.monitor import schemas
from slurm_gpu.monitor.viewer import Viewer
from slurm_gpu.wire.answers.verdicts import JobVerdict, ReportedSuspect, Verdicts
from tests.monitor.small_cluster import Here


class Ill(Here):
    """A job with eight GPUs, the third of which is slow."""

    def __init__(self) -> None:
        super().__init__(churn=0.0)
        self.job = next(
            job for job in self.source.cluster().jobs if job.state == "RUNNING" and job.n_gpus >= 8
        )
        live = self.source.live()
        self.gpus = [
            (node, uuid)
            for node, values in live.items()
            for uuid, device in values.devices.items()
            if device.jobs == (self.job.job_id,)
        ]
        self.verdicts: list[JobVerdict] = [self.verdict()]
        self.suspects: list[ReportedSuspect] = []
        self.source.verdicts = lambda: Verdicts(  # type: ignore[method-assign]
            as_of_s=self.source.now_s, watched=9, verdicts=self.verdicts, suspects=self.suspects
        )

    def verdict(self, **given: Any) -> JobVerdict:
        now_s = int(self.source.now_s)
        values = {
            "job_id": self.job.job_id,
            "start_s": self.job.start_s,
            "user": self.job.user,
            "cause": "slow or failing",
            "kind": "throttled",
            "confidence": 0.91,
            "devices": (self.gpus[2],),
            "nodes": (),
            "since_s": now_s - 300.5,
            "reported_at_s": now_s - 60,
            "last_s": now_s,
            "verdict": {"coverage": 0.97, "evidence": [{"text": "clock 80 %"}], "next_step": "Exclude it."},
        }
        return JobVerdict(**{**values, **given})

    def alerts(self) -> list[dict[str, Any]]:
        self.poll()
        answer = self.get("/api/v1/attention").json()
        Draft202012Validator(schemas.ATTENTION).validate(answer)
        return [alert for alert in answer["alerts"] if alert["alert"] == "unhealthy"]


@pytest.fixture
def ill() -> Ill:
    return Ill()


def test_it_is_listed_with_who_since_when_how_sure_and_what_to_do(ill: Ill):
    (alert,) = ill.alerts()
    assert (alert["job_id"], alert["coverage"]) == (ill.job.job_id, 0.97)
    assert alert["since_s"] == ill.verdict().since_s
    node, uuid = ill.gpus[2]
    assert alert["squares"] == [[ill.board.state.layout.square_of[uuid]] * 2]
    assert alert["verdict"] == {
        "cause": "slow or failing",
        "kind": "throttled",
        "confidence": 0.91,
        "text": f"{node} GPU 2; clock 80 %",
        "next_step": "Exclude it.",
    }


def test_without_culprits_all_its_squares_are_lit(ill: Ill):
    ill.verdicts = [ill.verdict(cause="workload imbalance", devices=(), since_s=None)]
    (alert,) = ill.alerts()
    rows = {job["job_id"]: job for job in ill.get("/api/v1/jobs").json()["jobs"]}
    assert alert["squares"] == rows[ill.job.job_id]["squares"]
    assert alert["since_s"] == ill.job.start_s


def test_its_owner_sees_it_and_no_other_user(ill: Ill):
    assert ill.alerts()
    ill.viewer = Viewer(ill.job.user, ill.job.uid, operator=False)
    assert [alert["id"] for alert in ill.alerts()] == [ill.job.id]
    ill.viewer = Viewer("nobody", 65534, operator=False)
    assert ill.alerts() == []


@pytest.mark.parametrize("changed", [{"start_s": 5}, {"job_id": 999_999}])
def test_verdicts_of_other_runs_or_ended_jobs_are_not_shown(ill: Ill, changed: dict[str, int]):
    ill.verdicts = [ill.verdict(**changed)]
    assert ill.alerts() == []


def test_suspects_are_for_operators_with_their_squares(ill: Ill):
    node, uuid = ill.gpus[2]
    gpu = ReportedSuspect(
        node=node, device=uuid, jobs=3, users=2, healthy=0, first_s=1.0, last_s=2.0, next_step="scontrol …"
    )
    ill.suspects = [gpu, replace(gpu, device=None)]
    ill.alerts()
    first, whole = ill.get("/api/v1/attention").json()["suspects"]
    assert first["squares"] == [[ill.board.state.layout.square_of[uuid]] * 2]
    ((low, high),) = whole["squares"]
    assert high - low == 7
    assert first["next_step"] == "scontrol …"
    ill.viewer = Viewer(ill.job.user, ill.job.uid, operator=False)
    assert ill.get("/api/v1/attention").json()["suspects"] == []


def test_an_older_slurm_gpudbd_has_no_findings(ill: Ill):
    ill.source.verdicts = lambda: None  # type: ignore[method-assign,return-value,assignment]
    assert ill.alerts() == []
