"""A run that ended on a node does not begin again, even if slurmctld or slurm-gpud has lost the end."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.node.allocation.hooks import HookDirectory
from slurm_gpu.node.jobs.ended_runs import MOST, REMEMBERED_S, EndedRuns
from tests.node.fakes import FakeClock, KeptRuns
from tests.node.machine import Machine


def report_running(machine: Machine, seconds: float = 40, **changed: Any) -> None:
    """Report job 7 as running every 10 s, like a slurmctld that lost the job's end."""
    facts = {"restart": 0, "start_s": int(machine.clock.wall()) - 30, "uid": 1001, "state": "RUNNING"}
    jobs = {7: {**facts, "gpu_index": {"gpu": [0]}, "granted_mgpu": 1000, "age_s": 0.5, **changed}}
    for _ in range(round(seconds / 10)):
        assert machine.node is not None
        machine.node.update_jobs(jobs)
        machine.run(10)


def ended_job(machine: Machine, seconds: float = 20, restart: int = 0) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(seconds)
    machine.hook("epilog", 7, "0", restart=restart)
    machine.run(3)


def restart(machine: Machine, down_s: float = 5) -> None:
    machine.kill()
    machine.clock.advance(down_s)
    machine.start()


def open_jobs(machine: Machine) -> list[int]:
    assert machine.node is not None
    return machine.node.open_jobs()


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_a_run_that_ended_does_not_begin_again_after_a_kill(machine: Machine, state: str) -> None:
    ended_job(machine)
    restart(machine)
    report_running(machine, 300, state=state)
    restart(machine)
    report_running(machine, 300, state=state)
    (record,) = machine.records(final=None)
    assert record.allocated_s == pytest.approx(20, abs=0.1)
    assert open_jobs(machine) == []


