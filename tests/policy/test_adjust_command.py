"""`slurm-gpu policy adjust` moves a limit by one step within bounds, records it, and can undo it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import pytest

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.client.database_client import Run
from slurm_gpu.errors import DatabaseError, SlurmError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.language.adjustments import moves_path
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.limit_value import single_value
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.wire.answers.runs import AuditEvent
from tests.cli.conftest import make_run
from tests.policy.test_apply_commands import Cluster
from tests.reports.recommending import nodes

POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {vision: {accounts: [vision]}}
rules:
  - id: share
    for: vision
    per: user
    why: "One each."
    limits: {gpus_running: 1}
    adjust: {gpus_running: [1, 2]}
"""
NOW_S = 1_795_262_400
HOUR = 3600
DAY = 24 * HOUR


class AdjustedCluster(Cluster):
    """A controller's host, and a slurm-gpudbd with a month of runs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.now_s = NOW_S
        self.acts: list[AuditEvent] = []
        self.database_is_down = False
        self.jobs_a_day = 3
        (root / "policy.yaml").write_text(POLICY)

    def nodes(self) -> list[SlurmNode]:
        return nodes()

    def jobs(self, job_ids: Any = None) -> list[Any]:
        return []

    def run_bare(self, *argv: str) -> int:
        site = CommandSite(
            config_path=self.root / "slurm-gpu.yaml",
            connect_slurm=lambda: self,
            connect_limits=lambda: self.store,
            connect_database=lambda _: self,  # type: ignore[arg-type,return-value]
            wall=lambda: self.now_s,
        )
        return main(["policy", *argv], site)

    def __enter__(self) -> Self:
        if self.database_is_down:
            raise DatabaseError("slurm-gpudbd cannot be reached")
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def all_runs(self, since_s: int, until_s: int | None, limit: int) -> Iterator[Run]:
        """Yield one-hour jobs of each day, submitted together and run in turn under a limit of one GPU."""
        for day in range(1, 40):
            for place in range(self.jobs_a_day):
                at_s = self.now_s - day * DAY
                if at_s >= since_s:
                    yield self._run(100 * day + place, at_s, at_s + place * HOUR)

    def _run(self, job_id: int, at_s: int, start_s: int) -> Run:
        tres = {"cpu": 1.0, "mem": 100.0, "gres/gpu": 1.0}
        return make_run(
            id=str(job_id),
            job_id=job_id,
            submit_s=at_s,
            eligible_s=at_s,
            start_s=start_s,
            end_s=start_s + HOUR,
            n_gpus=1.0,
            gpu_type=None,
            time_limit_s=2 * HOUR,
            tres_requested=tres,
            tres_allocated=tres,
        )

    def send_audit_events(self, acts: list[AuditEvent]) -> None:
        self.acts += acts

    @property
    def limit(self) -> int | None:
        """Return gpus_running of the current policy."""
        return single_value(load_policy(self.root / "policy.yaml")[0].rules[0], "gpus_running")

    @property
    def slurm_limits(self) -> set[int | None]:
        """Return alice's limits on GPUs in slurmdbd."""
        (alice,) = (one for one in self.store.associations("c") if one.user == "alice")
        return {value for field, value in alice.limits.items() if field.item == "gres/gpu"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdjustedCluster:
    for name in ("SLURM_GPU_POLICY", "SLURM_GPU_RUN_DIR", "SLURM_GPU_POLICY_STATE"):
        monkeypatch.delenv(name, raising=False)
    made = AdjustedCluster(tmp_path)
    assert made.run("apply") == 0
    return made


def test_a_step_that_shortens_waiting_is_applied_saved_and_recorded(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.slurm_limits == {1}
    assert cluster.run("adjust") == 0
    assert "Moved: gpus_running of share: 1 → 2 (according to the model, the mean wait of all jobs falls" in (
        capsys.readouterr().out
    )
    assert (cluster.limit, cluster.slurm_limits) == (2000, {2})
    assert (cluster.root / "policy.yaml").read_text() == POLICY
    (act,) = cluster.acts
    assert (act.action, act.subject, act.old, act.new) == ("limit moved", "gpus_running of share", "1", "2")
    assert act.evidence["waits"]["vision"]["before"]["mean_h"] == pytest.approx(1, abs=0.02)
    assert cluster.run("status") == 0
    assert "Moved by policy adjust 2026-11-21 " in capsys.readouterr().out
    cluster.run("status", "--json")
    assert [(move["new"], move["counts"]) for move in json.loads(capsys.readouterr().out)["moved"]] == [
        (2000, True)
    ]


def test_an_earlier_apply_does_not_undo_an_adjustment(
    cluster: AdjustedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`apply` starts before the limit moves, and reads the policy afterwards."""
    lock = ApplyJournal.lock

    def after_adjustment(journal: ApplyJournal) -> AbstractContextManager[None]:
        monkeypatch.setattr(ApplyJournal, "lock", lock)
        assert cluster.run("adjust") == 0
        return lock(journal)

    monkeypatch.setattr(ApplyJournal, "lock", after_adjustment)
    assert cluster.run("apply") == 0
    assert (cluster.limit, cluster.slurm_limits) == (2000, {2})
    assert cluster.run("status") == 0, "the policy in force does not include the step"


@pytest.mark.parametrize("option", [[], ["--undo"]])
def test_a_concurrent_adjust_fails_and_moves_nothing(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    cluster.run("adjust")
    cluster.now_s += 8 * DAY
    with ApplyJournal(cluster.root / "state").adjust_lock():
        assert cluster.run("adjust", *option) == 3
        assert "another `slurm-gpu policy adjust` is running on this host" in capsys.readouterr().err
        assert cluster.run("adjust", "--dry-run") == 0, "a dry run moves nothing"
    assert (cluster.limit, cluster.slurm_limits) == (2000, {2})
    assert cluster.run("adjust", "--undo") == 0
    assert (cluster.limit, cluster.slurm_limits) == (1000, {1})


def test_undo_restores_the_limit_and_adjust_never_moves_it_again(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("adjust") == 0
    assert cluster.run("adjust", "--undo") == 0
    assert (cluster.limit, cluster.slurm_limits) == (1000, {1})
    assert [act.action for act in cluster.acts] == ["limit moved", "limit moved back"]
    cluster.now_s += 30 * DAY
    capsys.readouterr()
    assert cluster.run("adjust") == 0
    assert (
        "every limit with `adjust:` was rolled back once, and such limits are not moved again"
        in capsys.readouterr().out
    )
    assert cluster.limit == 1000
    assert cluster.run("adjust", "--undo") == 2


def test_a_move_can_be_undone_while_slurm_gpudbd_is_down(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("adjust") == 0
    cluster.database_is_down = True
    assert cluster.run("adjust", "--undo") == 0
    assert cluster.slurm_limits == {1}
    assert "could not be recorded" in capsys.readouterr().err


def test_adjust_stays_within_the_bounds_and_waits_a_week_between_moves(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("adjust") == 0
    cluster.now_s += 6 * DAY
    capsys.readouterr()
    assert cluster.run("adjust") == 0
    assert "The last move was 6.0 days ago" in capsys.readouterr().out
    cluster.now_s += 20 * DAY
    assert cluster.run("adjust") == 0
    assert cluster.limit == 2000
    assert len(cluster.acts) == 1


def test_without_adjust_no_limit_moves(cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster.root / "policy.yaml").write_text(POLICY.replace("    adjust: {gpus_running: [1, 2]}\n", ""))
    cluster.database_is_down = True  # adjust does not query slurm-gpudbd
    assert cluster.run("adjust") == 0
    assert "has `adjust:`, so no limit is moved" in capsys.readouterr().out
    assert not moves_path(cluster.root / "policy.yaml").exists()


def test_an_edit_that_is_not_applied_yet_stops_adjust(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster.root / "policy.yaml").write_text(POLICY.replace("One each", "Only one each"))
    assert cluster.run("adjust") == 1
    assert "so no limit is moved" in capsys.readouterr().err
    assert not cluster.acts


def test_check_and_status_report_a_move_that_an_edit_replaced(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("adjust") == 0
    (cluster.root / "policy.yaml").write_text(POLICY.replace("gpus_running: 1}", "gpus_running: 2}"))
    capsys.readouterr()
    assert cluster.run_bare("check") == 0
    why = "gpus_running of share: 1 → 2 no longer applies: the value in policy.yaml was changed"
    assert why in capsys.readouterr().err
    cluster.run("status")
    assert "No longer in effect: gpus_running of share: 1 → 2" in capsys.readouterr().out
    assert cluster.limit == 2000


def test_a_dry_run_reports_the_move_and_moves_nothing(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("adjust", "--dry-run") == 0
    assert "Would move: gpus_running of share: 1 → 2" in capsys.readouterr().out
    assert (cluster.limit, cluster.acts) == (1000, [])


def test_no_limit_moves_if_the_model_does_not_reproduce_the_waits(
    cluster: AdjustedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.jobs_a_day = 1
    recorded = cluster._run
    monkeypatch.setattr(
        cluster, "_run", lambda job_id, at_s, start_s: recorded(job_id, at_s, start_s + 5 * HOUR)
    )
    assert cluster.run("adjust") == 0
    printed = capsys.readouterr()
    assert "No limit is moved: the model does not reproduce" in printed.out
    assert "all jobs: " in printed.err
    assert cluster.limit == 1000


def test_a_step_that_cannot_be_applied_changes_nothing_and_is_recorded(
    cluster: AdjustedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SlurmError("slurmdbd is down")

    monkeypatch.setattr(cluster.store, "set_limits", refuse)
    assert cluster.run("adjust") == 3
    assert (cluster.limit, cluster.slurm_limits) == (1000, {1})
    assert [act.action for act in cluster.acts] == ["limit moved", "limit not moved"]


def test_a_step_that_cannot_be_recorded_is_not_applied(
    cluster: AdjustedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise DatabaseError("slurm-gpudbd cannot be reached")

    monkeypatch.setattr(cluster, "send_audit_events", refuse)
    assert cluster.run("adjust") == 3
    assert (cluster.limit, cluster.slurm_limits) == (1000, {1})
