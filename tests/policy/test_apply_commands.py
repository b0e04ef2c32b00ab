"""Run `slurm-gpu policy plan|apply|rollback|status` with a slurmdbd that has Slurm's own limits."""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.slurm.client import QueuedJob

from .apply_host import POLICY, Cluster
from .limitstore import fields


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in ("SLURM_GPU_POLICY", "SLURM_GPU_RUN_DIR", "SLURM_GPU_POLICY_STATE"):
        monkeypatch.delenv(name, raising=False)
    return Cluster(tmp_path)


def test_a_plan_lists_every_change_and_makes_none(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("plan") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Slurm's own limits: to change",
        "  account vision: MaxWall=1-00:00:00 (was no limit; rule days)",
        "  users alice, bob in account vision: GrpTRES=gres/gpu=4 (was no limit; rule share)",
        f"{cluster.script}: would be replaced (missing)",
    ]
    assert cluster.run("apply", "--dry-run") == 0
    assert cluster.store.changes == 0
    assert not (cluster.root / "state").exists()


@pytest.mark.parametrize(("plugins", "expected"), [("lua", "is active"), ("throttle", "was written to")])
def test_a_policy_is_active_only_where_slurmctld_reads_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], plugins: str, expected: str
) -> None:
    cluster.raw["JobSubmitPlugins"] = plugins
    assert cluster.run("apply") == 0
    printed = capsys.readouterr()
    assert f"{cluster.root / 'policy.yaml'} {expected}" in printed.out
    assert ("lacks JobSubmitPlugins=lua" in printed.err) == (plugins != "lua")


def test_a_second_apply_is_up_to_date_and_status_agrees(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.run("status") == 1
    assert "Never applied" in capsys.readouterr().out
    assert cluster.run("apply") == 0
    assert "`slurm-gpu policy rollback` undoes all of this" in capsys.readouterr().out
    changes = cluster.store.changes
    assert cluster.run("apply") == 0
    assert capsys.readouterr().out.splitlines() == [f"{cluster.script} is up to date"]
    assert cluster.store.changes == changes
    assert len(list((cluster.root / "state").glob("apply-*.json"))) == 1
    assert cluster.run("status") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"{cluster.script}: matches {cluster.root / 'policy.yaml'}",
        "Slurm's own limits: nothing to change",
    ]


def test_a_policy_that_changes_before_the_lock_is_acquired_is_applied_as_changed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = ApplyJournal.lock

    def after_edit(journal: ApplyJournal) -> AbstractContextManager[None]:
        cluster.write("manages: {accounts: [vision]}\n", "")
        return lock(journal)

    monkeypatch.setattr(ApplyJournal, "lock", after_edit)
    assert cluster.run("apply") == 0
    assert cluster.store.changes == 0, "limits of an account that is no longer managed were changed"


