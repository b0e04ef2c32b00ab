"""Jobs admitted but not yet in slurmctld's table count against limits, also across reloads and restarts."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.policy.lua.bundle import build_bundle
from slurm_gpu.policy.lua.decisions import DecisionLine
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript, ScriptDecision

from .compile import compiled
from .model import Request, RuleModel
from .render import PARTITIONS, description, record

ALICE = Request(uid=1001, account="vision", per_job=1)
FIVE = RuleModel("five", "user", limits={"jobs_total": 5})


@dataclass
class Controller:
    """A slurmctld around the script: a clock, the queue, and a job table that may be stale."""

    log: Path
    lua: str = "5.4"
    rules: list[RuleModel] = field(default_factory=lambda: [FIVE])
    second: int = 1_000_000
    queue: list[dict[str, Any]] = field(default_factory=list)
    script: PolicyScript = field(init=False)

    def __post_init__(self) -> None:
        self.load()

    def load(self) -> None:
        """Load the script again, as after `policy apply` or a restart; Slurm then fills the job table."""
        bundle = build_bundle(
            compiled(self.rules, str(self.log), job_state=str(self.log.with_name("job_state")))
        )
        self.script = PolicyScript(bundle, lua=self.lua, writes=True, now=lambda: self.second)
        self.script.set_jobs(self.queue)

    def save_state(self) -> None:
        """Write the strings of jobs unchanged into the state file, as slurmctld does within seconds."""
        saved = b"\x00\x07".join(str(row.get("admin_comment")).encode() for row in self.queue)
        self.log.with_name("job_state").write_bytes(b"\xff\x00" + saved)

    def show_queue(self) -> None:
        self.script.set_jobs(self.queue)

    def ask(self, request: Request = ALICE) -> ScriptDecision:
        """Submit a job that does not enter the queue: with --test-only, or refused by Slurm afterwards."""
        return self.script.submit(description(request), PARTITIONS)

    def submit(self, request: Request = ALICE) -> bool:
        """Submit a job and add it to the queue if admitted; the job table does not show it yet."""
        verdict = self.ask(request)
        if verdict.accepted:
            comment = verdict.desc["admin_comment"]
            job_id = 10 + len(self.queue)
            self.queue.append(record(job_id, request, admin_comment=comment, submit_time=self.second))
        return verdict.accepted


@pytest.fixture(params=LUA_VERSIONS)
def controller(request: pytest.FixtureRequest, tmp_path: Path) -> Controller:
    return Controller(tmp_path / "decisions.log", lua=request.param)


def test_admissions_missing_from_a_stale_table_count(controller: Controller) -> None:
    assert [controller.submit() for _ in range(8)] == [True] * 5 + [False] * 3


def test_a_job_in_the_table_counts_once(controller: Controller) -> None:
    assert [controller.submit() for _ in range(3)] == [True] * 3
    controller.second += 1
    controller.show_queue()
    assert [controller.submit() for _ in range(3)] == [True, True, False]


def test_admissions_count_after_a_reload_with_a_stale_table(controller: Controller) -> None:
    """Admit three, reload with a table that shows one of them, and submit five more."""
    for _ in range(3):
        assert controller.submit()
    hidden, controller.queue = controller.queue[1:], controller.queue[:1]
    controller.load()
    controller.queue += hidden
    assert [controller.submit() for _ in range(5)] == [True, True, False, False, False]
    controller.second += 1
    controller.show_queue()
    assert not controller.submit()


def test_a_new_policy_counts_jobs_admitted_before_its_reload(controller: Controller) -> None:
    for _ in range(3):
        controller.submit()
    controller.queue.clear()
    controller.rules = [RuleModel("four", "user", accounts=frozenset({"vision"}), limits={"jobs_total": 4})]
    controller.load()
    assert [controller.submit(), controller.submit()] == [True, False]


def test_a_restart_seconds_later_drops_admissions_that_became_no_job(controller: Controller) -> None:
    for _ in range(5):
        assert controller.ask().accepted
    controller.second += 2
    controller.load()
    assert controller.ask().accepted


def test_admissions_that_became_no_job_are_dropped_after_two_seconds(controller: Controller) -> None:
    for _ in range(5):
        assert controller.ask().accepted
    controller.second += 1
    controller.show_queue()
    assert not controller.ask().accepted  # a job could still be on its way into the queue
    controller.second += 1
    controller.show_queue()
    assert controller.ask().accepted


def test_on_an_idle_cluster_the_saved_state_distinguishes_jobs_from_dropped_admissions(
    controller: Controller,
) -> None:
    """Slurm renews its job table only when a job changes, at most once per second."""
    assert controller.submit()
    dropped = [controller.ask() for _ in range(4)]
    assert all(verdict.accepted for verdict in dropped)
    controller.save_state()
    controller.second += 9
    assert not controller.submit()
    controller.second += 1
    assert [controller.submit() for _ in range(5)] == [True] * 4 + [False]
    controller.save_state()
    controller.second += 3600
    assert not controller.submit()


def test_a_clock_that_is_set_back_keeps_no_dropped_admission(controller: Controller) -> None:
    """The cluster is idle, so no new job table appears."""
    controller.log.with_name("clustername").write_text("lab")
    assert all(controller.ask().accepted for _ in range(5))
    controller.second += 9
    assert not controller.ask().accepted
    controller.second -= 3600
    assert not controller.ask().accepted
    controller.second += 10
    assert controller.ask().accepted


def test_a_clock_that_is_set_back_ends_the_extra_time_for_a_slow_slurmctld(controller: Controller) -> None:
    assert controller.submit()
    controller.queue[0]["submit_time"] = controller.second + 50
    controller.second += 1
    controller.show_queue()
    assert [controller.ask().accepted for _ in range(5)] == [True] * 4 + [False]
    controller.second -= 3600
    controller.show_queue()
    assert not controller.ask().accepted
    controller.second += 2
    controller.show_queue()
    assert controller.ask().accepted


def test_a_refusal_states_the_just_submitted_part_and_when_to_try_again(controller: Controller) -> None:
    """Slurm refused three jobs after the script admitted them (wrong QOS, say), so they are not in squeue."""
    controller.rules = [RuleModel("share", "user", limits={"gpus_total": 12000})]
    controller.load()
    four = Request(uid=1001, account="vision", per_job=4)
    assert all(controller.ask(four).accepted for _ in range(3))
    controller.save_state()
    controller.second += 2
    refusal = controller.ask(four)
    assert refusal.messages[1:4] == (
        "  GPUs running + pending: used 12 (12 just submitted), limit 12, requested 4.",
        "  Jobs that were just submitted count before they appear in the queue. If Slurm",
        "    refused them, try again in 8 s; otherwise wait for a job to end.",
    )
    controller.second += 8
    assert controller.ask(four).accepted


def test_jobs_in_the_queue_are_not_reported_as_just_submitted(controller: Controller) -> None:
    assert [controller.submit() for _ in range(5)] == [True] * 5
    controller.save_state()
    controller.second += 10
    assert "used 5, limit 5" in controller.ask().messages[1]
    controller.second += 1
    controller.show_queue()
    assert controller.ask().messages[1:3] == (
        "  jobs running + pending: used 5, limit 5, requested 1.",
        "  No smaller request fits the limits now. Wait for a job to end, or cancel one:",
    )


def test_without_a_saved_state_admissions_keep_counting(controller: Controller) -> None:
    for _ in range(5):
        controller.submit()
    controller.second += 3600
    assert not controller.submit()


def test_admissions_are_dropped_also_on_a_cluster_that_never_had_a_job(controller: Controller) -> None:
    """slurmctld writes the cluster's name at its first start, but no job state before the first job."""
    controller.log.with_name("clustername").write_text("lab")
    assert all(controller.ask().accepted for _ in range(5))
    controller.second += 9
    refusal = controller.ask()
    assert "appear in the queue. If Slurm" in refusal.messages[2]
    assert refusal.messages[3] == "    refused them, try again in 1 s; otherwise wait for a job to end."
    controller.second += 1
    assert [controller.submit() for _ in range(6)] == [True] * 5 + [False]


