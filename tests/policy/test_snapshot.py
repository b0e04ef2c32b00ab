"""Sums come from a valid snapshot of slurm-gpuctld, and otherwise from the queue itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, record, snapshot

ALICE = Request(uid=1001, account="vision", per_job=1)
SHARE = RuleModel("share", "user", limits={"gpus_total": 6000})
UNREADABLE: list[dict[str, Any]] = [{"job_id": 1, "job_state": "?"}]


@dataclass
class Site:
    """A controller with a clock, a snapshot file and the script."""

    directory: Path
    lua: str = "5.4"
    rules: list[RuleModel] = field(default_factory=lambda: [SHARE])
    on_error: str = "allow"
    second: int = 1_000_000
    script: PolicyScript = field(init=False)

    def __post_init__(self) -> None:
        self.load()

    @property
    def file(self) -> Path:
        return self.directory / "snapshot.txt"

    def load(self, **more: Plain) -> None:
        table = compiled(
            self.rules,
            str(self.directory / "decisions.log"),
            snapshot=str(self.file),
            job_state=str(self.directory / "job_state"),
            **more,
        )
        for rule in table["rules"]:  # type: ignore[union-attr]
            rule["on_error"] = self.on_error  # type: ignore[index,call-overload]
        self.script = PolicyScript(build_bundle(table), lua=self.lua, writes=True, now=lambda: self.second)

    def write_snapshot(self, *jobs: Request, tokens: tuple[str, ...] = (), at: int | None = None) -> None:
        """Write the snapshot of slurm-gpuctld for these pending jobs."""
        as_of = self.second if at is None else at
        pending = [(job, False) for job in jobs]
        self.file.write_text(snapshot(as_of, as_of, self.rules, pending, tokens))

    def submit(self, gpus: int = 1) -> ScriptDecision:
        return self.script.submit(description(Request(uid=1001, account="vision", per_job=gpus)), PARTITIONS)

    def token(self, verdict: ScriptDecision) -> str:
        return str(verdict.desc["admin_comment"]).split()[1].removeprefix("t=")


@pytest.fixture(params=LUA_VERSIONS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, lua=request.param)


def test_with_a_snapshot_the_queue_is_not_read(site: Site) -> None:
    site.script.set_jobs(UNREADABLE)
    site.write_snapshot(*[ALICE] * 4)
    assert not site.submit(3).accepted
    verdict = site.submit(2)
    assert verdict.accepted
    assert verdict.log == ()
    refusal = site.submit(1)
    assert "used 6 (2 just submitted), limit 6, requested 1" in refusal.messages[1]


def test_an_admission_counts_once_before_and_after_a_snapshot_shows_it(site: Site) -> None:
    site.write_snapshot()
    first = site.submit(4)
    site.second += 1
    site.write_snapshot(Request(uid=1001, account="vision", per_job=4), tokens=(site.token(first),))
    assert not site.submit(3).accepted
    assert site.submit(2).accepted


def test_additional_fields_after_tokens_are_ignored(site: Site) -> None:
    site.write_snapshot()
    first, second = (site.token(site.submit(2)) for _ in range(2))
    site.second += 1
    four = Request(uid=1001, account="vision", per_job=4)
    site.write_snapshot(
        four, tokens=(f"{first} {site.second} more", f"{second} {site.second}\nzone z small 12000 1")
    )
    assert not site.submit(3).accepted
    assert site.submit(2).accepted


def test_an_admission_counts_while_snapshots_may_be_too_early(site: Site) -> None:
    site.write_snapshot()
    site.submit(6)
    site.second += 1
    site.write_snapshot()  # at most a second after submission, so the job may not be in the queue yet
    assert not site.submit().accepted
    site.second += 1
    site.write_snapshot(at=site.second - 1)
    assert not site.submit().accepted


def test_admissions_count_longer_while_submissions_are_slow(site: Site) -> None:
    site.write_snapshot()
    first = site.submit(1)
    site.second += 5
    site.write_snapshot(
        ALICE, tokens=(f"{site.token(first)} {site.second}",)
    )  # the submission took five seconds
    second = site.submit(4)
    for _ in range(6):
        site.second += 1
        site.write_snapshot(ALICE)
        assert not site.submit(2).accepted
    site.write_snapshot(ALICE, Request(uid=1001, account="vision", per_job=4), tokens=(site.token(second),))
    assert not site.submit(2).accepted
    assert site.submit(1).accepted


def test_admissions_that_became_no_job_are_dropped_after_two_seconds(site: Site) -> None:
    site.write_snapshot()
    for _ in range(6):
        assert site.submit().accepted
    assert not site.submit().accepted
    site.second += 2
    site.write_snapshot()
    assert site.submit().accepted


def test_admissions_count_after_a_reload(site: Site) -> None:
    site.write_snapshot()
    site.submit(5)
    site.load()
    assert not site.submit(2).accepted
    assert site.submit(1).accepted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a snapshot"),
        (
            "slurm-gpu-snapshot 1 7 1000000\ngroups test\nuse user:alice@group-share mgpu_pend=0\n",
            "is incomplete",
        ),
        ("slurm-gpu-snapshot 1 7 1000000\ngroups test\nend 6\n", "is incomplete"),
        ("slurm-gpu-snapshot 2 7 1000000\ngroups test\nend 7\n", "is not a snapshot"),
        ("slurm-gpu-snapshot 1 7 999960\ngroups test\nend 7\n", "is 40 s old"),
        ("slurm-gpu-snapshot 1 7 1000090\ngroups test\nend 7\n", "is -90 s old"),
        ("slurm-gpu-snapshot 1 7 1000000\ngroups other\nend 7\n", None),  # as right after `policy apply`
        ("slurm-gpu-snapshot 1 7 1000000\nend 7\n", None),
        (None, "No such file or directory"),
    ],
    ids=["empty", "half", "end of another", "version", "old", "of the future", "groups", "no groups", "none"],
)
def test_without_a_valid_snapshot_the_queue_is_read_and_one_line_is_logged(
    site: Site, text: str | None, message: str | None
) -> None:
    if text is not None:
        site.file.write_text(text)
    four = record(1, Request(uid=1001, account="vision", per_job=4))
    site.script.set_jobs([four])
    refused = site.submit(3)
    assert not refused.accepted
    assert [text for _, text in refused.log] == ([] if message is None else [refused.log[0][1]])
    for level, line in refused.log:
        assert level == "info"
        assert line.startswith("slurm-gpu: ")
        assert line.endswith(f"{message}; the queue is counted instead")
    site.script.set_jobs([four])
    verdict = site.submit(2)
    assert verdict.accepted
    assert verdict.log == ()
    site.second += 1
    site.write_snapshot(*[ALICE] * 6)
    again = [] if message is None else [("info", f"slurm-gpu: {site.file} is valid again")]
    assert list(site.submit(1).log) == again


def test_jobs_read_from_the_queue_count_despite_an_older_snapshot(site: Site) -> None:
    """slurm-gpuctld has just started, and its first snapshot lacks the latest jobs."""
    site.script.set_jobs([])
    first = site.submit(6)
    site.second += 1
    row = record(1, Request(uid=1001, account="vision", per_job=6), admin_comment=first.desc["admin_comment"])
    site.script.set_jobs([row])
    assert not site.submit().accepted
    site.write_snapshot(at=site.second - 2)
    assert not site.submit().accepted


def test_a_stale_snapshot_is_used_until_a_job_changes(site: Site) -> None:
    """slurm.jobs is readable only during the call that built it, and that call used the snapshot."""
    site.script.set_jobs(UNREADABLE)
    site.write_snapshot(*[ALICE] * 5)
    assert not site.submit(2).accepted
    site.second += 60
    assert not site.submit(2).accepted
    assert site.submit(1).accepted
    site.script.set_jobs([record(1, ALICE)])
    site.second += 2
    assert site.submit(4).accepted


@pytest.mark.parametrize(("on_error", "accepted"), [("allow", True), ("deny", False)])
def test_a_long_queue_with_a_stale_snapshot_follows_on_error(
    tmp_path: Path, on_error: str, accepted: bool
) -> None:
    site = Site(tmp_path, on_error=on_error)
    site.write_snapshot(at=site.second - 31)
    site.script.set_jobs([{"job_id": number} for number in range(20_001)])
    for _ in range(2):
        verdict = site.submit(7)
        assert verdict.accepted is accepted
        assert [level for level, _ in verdict.log] == ["error"]
    site.script.set_jobs([record(1, ALICE)])
    assert not site.submit(6).accepted


def test_a_long_queue_without_any_snapshot_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.script.set_jobs([record(number, ALICE, job_state=3) for number in range(20_001)])
    assert not site.submit(7).accepted


def test_gpu_hours_need_the_snapshot_and_follow_on_error_without_it(tmp_path: Path) -> None:
    hours = RuleModel("hours", "user", limits={"gpu_hours:week": 10})
    site = Site(tmp_path, rules=[hours])
    site.file.write_text(snapshot(1, site.second, [hours], [], hours={("hours", 1001, "gpu_hours:week"): 7}))
    refusal = site.submit(4)  # for an hour, the default of the partition
    assert refusal.messages[1] == "  GPU-hours this week: used 7, limit 10, requested 4."
    assert refusal.messages[2].endswith("sbatch --time=00:45:00 ...")
    assert site.submit(3).accepted
    site.file.unlink()
    verdict = site.submit(4)
    assert verdict.accepted
    assert [text for _, text in verdict.log] == [
        "slurm-gpu: rule hours failed: GPU-hours are unknown: they require a snapshot from slurm-gpuctld"
    ]
    denying = Site(tmp_path, rules=[hours], on_error="deny")
    assert not denying.submit(4).accepted


def test_a_job_over_a_whole_budget_is_refused_without_a_snapshot(tmp_path: Path) -> None:
    hours = RuleModel("hours", "user", limits={"gpu_hours:week": 10})
    numbers = "  GPU-hours this week: limit 10, requested 11."
    refusal = Site(tmp_path, rules=[hours]).submit(11)
    assert refusal.messages[1:3] == (numbers, "  Try: sbatch --time=00:54:00 ...")
    denying = Site(tmp_path, rules=[hours], on_error="deny").submit(11)
    # A smaller job would be refused, too.
    assert denying.messages[1:3] == (numbers, refusal.messages[3])


def test_an_update_of_the_time_limit_is_checked_against_gpu_hours(tmp_path: Path) -> None:
    hours = RuleModel("hours", "user", limits={"gpu_hours:week": 10})
    site = Site(tmp_path, rules=[hours])
    site.file.write_text(snapshot(1, site.second, [hours], [], hours={("hours", 1001, "gpu_hours:week"): 7}))
    row = record(1, Request(uid=1001, account="vision", per_job=2, minutes=60))
    assert site.script.modify({"time_limit": 90}, row, PARTITIONS).accepted
    assert not site.script.modify({"time_limit": 91}, row, PARTITIONS).accepted
    assert site.script.modify({"time_limit": 30}, row, PARTITIONS).accepted


def test_sums_over_one_kind_of_job_are_read_from_the_queue(tmp_path: Path) -> None:
    shells = RuleModel("shells", "user", kind="interactive", limits={"jobs_total": 1})
    site = Site(tmp_path, rules=[shells])
    site.write_snapshot()
    site.script.set_jobs([record(1, ALICE)])
    shell = Request(uid=1001, account="vision", interactive=True)
    assert site.submit().accepted
    assert site.script.submit(description(shell), PARTITIONS).accepted
    assert not site.script.submit(description(shell), PARTITIONS).accepted
    site.load()
    site.script.set_jobs([record(1, ALICE), record(2, shell)])
    assert not site.script.submit(description(shell), PARTITIONS).accepted
    assert site.submit().accepted


def test_an_update_takes_the_user_name_from_the_snapshot(site: Site) -> None:
    """The job_desc of an update has no user name; the record has only the uid."""
    site.write_snapshot(*[ALICE] * 5)
    row = record(1, ALICE)
    grown = {"tres_per_job": "gres:gpu:3"}
    assert not site.script.modify(grown, row, PARTITIONS).accepted
    assert site.script.modify({"tres_per_job": "gres:gpu:2"}, row, PARTITIONS).accepted


def test_the_job_submitted_last_is_not_named_for_a_limit_on_one_type(tmp_path: Path) -> None:
    site = Site(tmp_path, rules=[RuleModel("share", "user", limits={"gpus_total:a100": 6000})])
    site.write_snapshot(*[ALICE] * 6)
    text = site.file.read_text()
    site.file.write_text(text.replace("mgpu_pend=6000", "mgpu_pend=6000 last_pend=4711"))
    assert site.submit().messages[2] == (
        "  No smaller request fits the limits now. Wait for a job to end; see: squeue --me"
    )


def test_if_nothing_fits_the_job_submitted_last_is_named(site: Site) -> None:
    site.write_snapshot(*[ALICE] * 6)
    text = site.file.read_text()
    assert not any("scancel" in line for line in site.submit().messages)
    site.second += 1
    text = text.replace("1000000", "1000001").replace("mgpu_pend=6000", "mgpu_pend=6000 last_pend=4711")
    site.file.write_text(text)
    assert site.submit().messages[2:4] == (
        "  No smaller request fits the limits now. Wait for a job to end, or cancel one:",
        "    scancel 4711",
    )