def test_status_names_changes_by_hand_and_exits_1(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("apply")
    cluster.store.set_by_hand("vision", MaxWall=None)
    capsys.readouterr()
    assert cluster.run("status", "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["native"]["drift"] == [
        {
            "qos": None,
            "account": "vision",
            "user": None,
            "field": "MaxWall",
            "item": None,
            "applied": 1440,
            "found": None,
            "rule": "days",
        }
    ]
    assert printed["native"]["steps"][0]["old"] is None
    assert (printed["script"], printed["differs"]) == ("same", True)
    cluster.run("apply")
    assert cluster.store.associations("c")[0].limits == fields(MaxWall=1440)


def test_status_counts_decisions_by_rule(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.run("apply")
    (cluster.root / "run" / "decisions.log").write_text(
        "slurm-gpu/1 1795263342 submit allow t uid=1 rules=-\n"
        "slurm-gpu/1 1795263343 submit deny - uid=1 rules=share:gpus_total:enforce\n"
    )
    capsys.readouterr()
    assert cluster.run("status") == 0
    printed = capsys.readouterr().out.splitlines()[:-1]
    assert printed[-3] == "Decisions since 2026-11-21 12:15:42 UTC: 1 accepted, 1 refused"
    assert printed[-2].split() == ["RULE", "REFUSED", "CHANGED", "ADVISED", "OBSERVED", "ERRORS"]
    assert printed[-1].split() == ["share", "1", "0", "0", "0", "0"]
    cluster.run("status", "--json")
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert (decisions["accepted"], decisions["rules"]["share"]["refused"]) == (1, 1)


def test_status_says_from_when_to_when_a_rule_was_not_checked(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("apply")
    (cluster.root / "run" / "decisions.log").write_text(
        "slurm-gpu/1 1795263342 submit allow t uid=1 rules=share:gpu_hours:week:error error=no%20snapshot\n"
        "slurm-gpu/1 1795263344 submit allow t uid=1 rules=-\n"
        "slurm-gpu/1 1795263642 submit deny - uid=1 rules=share:gpu_hours:week:error error=no%20snapshot\n"
    )
    capsys.readouterr()
    assert cluster.run("status") == 0
    assert capsys.readouterr().out.splitlines()[-2] == (
        "Rule share was not checked in 2 decisions from 2026-11-21 12:15:42 to 2026-11-21 12:20:42 UTC"
    )


def test_rollback_restores_limits_and_script(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.run("rollback") == 2
    cluster.run("apply")
    first = cluster.script.read_text()
    cluster.write("1d", "2d")
    cluster.run("apply")
    assert cluster.script.read_text() != first
    capsys.readouterr()
    assert cluster.run("rollback") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "  account vision: MaxWall=1-00:00:00 (was 2-00:00:00; as before the apply)"
    assert printed[-1] == f"{cluster.root / 'policy.yaml'} itself is unchanged: apply it again to activate it"
    assert printed[-2] == f"{cluster.script} was restored"
    assert cluster.script.read_text() == first
    assert cluster.run("rollback") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith(
        f"{cluster.script} now accepts every job. The file did not exist before the apply, but"
    )
    assert cluster.store.associations("c")[0].limits == {}
    assert cluster.run("rollback") == 2


def test_status_after_rollbacks_lists_the_apply_in_force_and_the_rolled_back_ones(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster.root / "policy.yaml"
    for days in ("1d", "2d", "3d"):
        file.write_text(POLICY.replace("1d", days))
        assert cluster.run("apply") == 0
    first, second, third = ApplyJournal(cluster.root / "state").entries()
    for _ in range(2):
        assert cluster.run("rollback") == 0
    capsys.readouterr()
    assert cluster.run("status") == 1
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"Applied {first.at} from {file}",
        f"Rolled back later by `policy rollback`: 2 applies of {second.at}, {third.at}",
        f"{cluster.script}: restored by a rollback, and differs from {file}: "
        "`slurm-gpu policy apply` installs the file",
    ]
    assert cluster.run("rollback") == 0
    capsys.readouterr()
    assert cluster.run("status") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "Nothing is applied: every apply was rolled back"
    assert printed[1].startswith("Rolled back later by `policy rollback`: 3 applies of ")
    assert printed[2] == (
        f"{cluster.script}: accepts every job, and differs from {file}: "
        "`slurm-gpu policy apply` installs the file"
    )
    assert cluster.run("status", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["applied"] is None
    assert [one["at"] for one in answer["taken_back"]] == [first.name, second.name, third.name]
    assert cluster.run("apply") == 0
    capsys.readouterr()
    assert cluster.run("status") == 0
    assert "Rolled back" not in capsys.readouterr().out


def pending(job_id: int, user: str, qos: str) -> QueuedJob:
    return QueuedJob(
        job_id=job_id,
        array_job_id=None,
        array_task=None,
        n_tasks=1,
        het_job_id=None,
        name="train",
        user=user,
        uid=1001,
        account="vision",
        qos=qos,
        partition="gpu",
        state="PENDING",
        reason="Resources",
        restarts=0,
        submit_s=0,
        eligible_s=0,
        start_s=None,
        end_s=None,
        time_limit_s=3600,
        n_nodes=1,
        nodes=(),
        tres_requested={"gres/gpu": 2},
        tres_allocated={},
        gpu_index={},
        gres_per_node="",
        features="",
        admin_comment="",
    )


def test_rollback_lists_pending_jobs_in_a_qos_that_their_account_loses(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write_owners()
    cluster.run("apply")
    cluster.queue = [pending(7, "alice", "sg-loans"), pending(8, "bob", "normal")]
    capsys.readouterr()
    assert cluster.run("rollback") == 0
    assert capsys.readouterr().err.splitlines() == [
        "Queued jobs that could never start:",
        "  job 7 of alice waits in QOS sg-loans: account vision may no longer use it; "
        "`scontrol update jobid=7 qos=normal` moves it",
    ]


def test_an_apply_that_ends_lending_lists_pending_jobs_in_the_qos_of_loans(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write_owners()
    cluster.run("apply")
    cluster.queue = [pending(7, "alice", "sg-loans")]
    cluster.write()
    capsys.readouterr()
    assert cluster.run("plan", "--json") == 0
    (stranded,) = json.loads(capsys.readouterr().out)["native"]["stranded"]
    assert stranded == {
        "job_id": 7,
        "user": "alice",
        "qos": None,
        "account": "vision",
        "field": "QOS",
        "item": "sg-loans",
        "limit": None,
        "requested": None,
        "remedy": "scontrol update jobid=7 qos=normal",
    }
    assert cluster.run("apply") == 0
    assert "job 7 of alice waits in QOS sg-loans" in capsys.readouterr().err


def test_rollback_while_slurmctld_is_down_reports_that_stranded_jobs_are_unknown(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("apply")
    cluster.is_down = True
    capsys.readouterr()
    assert cluster.run("rollback") == 0
    assert "cannot check whether queued jobs can still start: slurmctld is down" in capsys.readouterr().err


def test_status_names_the_applied_file(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = cluster.root / "policy.yaml", cluster.root / "other.yaml"
    other.write_text(POLICY.replace("1d", "2d"))
    cluster.run("apply", str(other))
    capsys.readouterr()
    assert cluster.run("status") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(f"from {other}")
    assert printed[1] == (
        f"{cluster.script}: applied from {other}, and differs from {file}: "
        f"`slurm-gpu policy apply` installs {file}, "
        f"and `slurm-gpu policy status {other}` compares the script with {other}"
    )
    assert cluster.run("status", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["script_from"]["policy"], answer["compared_with"]) == (str(other), str(file))
    assert cluster.run("status", str(other)) == 0
    assert f"{cluster.script}: matches {other}" in capsys.readouterr().out
    cluster.script.write_text(cluster.script.read_text() + "-- by hand\n")
    assert cluster.run("status", str(other)) == 1
    assert f"differs from {other}, and from the last apply on this host" in capsys.readouterr().out


def test_decisions_are_read_from_the_log_that_the_script_writes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.run("apply")
    (cluster.root / "run" / "decisions.log").write_text(
        "slurm-gpu/1 1795263342 submit allow t uid=1 rules=-\n"
    )
    capsys.readouterr()
    monkeypatch.setenv("SLURM_GPU_RUN_DIR", str(cluster.root / "elsewhere"))
    assert cluster.run_bare("status", "--state-dir", str(cluster.root / "state")) == 0
    assert "1 accepted, 0 refused" in capsys.readouterr().out


def test_rollback_by_another_user_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.run("apply")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert cluster.run("rollback") == 2


def test_status_by_another_user_names_the_required_user(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.run("apply") == 0
    iterdir = Path.iterdir

    def closed(directory: Path) -> object:
        if directory.name == "state":
            raise PermissionError(13, "Permission denied", str(directory))
        return iterdir(directory)

    monkeypatch.setattr(Path, "iterdir", closed)
    assert cluster.run("status") == 3
    assert "cannot be read: run this as root or SlurmUser" in capsys.readouterr().err


def test_a_refused_script_replacement_changes_no_limits(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.script.write_text("-- ours\n")
    assert cluster.run("apply") == 2
    assert "use --replace" in capsys.readouterr().err
    assert cluster.store.changes == 0


def test_a_failing_slurmdbd_is_reported_and_nothing_is_changed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.store.fail_at = 1
    assert cluster.run("apply") == 3
    assert "sacctmgr gave no answer" in capsys.readouterr().err
    assert not cluster.script.exists()
    assert cluster.store.associations("c")[0].limits == {}


def test_while_slurmdbd_is_down_the_script_can_be_applied_without_limits(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.run("apply")
    before = cluster.store.associations("c")
    cluster.write("1d", "2d")

    def refuse(*_: object) -> None:
        raise SlurmError("slurmdbd is down")

    cluster.store.associations = refuse  # type: ignore[method-assign, assignment]
    capsys.readouterr()
    assert cluster.run("status") == 3
    assert f"differs from {cluster.root / 'policy.yaml'}" in capsys.readouterr().out
    assert cluster.run("apply") == 3
    assert cluster.run("apply", "--lua-only") == 0
    assert "is active" in capsys.readouterr().out
    del cluster.store.associations
    assert cluster.store.associations("c") == before
    assert cluster.run("status") == 1
    assert cluster.run("apply") == 0
    assert cluster.store.associations("c")[0].limits == fields(MaxWall=2880)


def test_apply_names_limits_on_running_jobs_that_are_not_enforced(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write("gpus_total", "gpus_running")
    cluster.raw["AccountingStorageType"] = "accounting_storage/none"
    assert cluster.run("apply") == 0
    printed = capsys.readouterr().err
    assert "warning: this Slurm has no slurmdbd, so only job_submit.lua enforces the policy" in printed
    assert "share: gpus_running: this Slurm has no slurmdbd" in printed
    assert cluster.store.changes == 0


def test_apply_without_slurmdbd_warns_and_names_groups_that_users_can_avoid(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.raw["AccountingStorageType"] = "accounting_storage/none"
    assert cluster.run("apply") == 0
    printed = capsys.readouterr().err
    assert "warning: this Slurm has no slurmdbd, so only job_submit.lua enforces the policy" in printed
    assert "group vision: without slurmdbd, users can name any account or QOS, or no account" in printed
    cluster.write("{vision: {accounts: [vision]}}", "{vision: {users: [root]}}")
    assert cluster.run("apply") == 0
    assert "users can name any account" not in capsys.readouterr().err


def test_apply_creates_the_qos_of_owners_before_the_script_uses_them(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write_owners()
    assert cluster.run("apply", "--lua-only") == 2
    assert "--lua-only does not create the QOS of owners:" in capsys.readouterr().err
    assert not cluster.script.exists()
    assert cluster.run("plan") == 0
    assert "QOS sg-loans: to be created (idle GPUs of vision)" in capsys.readouterr().out
    assert cluster.run("status") == 1
    capsys.readouterr()
    assert cluster.run("apply") == 0
    printed = capsys.readouterr()
    assert "QOS sg-loans: created (idle GPUs of vision)" in printed.out
    assert "to be created" not in printed.out
    assert "account vision: QOS+=sg-vision (rule owners.vision)" in printed.out
    assert "slurm.conf lacks PreemptType=preempt/qos" in printed.err
    assert cluster.run("status") == 0
    assert cluster.run("apply", "--lua-only") == 0
    capsys.readouterr()
    assert cluster.run("plan", "--json") == 0
    assert json.loads(capsys.readouterr().out)["native"]["new_qos"] == []