def test_admissions_count_longer_after_a_slow_submission(controller: Controller) -> None:
    """One job reached the queue only after three seconds, so other jobs may take as long."""
    assert controller.submit()
    controller.queue[0]["submit_time"] = controller.second + 3
    controller.second += 1
    delayed = [controller.ask().desc["admin_comment"] for _ in range(4)]
    controller.show_queue()
    assert not controller.ask().accepted
    controller.second += 2
    controller.queue[0]["job_state"] = 1
    controller.show_queue()
    assert not controller.submit()
    for number, comment in enumerate(delayed):
        controller.queue.append(record(50 + number, ALICE, admin_comment=comment))
    controller.second += 1
    controller.show_queue()
    assert not controller.submit()


def test_each_array_task_counts_until_it_ends(controller: Controller) -> None:
    array = Request(uid=1001, account="vision", per_job=1, array_tasks=4)
    assert controller.submit(array)
    assert not controller.submit(array)
    controller.second += 1
    controller.show_queue()
    assert controller.submit()
    assert not controller.submit()
    controller.second += 1
    controller.queue[0]["array_task_cnt"] = 1  # three tasks have ended
    controller.show_queue()
    assert [controller.submit() for _ in range(4)] == [True, True, True, False]


def test_ended_jobs_do_not_count(controller: Controller) -> None:
    for _ in range(5):
        controller.submit()
    controller.second += 1
    controller.show_queue()
    assert not controller.submit()
    for row, state in zip(controller.queue, (3, 4, 1 | 0x8000, 5 | 0x8000, 2), strict=True):
        row["job_state"] = (
            state  # completed, cancelled, running (completing flag), failed (completing), suspended
        )
    controller.second += 1
    controller.show_queue()
    assert [controller.submit() for _ in range(4)] == [True, True, True, False]