def test_a_run_ended_by_a_report_of_slurm_does_not_begin_again(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(150)
    assert machine.node is not None
    machine.node.end_jobs({7: {"restart": 0, "end_s": int(machine.clock.wall()) - 130}})
    machine.run(2)
    restart(machine)
    report_running(machine)
    assert len(machine.records(final=None)) == 1


def test_a_run_that_ended_while_slurm_gpud_was_down_does_not_begin_again(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    machine.run(5)
    machine.kill()
    machine.write_hook("epilog", 7, "0")
    machine.clock.advance(5)
    machine.start()
    restart(machine)
    report_running(machine)
    (record,) = machine.records(final=None)
    assert record.allocated_s == pytest.approx(5, abs=0.1)


def test_a_run_before_one_with_only_an_epilog_does_not_begin_again(machine: Machine) -> None:
    machine.hook("epilog", 7, "0", restart=2)
    machine.run(3)
    restart(machine)
    report_running(machine, restart=1)
    assert open_jobs(machine) == []


def test_the_next_run_of_a_requeued_job_begins_even_after_a_kill(machine: Machine) -> None:
    """Test an epilog with the restart count of the next run, which may begin without a prolog."""
    ended_job(machine, restart=1)
    restart(machine)
    report_running(machine, restart=0)
    assert open_jobs(machine) == []
    report_running(machine, restart=1)
    assert open_jobs(machine) == [7]
    machine.hook("epilog", 7, "0", restart=1)
    machine.run(3)
    restart(machine)
    report_running(machine, restart=1)
    assert [record.restart for record in machine.records(final=None)] == [0, 1]


def test_a_job_with_a_reused_id_begins_by_its_prolog(machine: Machine) -> None:
    """Test reused job IDs, which a killed slurmctld may assign."""
    ended_job(machine)
    restart(machine)
    ended_job(machine, seconds=10)
    one, two = machine.records(final=None)
    assert (one.allocated_s, two.allocated_s) == (pytest.approx(20, abs=0.1), pytest.approx(10, abs=0.1))


def test_a_resumed_job_is_recorded_after_a_kill(machine: Machine) -> None:
    machine.hook("prolog", 7, "0")
    report_running(machine, state="SUSPENDED")
    restart(machine)
    report_running(machine)
    assert open_jobs(machine) == [7]
    assert len(machine.records(final=None)) == 2


@pytest.mark.parametrize("requeued", [False, True])
def test_a_kill_before_hook_files_are_removed_duplicates_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, requeued: bool
) -> None:
    """Test a job within an outage, whose record and hook files are all on disk."""
    machine.kill()
    machine.write_hook("prolog", 7, "0")
    machine.clock.advance(3)
    machine.write_hook("epilog", 7, "0", restart=int(requeued))
    machine.clock.advance(10)
    with monkeypatch.context() as patched:
        patched.setattr(HookDirectory, "remove", lambda _self, _event: None)
        machine.start()
        restart(machine)
        assert len(machine.hook_files()) == 2
    restart(machine)
    report_running(machine)
    (record,) = machine.records(final=None)
    assert record.allocated_s == pytest.approx(3, abs=0.1)
    assert machine.hook_files() == []


def test_a_partly_written_end_of_a_run_ends_it_only_once(machine: Machine, tmp_path: Path) -> None:
    """Kill slurm-gpud during any write, while the epilog's file still exists."""
    machine.hook("prolog", 7, "0")
    machine.run(20)
    log = tmp_path / "spool" / "log"
    before = log.read_bytes()
    epilog = machine.write_hook("epilog", 7, "0")
    kept = shutil.copy(epilog, tmp_path / "kept")
    machine.run(3)
    machine.kill()
    whole = log.read_bytes()
    assert whole.startswith(before)
    assert not epilog.exists()
    lines = whole[len(before) :].splitlines(keepends=True)
    for n_written in range(len(lines)):
        log.write_bytes(before + b"".join(lines[:n_written]) + lines[n_written][:20])
        shutil.copy(kept, epilog)
        machine.start()
        report_running(machine)
        restart(machine)
        report_running(machine)
        records = machine.records(final=None)
        assert len(records) == 1, f"{n_written} of {len(lines)} lines were written"
        assert records[0].allocated_s == pytest.approx(20, abs=0.1)
        machine.kill()


def test_the_end_of_a_run_is_never_stored_without_its_record(machine: Machine, tmp_path: Path) -> None:
    """Kill slurm-gpud during the only write for a job within an outage, while its hook files exist."""
    machine.run(1)
    machine.kill()
    hooks = []
    for kind in ("prolog", "epilog"):
        hooks.append(machine.write_hook(kind, 7, "0"))
        machine.clock.advance(3)
    texts = [path.read_text() for path in hooks]
    log = tmp_path / "spool" / "log"
    before = log.read_bytes()
    machine.start()
    machine.kill()
    lines = log.read_bytes()[len(before) :].splitlines(keepends=True)
    assert len(lines) >= 2
    for n_written in range(len(lines) + 1):
        log.write_bytes(before + b"".join(lines[:n_written]))
        for path, text in zip(hooks, texts, strict=True):
            path.write_text(text)
        machine.start()
        records = machine.records()
        # slurm-gpudbd counts only one of two records with the same stamps.
        assert len(records) in (1, 2), f"{n_written} of {len(lines)} lines were written"
        assert {round(record.allocated_s, 1) for record in records} == {3.0}
        machine.kill()


def test_ended_runs_are_limited_in_time_and_number(clock: FakeClock) -> None:
    kept = KeptRuns()
    ended = EndedRuns(kept, clock)
    for job in range(2 * MOST):
        ended.add(job, 0)
    assert not ended.covers(MOST - 1, 0, clock.now_s)
    assert ended.covers(MOST, 0, clock.now_s)
    assert len(kept.ended) == MOST
    clock.advance(REMEMBERED_S - 1)
    ended = EndedRuns(kept, clock)
    ended.add(1, 0)
    assert ended.covers(2 * MOST - 1, 0, clock.now_s)
    clock.advance(2)
    ended.add(2, 0)
    assert not ended.covers(2 * MOST - 1, 0, clock.now_s)
    assert ended.covers(1, 0, clock.now_s)
    assert kept.ended.keys() == {1, 2}


@pytest.mark.parametrize("restarted", [False, True])
def test_an_unmatched_epilog_ends_its_run_only_for_possibly_older_answers(
    clock: FakeClock, *, restarted: bool
) -> None:
    kept, now_s = KeptRuns(), clock.now_s
    ended = EndedRuns(kept, clock)
    ended.add(7, 2, certain=False)
    ended = EndedRuns(kept, clock) if restarted else ended
    assert ended.covers(7, 1, now_s + 500)
    assert [ended.covers(7, 2, now_s + after_s) for after_s in (0, 9, 11)] == [True, True, False]
    ended.add(7, 2)
    ended.add(7, 1, certain=False)
    ended.add(7, 2, certain=False)
    ended = EndedRuns(kept, clock) if restarted else ended
    assert ended.covers(7, 2, now_s + 500), "an uncertain end replaced a certain one"
    assert not ended.covers(7, 3, now_s)


def test_ended_runs_of_another_boot_are_dropped(clock: FakeClock) -> None:
    kept = KeptRuns()
    EndedRuns(kept, clock).add(7, 0)
    assert not EndedRuns(kept, FakeClock("boot-2", clock.now_s)).covers(7, 0, clock.now_s)
    assert kept.ended == {}


@pytest.mark.parametrize("had_gpus", [False, True])
def test_an_epilog_without_gpus_is_not_written(clock: FakeClock, *, had_gpus: bool) -> None:
    kept = KeptRuns()
    ended = EndedRuns(kept, clock)
    ended.add(7, 0, certain=False, had_gpus=had_gpus)
    assert ended.ended_s(7) == clock.now_s
    assert bool(kept.ended) is had_gpus


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"restart": "x"}])
def test_an_unreadable_ended_run_affects_no_other(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, odd: Any
) -> None:
    kept = KeptRuns()
    EndedRuns(kept, clock).add(7, 0)
    kept.ended[8] = odd if not isinstance(odd, dict) else {**kept.ended[7], "restart": None, **odd}
    ended = EndedRuns(kept, clock)
    assert ended.covers(7, 0, clock.now_s)
    assert not ended.covers(8, 0, clock.now_s)
    assert kept.ended.keys() == {7}
    assert "job 8" in caplog.text
