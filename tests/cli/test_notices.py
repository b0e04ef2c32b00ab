"""`slurm-gpu notices` lists notices, previews them without sending, and undoes the end of a job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from slurm_gpu.controller.notices import status
from slurm_gpu.controller.notices.status import OutlookEntry, Status
from slurm_gpu.errors import SlurmError
from slurm_gpu.notices import ledger as ledgers
from slurm_gpu.notices.finding import NoticedRun
from slurm_gpu.notices.ledger import Delivery, DeliveryState, End, EndState, Ledger, Notice
from slurm_gpu.slurm.client import QueuedJob, SlurmSettings
from slurm_gpu.wire import Live, LiveDevice
from slurm_gpu.wire.answers.running import RecentXid, Running, RunningUse
from slurm_gpu.wire.answers.runs import AuditEvent
from slurm_gpu.wire.answers.verdicts import JobVerdict, Verdicts
from tests.cli.conftest import CommandLine
from tests.database.samples import queued
from tests.monitor.clusters import cluster, holds, job, node
from tests.slurm.recorded import NOW_S, recorded_client

SETTINGS = 'mode: send\ncontact: help@b.edu\nmail: {from: gpu@b.edu, to: "{user}@b.edu"}\n'
ENDED = End(
    run=NoticedRun(17, NOW_S - 9000),
    id="17_3",
    user="alice",
    name="x\x1b[2J",
    n_gpus=2.0,
    at_s=NOW_S - 60.0,
    how="cancel",
    since_s=NOW_S - 9000.0,
    state=EndState.ENDED,
)
SENT_NOTICE = Notice(
    id="a" * 32,
    user="alice",
    kind="warning",
    stage=1,
    runs={ENDED.run: NOW_S - 9000.0},
    created_s=NOW_S - 3600.0,
    deliveries={"mail": Delivery(state=DeliveryState.SENT, attempts=1, at_s=NOW_S - 3600.0)},
)


class Here:
    """A host of slurmctld with the files of slurm-gpuctld."""

    def __init__(self, line: CommandLine, directory: Path) -> None:
        self.line, self.directory = line, directory
        self.commands: list[list[str]] = []
        self.acts: list[AuditEvent] = []
        self.refuses = False
        client = recorded_client()
        known = client.settings()
        here = replace(
            known,
            conf_path=str(directory / "slurm.conf"),
            raw=MappingProxyType({**known.raw, "StateSaveLocation": str(directory), "MinJobAge": "300 sec"}),
        )
        client.settings = lambda: here  # type: ignore[method-assign]
        self.state: str | None = "CANCELLED"
        client.jobs = self._jobs  # type: ignore[method-assign]
        line.site.connect_slurm = lambda: client
        line.site.run = self._run
        line.database.send_audit_events = self.acts.extend  # type: ignore[attr-defined]
        self.settings: SlurmSettings = here
        (directory / "notices.yaml").write_text(SETTINGS)

    def _run(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        self.commands.append(list(argv))
        if self.refuses:
            raise SlurmError("Invalid job id specified")
        return ""

    def _jobs(self, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        """Return the ended job, or no job if Slurm no longer has it."""
        assert job_ids is not None
        assert list(job_ids) == [17]
        return [] if self.state is None else [queued(job_id=17, state=self.state)]

    def write(self, ledger: Ledger, *lines: OutlookEntry) -> None:
        ledgers.write(self.directory / "slurm-gpu" / "notices.json", ledger, os.geteuid())
        seen = Status(as_of_s=NOW_S - 10.0, mode="send", cancels="enforce", outlook=lines)
        status.write(self.directory / status.FILE_NAME, seen, os.geteuid())

    def __call__(self, *argv: str) -> int:
        return self.line("notices", *argv)


@pytest.fixture
def here(slurm_gpu: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    found = Here(slurm_gpu, tmp_path)
    monkeypatch.setenv("SLURM_GPU_RUN_DIR", str(tmp_path))
    found.write(Ledger([SENT_NOTICE], [ENDED]))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return found


def line(**changes: object) -> OutlookEntry:
    values = {
        "job_id": 18,
        "id": "18",
        "user": "bob",
        "kind": "never_used",
        "stage": 0,
        "since_s": NOW_S - 3000.0,
        "coverage": 0.991,
        "outcome": "mail 2026-11-21 18:10 KST",
    }
    return OutlookEntry(**{**values, **changes})  # type: ignore[arg-type]


def test_current_alerts_sent_notices_and_ended_jobs_are_listed(here: Here) -> None:
    here.write(Ledger([SENT_NOTICE], [ENDED]), line())
    assert here() == 0
    out = here.line.out
    assert "bob" in out
    assert "never used" in out
    assert "warning 2" in out
    assert "Last notices:" in out
    assert "slurm-gpu notices undo JOB" in out
    assert "\x1b" not in out


def test_it_fits_80_columns(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    here.write(Ledger([SENT_NOTICE], [ENDED]), line(user="a_user_with_a_long_name", outcome="word " * 40))
    monkeypatch.setattr("slurm_gpu.cli.output._PIPE_WIDTH", 80)
    assert here() == 0
    assert max(len(one) for one in here.line.out.splitlines()) <= 80


def test_json_has_the_notices(here: Here) -> None:
    here.write(Ledger([SENT_NOTICE], [ENDED]), line())
    assert here("--json") == 0
    answer = json.loads(here.line.out)
    assert (answer["mode"], answer["cancels"]) == ("send", "enforce")
    assert [one["user"] for one in answer["now"]] == ["bob"]
    assert [one["kind"] for one in answer["notices"]] == ["warning"]
    assert [(one["id"], one["state"]) for one in answer["ended"]] == [("17_3", "ended")]


def test_without_notices_yaml_a_remark_is_printed(here: Here) -> None:
    (here.directory / "notices.yaml").unlink()
    assert here() == 0
    assert "no user is notified, and no job is ended" in here.line.err
    assert here("--dry-run") == 2


def test_only_root_and_slurm_user_can_run_it(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert here() == 2
    assert "operators may use --dry-run" in here.line.err
    assert here("undo", "17_3") == 2
    assert "scontrol requeue 17_3" in here.line.err
    assert here.commands == []


class TestDryRun:
    @pytest.fixture(autouse=True)
    def _cluster(self, here: Here) -> None:
        here.write(Ledger())
        start_s = NOW_S - 7200
        idle = job(20, "alice", start_s=start_s, n_gpus=2.0, name="x\r\nBcc: eve@evil.example")
        hot = job(21, "bob", start_s=start_s)
        database = here.line.database
        database.cluster_state = cluster([node("n1", holds(20, 0, 1))], [idle, hot])
        devices = {f"GPU-{number}": LiveDevice(util_pct=0.0, jobs=(20,)) for number in range(2)}
        database.lives = {"n1": Live(at_s=NOW_S, devices=devices)}
        uses = [
            RunningUse(
                job_id=one,
                start_s=start_s,
                coverage=1.0,
                used=used,
                util_p25=0.0,
                util_p95=0.0,
                mem_p25=None,
                mem_p95=None,
            )
            for one, used in ((20, False), (21, True))
        ]
        xid = RecentXid(job_id=21, device="GPU-9", at_s=NOW_S - 60, code=79)
        database.running_state = Running(as_of_s=NOW_S, jobs=uses, xids=[xid])

    def test_the_preview_lists_recipients_and_changes_nothing(self, here: Here) -> None:
        before = (here.directory / "slurm-gpu" / "notices.json").read_bytes()
        assert here("--dry-run") == 0
        assert "alice@b.edu" in here.line.out
        assert "[neuron] 1 job: GPUs never used" in here.line.out
        assert "bob@b.edu" in here.line.out
        assert (here.directory / "slurm-gpu" / "notices.json").read_bytes() == before
        assert (here.commands, here.acts) == ([], [])

    def test_text_prints_the_whole_messages(self, here: Here) -> None:
        assert here("--dry-run", "--text") == 0
        assert "Hello alice," in here.line.out
        assert "Questions: help@b.edu" in here.line.out
        assert "\nBcc:" not in here.line.out

    def test_json_has_the_preview(self, here: Here) -> None:
        assert here("--dry-run", "--json") == 0
        answer = json.loads(here.line.out)
        assert [(one["to"], one["kind"]) for one in answer["would"]] == [
            ("bob@b.edu", "xid"),
            ("alice@b.edu", "never_used"),
        ]
        assert {one["outcome"] for one in answer["now"]} == {"would be sent now"}

    def test_a_diagnosis_is_included_if_the_site_configured_it(self, here: Here) -> None:
        answer = JobVerdict(
            job_id=21,
            start_s=NOW_S - 7200,
            user="bob",
            cause="hang",
            kind="",
            confidence=0.9,
            devices=(),
            nodes=("n1",),
            since_s=None,
            reported_at_s=NOW_S - 3600,
            last_s=NOW_S,
            verdict={"coverage": 1.0, "evidence": [], "next_step": "Look into the log."},
        )
        here.line.database.reported_verdicts = Verdicts(
            as_of_s=NOW_S, watched=1, verdicts=[answer], suspects=[]
        )
        draft = here.directory / "draft.yaml"
        for alerts, subjects in (("", 0), ("alerts: [unhealthy]\n", 1)):
            draft.write_text(SETTINGS + alerts)
            assert here("--dry-run", "--settings", str(draft), "--text") == 0
            assert here.line.out.count("slower than expected, or hanging") == subjects
        assert "hang, 90% confidence: n1\n      Look into the log." in here.line.out

    def test_with_low_coverage_no_notice_is_sent(self, here: Here) -> None:
        running = here.line.database.running_state
        assert running is not None
        uses = [replace(one, coverage=0.5) for one in running.jobs]
        here.line.database.running_state = replace(running, jobs=uses, xids=[])
        assert here("--dry-run") == 0
        assert "No notices would be sent now." in here.line.out

    def test_other_settings_can_be_previewed_and_mistakes_are_named(self, here: Here) -> None:
        draft = here.directory / "draft.yaml"
        draft.write_text(SETTINGS + "alerts: [xid]\n")
        assert here("--dry-run", "--settings", str(draft)) == 0
        assert "alice" not in here.line.out
        draft.write_text("mode: sned\n")
        assert here("--dry-run", "--settings", str(draft)) == 2
        assert "did you mean send?" in here.line.err


class TestUndo:
    def test_a_cancelled_job_is_requeued_with_an_audit_event(self, here: Here) -> None:
        assert here("undo", "17_3") == 0
        assert here.commands == [["scontrol", "requeue", "17_3"]]
        (act,) = here.acts
        assert (act.action, act.subject) == ("idle job brought back", "job 17_3 of alice")

    def test_a_held_job_is_released(self, here: Here) -> None:
        here.write(Ledger([], [replace_end(how="hold")]))
        here.state = "PENDING"
        assert here("undo", "17") == 0
        assert here.commands == [["scontrol", "release", "17_3"]]

    @pytest.mark.parametrize("state", ["PENDING", "RUNNING", "SUSPENDED"])
    def test_a_job_that_is_already_requeued_is_not_requeued_again(self, here: Here, state: str) -> None:
        here.state = state
        assert here("undo", "17_3") == 2
        assert f"job 17_3 is already {state}" in here.line.err
        assert (here.commands, here.acts) == ([], [])

    def test_a_held_job_that_runs_again_is_not_changed(self, here: Here) -> None:
        here.write(Ledger([], [replace_end(how="hold")]))
        here.state = "RUNNING"
        assert here("undo", "17_3") == 2
        assert (here.commands, here.acts) == ([], [])

    def test_a_dry_run_changes_nothing(self, here: Here) -> None:
        assert here("undo", "17_3", "--dry-run") == 0
        assert here.line.out == "Job 17_3 of alice would be requeued\n"
        assert (here.commands, here.acts) == ([], [])

    @pytest.mark.parametrize("name", ["18", "17_4", "1", "--", "17;reboot"])
    def test_other_jobs_are_not_changed(self, here: Here, name: str) -> None:
        assert here("undo", name) == 2
        assert (here.commands, here.acts) == ([], [])

    def test_a_job_that_could_not_be_ended_is_refused(self, here: Here) -> None:
        here.write(Ledger([], [replace_end(state=EndState.FAILED, why="Invalid job id")]))
        assert here("undo", "17_3") == 2
        assert "could not end job 17_3" in here.line.err

    def test_for_a_job_that_slurm_no_longer_has_sacct_is_advised(self, here: Here) -> None:
        here.refuses, here.state = True, None
        assert here("undo", "17_3") == 3
        assert "until 300 sec after their end" in here.line.err
        assert "sacct --batch-script -j 17_3" in here.line.err
        assert here.acts == []


def replace_end(**changes: object) -> End:
    return replace(ENDED, **changes)  # type: ignore[arg-type]