def test_a_job_cancelled_right_away_does_not_count_after_a_reload(controller: Controller) -> None:
    for _ in range(5):
        controller.submit()
    for row in controller.queue[:2]:
        row["job_state"] = 4
    controller.save_state()
    controller.load()
    assert [controller.submit() for _ in range(3)] == [True, True, False]
    controller.save_state()
    controller.second += 60
    assert not controller.submit()


def test_an_unwritable_log_refuses_no_job_and_is_reported(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "missing" / "decisions.log")
    first, second = controller.ask(), controller.ask()
    assert first.accepted
    assert second.accepted
    assert [level for level, _ in first.log] == ["error"]
    assert "decisions are not being logged" in first.log[0][1]
    assert second.log == ()  # the script logs this error once a minute


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_after_a_line_truncated_by_a_full_file_system_the_next_line_is_intact(
    tmp_path: Path, lua: str
) -> None:
    controller = Controller(tmp_path / "decisions.log", lua)
    controller.ask()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (controller.log.stat().st_size + 40, before[1]))
    try:
        cut, lost = controller.ask(), controller.ask()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cut.accepted
    assert lost.accepted
    controller.ask()
    lines = [DecisionLine.read(line) for line in controller.log.read_text().splitlines()]
    assert [line is not None for line in lines] == [True, False, True]


def test_an_unreadable_log_refuses_no_job_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "decisions.log").mkdir()
    controller = Controller(tmp_path / "decisions.log")
    first, second = controller.ask(), controller.ask()
    assert first.accepted
    assert [text.partition(": ")[2].partition(":")[0] for _, text in first.log] == [
        f"{controller.log} cannot be read",
        "decisions are not being logged",
    ]
    assert second.accepted
    assert second.log == ()


def test_a_long_log_is_rotated(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "decisions.log")
    controller.log.write_text("x" * (2**20 + 1))
    assert controller.ask().accepted
    assert controller.log.read_text().count("\n") == 1
    assert (tmp_path / "decisions.log.1").stat().st_size == 2**20 + 1


def test_foreign_lines_in_the_log_are_ignored(controller: Controller) -> None:
    controller.log.write_bytes(
        b"\xff\xfe garbage\nslurm-gpu/1 999999 submit allow tok uid=x tasks= mgpu=-\n"
        b"slurm-gpu/1 1000000 submit deny - uid=1001 tasks=5 mgpu=0\nslurm-gpu/1 99"
    )
    controller.load()
    assert [controller.submit() for _ in range(6)] == [True] * 5 + [False]
