"""The watcher limits the load on slurmctld, counts correctly, and survives failures."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpu.config.site import SiteConfig, Zone
from slurm_gpu.controller.queue.call_statistics import CountingRun
from slurm_gpu.controller.queue.ended_runs import EVERY_S, EndedRunsPoll
from slurm_gpu.controller.queue.resource_hours import CountedRun
from slurm_gpu.controller.snapshot.snapshot_file import FRESH_S, Snapshot, parse, read_fresh, render
from slurm_gpu.controller.watcher import SEEN_S, QueueWatcher
from slurm_gpu.errors import OutsideError, SlurmError, UsageError
from slurm_gpu.policy.lua.installed import GroupInForce, PolicyInForce, RuleInForce
from slurm_gpu.slurm.client import AccountingRun
from slurm_gpu.slurm.queue import JobPhase

from .fakes import NOON_S, Clock, Slurm, at_once, make_job, make_node, make_row

GRADS = GroupInForce("grads", accounts=frozenset({"vision"}))
LIMITS = {"gpu_hours:day": 10, "gpu_hours:week": 40, "gpu_hours:month": 99}
HOURS = RuleInForce("hours", GRADS, "user", "Others.", "enforce", LIMITS)
POLICY = PolicyInForce((GRADS,), (HOURS,), "ab", shards_per_gpu=4)


class Site:
    """A watcher of a cluster, with its files."""

    def __init__(self, directory: Path, **config: object) -> None:
        self.clock = Clock()
        self.slurm = Slurm(self.clock, str(directory / "slurm.conf"))
        self.script = directory / "job_submit.lua"
        self.script.write_text("policy")
        self.policy: PolicyInForce | None = POLICY
        self.policy_read = 0
        self.cpu_s = 0.0
        self.directory = directory
        self.config = SiteConfig(cluster="lab", **config)  # type: ignore[arg-type]
        self.watcher = self.new_watcher()

    def new_watcher(self, ended: EndedRunsPoll | None = None) -> QueueWatcher:
        ended = EndedRunsPoll(self.slurm, at_once) if ended is None else ended
        return QueueWatcher(
            self.config,
            self.directory,
            self.slurm,
            self.slurm,
            self.slurm.partitions,
            ended,
            self.clock,
            self._read_policy,
            lambda: self.cpu_s,
        )

    def _read_policy(self, script: Path) -> PolicyInForce | None:
        self.policy_read += 1
        if self.policy is None:
            raise OutsideError(f"{script} does not contain a readable policy")
        return self.policy

    def run_cycle(self) -> Snapshot:
        self.pause_s = self.watcher.run_once()
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        return parse(self.watcher.path.read_text())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_each_second_one_question_and_one_snapshot(site: Site) -> None:
    site.slurm.queue = [make_job(1), make_job(2, JobPhase.PENDING)]
    first = site.run_cycle()
    site.clock.advance(site.pause_s)
    site.slurm.asked.clear()
    second = site.run_cycle()
    assert site.slurm.asked == ["queue"]
    assert site.pause_s == pytest.approx(1 - site.slurm.answers_after_s)
    assert (first.groups_id, second.groups_id) == ("ab", "ab")
    assert second.generation > first.generation
    assert second.as_of_s == first.as_of_s + 1
    use = second.usage.of("alice", "grads")
    assert (use.running.mgpu, use.pending.mgpu) == (2000, 2000)


def test_as_of_is_before_the_query_of_slurmctld(site: Site) -> None:
    """Jobs that are admitted while slurmctld answers may be missing from the answer."""
    site.watcher.run_once()
    site.slurm.answers_after_s = 3.0
    asked_s = site.clock.wall()
    asked_up_s = site.clock.monotonic()
    assert site.run_cycle().as_of_s == int(asked_s)
    poll = site.snapshot().timing
    assert poll is not None
    assert (poll.began_s, poll.took_s) == pytest.approx((asked_up_s, 3.0), abs=0.011)
    assert poll.boot_id == site.clock.boot_id()


def test_a_busy_slurmctld_is_polled_less_often_but_in_time(site: Site) -> None:
    site.run_cycle()  # also polls configuration and nodes
    pauses = []
    for answers_after_s in (0.05, 0.5, 1.0, 5.0):
        site.slurm.answers_after_s = answers_after_s
        site.run_cycle()
        pauses.append(site.pause_s)
    assert pauses == pytest.approx([0.95, 7 / 6, 7 / 3, 35 / 3])
    assert max(pauses) + 2 * 5.0 < FRESH_S


def test_a_long_queue_costs_no_more_of_a_core_than_a_short_one(site: Site) -> None:
    """The limit does not apply while a refused user waits for resources."""

    def poll() -> float:
        return site.watcher.run_once()

    site.watcher = site.new_watcher()
    costly = site.slurm.read

    def read() -> list[object]:
        site.cpu_s += 0.2
        return list(costly())

    site.slurm.read = read  # type: ignore[method-assign,assignment]
    poll()
    assert poll() == pytest.approx(0.2 / 0.02)
    log = site.directory / "decisions.log"
    log.write_text("slurm-gpu/1 1 submit allow a uid=1\n")
    poll()
    log.write_text("slurm-gpu/1 1 submit allow a uid=1\nslurm-gpu/1 2 submit deny - uid=1\n")
    assert site.watcher.hurried(10.0) == pytest.approx(0.2 / 0.3)
    site.clock.advance(3.0)
    assert site.watcher.hurried(9.0) == 9.0


def test_after_a_decision_the_next_poll_comes_sooner(site: Site) -> None:
    """The admission of a job that is then cancelled counts until the next snapshot."""
    log = site.directory / "decisions.log"
    log.write_text("slurm-gpu/1 1 submit deny - uid=1\n")
    site.run_cycle()
    assert site.watcher.hurried(site.pause_s) == site.pause_s  # earlier decisions create no demand
    log.write_text("slurm-gpu/1 1 submit deny - uid=1\nslurm-gpu/1 2 submit allow b uid=1\n")
    assert site.watcher.hurried(site.pause_s) < 0.5
    site.run_cycle()
    assert site.pause_s == pytest.approx(0.5 - site.slurm.answers_after_s)
    log.rename(log.with_suffix(".1"))
    log.write_text("slurm-gpu/1 3 submit allow c uid=1\n")
    site.clock.advance(3.0)
    assert site.watcher.hurried(1.0) < 0.5
    site.clock.advance(3.0)
    assert site.watcher.hurried(1.0) > 0.9


def test_an_unreachable_slurmctld_is_polled_less_often_and_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = site.run_cycle()
    site.slurm.down = True
    pauses = []
    for _ in range(8):
        assert site.run_cycle() == before
        pauses.append(round(site.pause_s))
    assert pauses == [2, 4, 8, 16, 20, 20, 20, 20]
    assert read_fresh(site.watcher.path, site.clock.wall() + FRESH_S + 1) is None
    site.slurm.down = False
    site.run_cycle()
    assert site.pause_s < 1
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        f"snapshot {site.watcher.path} could not be written: "
        "Unable to contact slurm controller (connect failure)",
        f"{site.watcher.path} is written again",
    ]


def test_a_directory_that_cannot_be_written_does_not_end_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.watcher.path = site.directory / "gone" / "snapshot.txt"
    site.watcher.run_once()
    site.watcher.run_once()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "gone" in caplog.text


def test_generations_grow_across_restarts_and_clocks_that_are_set_back(site: Site) -> None:
    first = site.run_cycle()
    site.clock.wall_s -= 3600
    site.watcher = site.new_watcher()
    assert site.run_cycle().generation > first.generation


def test_a_new_policy_is_used_from_the_next_poll_on(site: Site) -> None:
    site.run_cycle()
    site.run_cycle()
    assert site.policy_read == 1
    site.policy = PolicyInForce((GroupInForce("all"),), groups_id="cd")
    site.script.write_text("another policy")
    snapshot = site.run_cycle()
    assert snapshot.groups_id == "cd"
    assert snapshot.usage.of(None, "grads").running.jobs == 0


@pytest.mark.parametrize("what", ["missing", "broken"])
def test_without_a_policy_that_can_be_read_nothing_is_summed_up_by_group(site: Site, what: str) -> None:
    site.slurm.queue = [make_job()]
    if what == "missing":
        site.script.unlink()
    site.policy = None
    snapshot = site.run_cycle()
    assert snapshot.groups_id is None
    assert [subject.group for subject in snapshot.usage.by_subject] == [None]


def test_tokens_of_the_last_two_minutes_are_named_once_each(site: Site) -> None:
    def job(job_id: int, token: str, age_s: int, phase: JobPhase = JobPhase.PENDING):  # type: ignore[no-untyped-def]
        comment = f"slurm-gpu/1 t={token} r=five"
        return make_job(job_id, phase, admin_comment=comment, submit_s=NOON_S - age_s)

    site.slurm.queue = [
        job(1, "new", 5),
        job(2, "array", 5),
        job(3, "array", 5, JobPhase.RUNNING),
        job(4, "ended", 60, JobPhase.ENDED),
        job(5, "old", SEEN_S + 10),
        make_job(6, admin_comment="by hand: slurm-gpu/1 t=forged", submit_s=NOON_S),
        job(7, "é", 5),  # set by an operator, and not valid in the file
    ]
    seen = site.run_cycle().seen
    assert seen == {"new": NOON_S - 5, "array": NOON_S - 5, "ended": NOON_S - 60}
    assert list(seen)[-1] == "ended"


def test_gpu_hours_are_those_of_the_accounting_and_of_the_queue(site: Site) -> None:
    hour = 3600
    site.slurm.rows = [
        make_row(1, NOON_S - 3 * hour, NOON_S - 2 * hour),
        make_row(2, NOON_S - hour, None),  # a running job, which is also in the queue
    ]
    site.slurm.queue = [make_job(2, start_s=NOON_S - hour)]
    site.slurm.answers_after_s = 0.0
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_day") == 4.0
    # It ends: the queue shows it now, and accounting ten minutes later.
    site.clock.advance(hour)
    site.slurm.rows.append(make_row(2, NOON_S - hour, NOON_S + hour))
    site.slurm.queue = [make_job(2, JobPhase.ENDED, start_s=NOON_S - hour, end_s=NOON_S + hour)]
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_day") == 6.0


def test_gpu_hours_of_a_run_that_was_resized_count_each_part_by_its_own_gpus(site: Site) -> None:
    """In Slurm 22.05, the queue and the last row contain the start of the whole run."""
    hour, site.slurm.answers_after_s = 3600, 0.0
    start_s = NOON_S - 9 * hour

    def hours() -> float | None:
        return site.run_cycle().hours_of("alice", "grads", "gpu_h_day")

    def queue(gpus: int, **changes: object) -> None:
        site.slurm.queue = [make_job(7, tres=f"gres/gpu={gpus}", start_s=start_s, **changes)]  # type: ignore[arg-type]

    queue(16)
    assert hours() == 9 * 16
    queue(1)  # the job shrank; accounting shows this at the next query
    assert hours() == 9 * 16
    site.clock.advance(hour / 2)
    resized = make_row(7, start_s, NOON_S - 4, 16, state="RESIZING")
    site.slurm.rows = [resized]
    reported = 16 * (9 - 4 / hour)
    assert hours() == pytest.approx(reported + 0.5 + 4 / hour, abs=0.001)
    site.clock.advance(hour / 2)
    end_s = NOON_S + hour
    queue(1, phase=JobPhase.ENDED, end_s=end_s)
    whole = pytest.approx(reported + 1 + 4 / hour, abs=0.001)
    assert [hours(), hours()] == [whole, whole]
    site.clock.advance(EVERY_S)
    site.slurm.rows = [make_row(7, start_s, end_s, 1, submit_s=NOON_S - 4), resized]
    assert [hours(), hours()] == [whole, whole]
    site.watcher = site.new_watcher()
    assert hours() == whole


def test_accounting_is_read_day_by_day_for_the_month_and_then_incrementally(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.run_cycle()
    site.clock.advance(EVERY_S)
    site.run_cycle()
    month_s = NOON_S - 20 * 86400 - 12 * 3600
    asked = [question for question in site.slurm.asked if question.startswith("accounting")]
    days = [f"accounting from {month_s + day * 86400} to {month_s + (day + 1) * 86400}" for day in range(20)]
    assert asked[:-1] == [*days, f"accounting from {NOON_S - 12 * 3600} to None"]
    assert asked[-1] == f"accounting from {NOON_S - 3600} to None"


def with_periods(*periods: str, hard: bool = False) -> PolicyInForce:
    group = replace(GRADS, has_hard_limit=hard)
    rule = replace(HOURS, group=group, limits={f"gpu_hours:{period}": 10 for period in periods}, hard=hard)
    return replace(POLICY, groups=(group,), rules=(rule,))


def test_cpu_hours_are_read_once_a_rule_counts_them(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    hour = 3600
    site.slurm.rows = [
        make_row(
            1, NOON_S - 2 * hour, NOON_S - hour, tres_allocated={"cpu": 8.0, "gres/gpu": 2.0, "billing": 13.0}
        ),
        make_row(2, NOON_S - 2 * hour, NOON_S - hour, gpus=0, tres_allocated={"cpu": 4.0}),
    ]
    site.policy = with_periods("day")
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_day") == 2.0
    assert snapshot.hours_of("alice", "grads", "cpu_h_day") is None
    group = replace(GRADS, has_hard_limit=True)
    rule = replace(HOURS, group=group, limits={"cpu_hours:day": 10, "billing_hours:week": 9}, hard=True)
    site.policy = replace(POLICY, groups=(group,), rules=(*site.policy.rules, rule))
    site.script.write_text("another policy")
    pending = {
        "start_s": None,
        "end_s": None,
        "limit_s": 7200.0,
        "n_cpus": 3,
        "per_node": "",
        "tres": "cpu=3",
    }
    site.slurm.queue = [make_job(3, JobPhase.PENDING, **pending)]  # type: ignore[arg-type]
    for _ in range(2):
        snapshot = site.run_cycle()
        assert snapshot.hours_of("alice", "grads", "gpu_h_day") == 2.0
        assert snapshot.hours_of("alice", "grads", "cpu_h_day") == 12.0
        assert snapshot.hours_of("alice", "grads", "billing_h_week") == 13.0
        assert snapshot.hours_of("alice", "grads", "cpu_h_committed") == 6.0
        assert snapshot.hours_of("alice", "grads", "gpu_h_committed") == 0.0  # no hard rule needs them


def test_hours_on_one_gpu_type_are_those_of_the_allocation_or_of_the_nodes(site: Site) -> None:
    site.slurm.answers_after_s, hour = 0.0, 3600
    site.slurm.node_list = [make_node("n1"), make_node("n2", gpus={"v100": 4})]

    def ended(number: int, nodes: str, **tres: float) -> AccountingRun:
        return make_row(number, NOON_S - 2 * hour, NOON_S - hour, nodes=nodes, tres_allocated=tres)

    site.slurm.rows = [
        ended(1, "n2", **{"gres/gpu": 2.0, "gres/gpu:a100": 2.0}),
        ended(2, "n1", **{"gres/gpu": 1.0}),
        ended(3, "n2", **{"gres/gpu": 4.0}),
        ended(4, "n[1-2]", **{"gres/gpu": 8.0}),  # may be of any type
    ]
    site.slurm.queue = [
        make_job(5, start_s=NOON_S - hour, end_s=NOON_S + hour, tres="gres/gpu=1,gres/gpu:v100=1"),
        make_job(6, JobPhase.PENDING, start_s=None, end_s=None, limit_s=7200.0, per_node="gpu:a100:1"),
    ]
    site.policy = with_periods("day:a100", "week:v100", hard=True)
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_day:a100") == 2 + 1 + 8
    assert snapshot.hours_of("alice", "grads", "gpu_h_week:v100") == 4 + 8 + 1
    assert snapshot.hours_of("alice", "grads", "gpu_h_committed:a100") == 2
    assert snapshot.hours_of("alice", "grads", "gpu_h_committed:v100") == 1
    assert snapshot.hours_of("alice", "grads", "gpu_h_day") is None  # no rule limits the hours on all types
    assert parse(render(snapshot)).hours == snapshot.hours


def test_parts_of_gpus_on_nodes_of_one_type_are_of_this_type(site: Site) -> None:
    site.slurm.answers_after_s, hour = 0.0, 3600
    site.policy = with_periods("day:a100", "day:h100")
    shards = {"tres_allocated": {"gres/gpu": 1.0, "gres/gpu:a100": 1.0, "gres/shard": 4.0}, "nodes": "n1"}
    site.slurm.rows = [make_row(1, NOON_S - 2 * hour, NOON_S - hour, **shards)]
    site.slurm.queue = [
        make_job(2, start_s=NOON_S - hour, end_s=NOON_S + hour, tres="gres/shard=4", nodes="n1")
    ]
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_day:a100") == 3
    assert snapshot.hours_of("alice", "grads", "gpu_h_day:h100") == 0


def test_a_pending_job_counts_only_for_types_in_its_partitions(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    types = {"gpu": frozenset({"a100", "v100"}), "hopper": frozenset({"h100"})}
    policy = with_periods("day:a100", "day:h100", hard=True)
    site.policy = replace(policy, partition_gpu_types=types, partition_gpus={"gpu": 4})
    pending = {"start_s": None, "end_s": None, "limit_s": 7200.0}
    site.slurm.queue = [
        make_job(1, JobPhase.PENDING, per_node="gres:gpu:2", **pending),  # type: ignore[arg-type]
        make_job(2, JobPhase.PENDING, per_node="gres:gpu:v100:2", exclusive=True, **pending),  # type: ignore[arg-type]
    ]
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_committed:h100") == 0
    # The exclusive job gets two more GPUs, which may be A100 GPUs.
    assert snapshot.hours_of("alice", "grads", "gpu_h_committed:a100") == 4 + 4


def test_hours_of_a_unit_that_returns_to_the_policy_are_complete(site: Site) -> None:
    """For example, a rollback restores a limit."""
    site.slurm.answers_after_s = 0.0
    both, one = with_periods("day", "day:a100"), with_periods("day")
    tres = {"gres/gpu": 2.0, "gres/gpu:a100": 2.0}
    running = make_job(2, start_s=NOON_S - 3600, end_s=NOON_S + 3600, tres="gres/gpu=1,gres/gpu:a100=1")
    site.slurm.queue = [running]
    found: list[float | None] = []
    for number, policy in enumerate((both, one, both)):
        site.policy = policy
        site.script.write_text(f"policy {number}")
        if number == 1:
            site.slurm.rows = [make_row(1, NOON_S - 3600, NOON_S, tres_allocated=tres)]
            site.run_cycle()
        found = [site.run_cycle().hours_of("alice", "grads", f"gpu_h_{part}") for part in ("day", "day:a100")]
        site.clock.advance(EVERY_S)
    assert found[0] == found[1] == pytest.approx(2 + 1 + 2 * EVERY_S / 3600, abs=0.001)


def test_a_longer_period_reads_earlier_runs_and_counts_each_once(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.slurm.rows = [
        make_row(number, NOON_S - day * 86400 - 3600, NOON_S - day * 86400)
        for number, day in enumerate((0, 10, 100, 200))
    ]
    site.policy = with_periods("day")
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_day") == 2.0
    site.policy = with_periods("year")
    site.script.write_text("another policy")
    found = [site.run_cycle().hours_of("alice", "grads", "gpu_h_year") for _ in range(12)]
    assert found[0] is None  # it reads a month at once, the latest one first
    assert found[-1] == 8.0


def test_a_short_period_is_known_before_a_long_one(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.slurm.rows = [make_row(1, NOON_S - 3600, NOON_S)]
    site.policy = with_periods("day", "year")
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_day") == 2.0
    assert snapshot.hours_of("alice", "grads", "gpu_h_year") is None
    assert list(snapshot.period_starts) == ["gpu_h_day"]


def test_users_with_hours_and_without_jobs_are_named(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.slurm.rows = [make_row(1, NOON_S - 3600, NOON_S)]
    assert site.run_cycle().usage.uids == {"alice": 1001}


def test_the_hours_of_a_run_that_was_requeued_count_at_once(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.slurm.queue = [make_job(1, start_s=NOON_S - 3600)]
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_day") == 2.0
    site.slurm.queue = [make_job(1, JobPhase.PENDING, start_s=None, end_s=None)]
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_day") == 2.0
    site.clock.advance(300)
    site.slurm.queue = [make_job(1, start_s=NOON_S + 240)]
    found = site.run_cycle().hours_of("alice", "grads", "gpu_h_day")
    assert found == pytest.approx(2.0 + 2 * 60 / 3600, abs=0.001)
    site.clock.advance(EVERY_S)
    site.slurm.rows = [make_row(1, NOON_S - 3600, NOON_S)]  # as accounting reports the first run
    found = site.run_cycle().hours_of("alice", "grads", "gpu_h_day")
    assert found == pytest.approx(2.0 + 2 * 660 / 3600, abs=0.001)


def test_hard_limits_count_the_rest_of_pending_and_running_jobs(site: Site) -> None:
    site.slurm.answers_after_s = 0.0
    site.policy = with_periods("month", hard=True)
    pending = {"start_s": None, "end_s": None}
    site.slurm.queue = [
        make_job(1, start_s=NOON_S - 3600, end_s=NOON_S + 3600),
        make_job(2, JobPhase.PENDING, n_tasks=3, limit_s=7200.0, **pending),  # type: ignore[arg-type]
        make_job(3, JobPhase.PENDING, partition="gpu,long", **pending),  # type: ignore[arg-type]
        make_job(4, JobPhase.ENDED, end_s=NOON_S - 3600),
        make_job(5, start_s=NOON_S, end_s=NOON_S + 60, is_suspended=True, limit_s=1800.0),
    ]
    snapshot = site.run_cycle()
    assert snapshot.hours_of("alice", "grads", "gpu_h_month") == 2.0
    unlimited = 2 * 365 * 24  # as its partition
    assert snapshot.hours_of("alice", "grads", "gpu_h_committed") == 2 + 3 * 2 * 2 + unlimited + 1


@pytest.mark.parametrize("ahead_s", [40 * 86400, 2 * 3600])
def test_a_clock_that_was_far_ahead_and_is_set_back_loses_no_gpu_hours(site: Site, ahead_s: int) -> None:
    """The clock may be wrong after a boot until the time is set; a new month drops the previous month."""
    site.slurm.answers_after_s = 0.0
    site.slurm.rows = [make_row(1, NOON_S - 10800, NOON_S - 7200)]
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_week") == 2.0
    site.clock.wall_s += ahead_s
    site.run_cycle()
    site.clock.wall_s -= ahead_s
    site.slurm.rows.append(make_row(2, NOON_S - 3600, NOON_S - 1800))
    assert site.run_cycle().hours_of("alice", "grads", "gpu_h_week") == 3.0


def test_gpu_hours_are_a_gap_until_the_accounting_has_answered(tmp_path: Path) -> None:
    site, answer = Site(tmp_path), Future[list[CountedRun]]()
    ended = EndedRunsPoll(site.slurm, lambda _: answer)
    site.watcher = site.new_watcher(ended)
    assert site.run_cycle().hours is None
    answer.set_exception(SlurmError("slurmdbd: Connection refused"))
    assert site.run_cycle().hours is None


def test_accounting_is_not_queried_without_a_gpu_hour_limit_or_slurmdbd(site: Site) -> None:
    site.policy = PolicyInForce((GRADS,), (), "ab")
    assert site.run_cycle().hours is None
    site.policy = POLICY
    site.script.write_text("another policy")
    site.slurm.storage = "accounting_storage/none"
    site.watcher = site.new_watcher()
    assert site.run_cycle().hours is None
    assert not any(question.startswith("accounting") for question in site.slurm.asked)


def test_zones_show_free_resources_of_nodes_in_service(tmp_path: Path) -> None:
    site = Site(tmp_path, zones={"z1": Zone("n[1-3]", "small"), "z2": Zone("n4")})
    site.slurm.node_list = [
        make_node("n1", gpus_allocated={"a100": 3}, shards_allocated=1),
        make_node("n2"),
        make_node("n3", state="idle+drain"),
        make_node("cpu1", gpus={}, gpus_allocated={}, shards=0),
    ]
    zones = [(zone.name, zone.role, zone.free_mgpu, zone.free_nodes) for zone in site.run_cycle().zones]
    assert zones == [("z1", "small", 750 + 4000, 1), ("z2", None, 0, 0)]


def test_a_zone_whose_hosts_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"zones\.z1\.nodes: hostlist"):
        Site(tmp_path, zones={"z1": Zone("n[")})


def test_a_node_in_two_zones_is_an_error(tmp_path: Path) -> None:
    zones = {"z1": Zone("n[1-2]"), "z2": Zone("n[2-3]")}
    with pytest.raises(UsageError, match="n2 is in z1 and in z2"):
        Site(tmp_path, zones=zones)


def test_calls_are_counted_including_failures() -> None:
    clock = Clock()

    def run(argv: object, environ: object, timeout_s: float) -> str:
        clock.advance(0.25)
        if clock.wall_s > NOON_S + 0.3:
            raise SlurmError("down")
        return "text"

    calls = CountingRun(clock, run)
    assert calls(["squeue"], {}, 1.0) == "text"
    with pytest.raises(SlurmError):
        calls(["squeue"], {}, 1.0)
    with pytest.raises(SlurmError):
        calls(["squeue", "--version"], {}, 1.0)  # needs no daemon
    assert str(calls) == "squeue 2 (250 ms each, 1 failed)"


def test_zones_with_their_features_are_published_and_rescored_with_the_nodes(tmp_path: Path) -> None:
    site = Site(tmp_path, zones={"zone1": Zone("n1", "small"), "zone2": Zone("n2", "large")})

    def reported() -> list[str]:
        site.run_cycle()
        lines = site.watcher.path.read_text().splitlines()
        return [line for line in lines if line.startswith(("placement", "score", "pool"))]

    assert reported() == []
    site.slurm.node_list = [make_node(f"n{n}", features=[f"zone{n}"]) for n in (1, 2)]
    assert reported() == []
    site.clock.advance(10)
    assert [line.split()[:2] for line in reported()] == [
        ["placement", "observe"],
        ["score", "zone1"],
        ["score", "zone2"],
        ["pool", "zone1"],
        ["pool", "zone2"],
    ]
    assert site.watcher.view.answered
    site.slurm.down = True
    site.watcher.run_once()
    assert not site.watcher.view.answered
