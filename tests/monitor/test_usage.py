"""The cluster's usage is served to all users, and its utilisation only to operators."""

from __future__ import annotations

import pytest

from slurm_gpu.monitor.cluster.usage import DAYS, KEPT_S
from slurm_gpu.monitor.viewer import Viewer
from tests.monitor.small_cluster import N_GPUS, Here


@pytest.mark.parametrize("days", DAYS)
def test_each_number_of_days_has_bins_up_to_now(here: Here, days: str) -> None:
    found = here.get(f"/api/v1/usage?days={days}").json()
    assert found["bin_s"] * len(found["gpus"]) == int(days) * 86400
    assert 0 <= here.clock.now - (found["from_s"] + int(days) * 86400 - found["bin_s"]) < found["bin_s"]
    assert max(found["gpus"], key=lambda value: value or 0) == N_GPUS


def test_only_operators_see_utilisation(here: Here) -> None:
    assert any(here.get("/api/v1/usage").json()["busy"])
    here.viewer = Viewer(here.any_user(), None, operator=False)
    found = here.get("/api/v1/usage").json()
    assert not any(found["busy"])
    assert any(found["allocated"])


def test_an_answer_is_kept_for_a_minute(here: Here) -> None:
    before = here.get("/api/v1/usage").json()
    here.source.now_s += 3600
    assert here.get("/api/v1/usage").json() == before
    here.clock.now += KEPT_S
    assert here.get("/api/v1/usage").json() != before


@pytest.mark.parametrize("days", ["0", "2", "x", "1%20"])
def test_another_number_of_days_is_refused(here: Here, days: str) -> None:
    answer = here.get(f"/api/v1/usage?days={days}")
    assert answer.status_code == 400
    assert "must be one of 1, 7, 30" in answer.json()["error"]
