"""`slurmd -G` reads the same files as the node's slurmd and does not block slurm-gpud."""

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation import slurmd
from slurm_gpu.node.allocation.gres import parse_files
from slurm_gpu.node.allocation.slurmd import SlurmdQuery, conf_of_slurmd, run_slurmd
from tests.node.fakes import FakeClock, FakeGpu, Work
from tests.node.machine import DeferredWorker, Machine, core

COMMAND = ("slurmd", "-G")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fake slurmd that is first on the PATH."""
    path = tmp_path / "opt" / "slurmd"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.defpath}")
    return path


def test_both_outputs_of_slurmd_are_returned(script: Path) -> None:
    script.write_text('#!/bin/sh\necho "$@"\necho gres >&2\n')
    assert run_slurmd(COMMAND) == "-G\ngres\n"


def test_a_failure_of_slurmd_contains_its_message(script: Path) -> None:
    script.write_text("#!/bin/sh\necho no such node >&2\nexit 1\n")
    with pytest.raises(SlurmError, match="slurmd -G: exit status 1: no such node"):
        run_slurmd(COMMAND)


def test_a_missing_slurmd_is_reported_with_the_path() -> None:
    with pytest.raises(SlurmError, match=r"no-such-slurmd is not on the PATH \(.*:/usr/sbin:/sbin\)"):
        run_slurmd(("no-such-slurmd", "-G"))


def test_a_slurmd_that_does_not_answer_is_killed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(slurmd, "DEADLINE_S", 0.1)
    for ends_within_s in (None, 5.0):
        with pytest.raises(SlurmError, match=r"slurmd -G: no answer within 0.1 s"):
            run_slurmd(COMMAND, ends_within_s)


def test_without_a_slurm_conf_the_cached_one_is_used(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text('#!/bin/sh\necho "${SLURM_CONF-none}"\n')
    monkeypatch.delenv("SLURM_CONF", raising=False)
    cached = tmp_path / "run" / "slurm.conf"
    monkeypatch.setattr(conf_of_slurmd, "__defaults__", (tmp_path / "none", cached, tmp_path))
    assert run_slurmd(COMMAND) == "none\n"
    cached.parent.mkdir()
    cached.write_text("")
    assert run_slurmd(COMMAND) == f"{cached}\n"
    monkeypatch.setenv("SLURM_CONF", "/of/the/site")
    assert run_slurmd(COMMAND) == "/of/the/site\n"


@pytest.mark.skipif(shutil.which("slurmd") is None or os.geteuid() != 0, reason="needs root and a slurmd")
def test_the_real_slurmd_finds_gres_conf_next_to_the_cached_slurm_conf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(
        conf_of_slurmd, "__defaults__", (tmp_path / "none", tmp_path / "slurm.conf", tmp_path)
    )
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=localhost\nGresTypes=gpu\nSlurmUser=root\n"
        f"SlurmdSpoolDir={tmp_path}\nStateSaveLocation={tmp_path}\nMpiDefault=none\n"
        "ProctrackType=proctrack/linuxproc\nNodeName=n1 NodeHostname=localhost CPUs=1 Gres=gpu:1\n"
    )
    (tmp_path / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    assert parse_files(run_slurmd((*COMMAND, "-N", "n1"))) == [("/dev/null",)]


def test_the_local_slurm_conf_is_ignored_if_slurmd_has_a_conf_server(tmp_path: Path) -> None:
    conf, cached, proc = tmp_path / "slurm.conf", tmp_path / "cached", tmp_path / "proc"
    conf.write_text("")
    cached.write_text("")
    process = proc / "4711"
    process.mkdir(parents=True)
    command_line = process / "cmdline"
    command_line.write_bytes(b"/usr/sbin/slurmd\0-D\0")
    assert conf_of_slurmd({}, conf, cached, proc) is None
    command_line.write_bytes(b"/usr/sbin/slurmd\0-D\0--conf-server=head:6817\0")
    assert conf_of_slurmd({}, conf, cached, proc) == cached
    command_line.write_bytes(b"/usr/bin/vi\0--conf-server=head:6817\0")
    assert conf_of_slurmd({}, conf, cached, proc) is None


def test_a_thread_handles_one_query_at_a_time() -> None:
    go, commands, woken = threading.Event(), [], threading.Event()

    def hung(command: Sequence[str]) -> str:
        commands.append(command)
        assert go.wait(10)
        return "answer"

    query = SlurmdQuery(COMMAND, FakeClock(), hung, wake=woken.set)
    assert query.ask()
    assert query.answer() is None
    assert not query.ask()
    assert query.is_open
    go.set()
    query.wait(10)
    assert (query.answer(), query.answer(), query.is_open, commands) == ("answer", None, False, [COMMAND])
    assert woken.wait(10)


def test_an_unexpected_exception_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    def broken(command: Sequence[str]) -> str:
        raise ZeroDivisionError

    query = SlurmdQuery(COMMAND, FakeClock(), broken)
    query.ask()
    query.wait(10)
    with pytest.raises(SlurmError, match="an internal error"):
        query.answer()
    assert query.is_silent


class Exhausted(DeferredWorker):
    """A worker on a system that cannot start another thread."""

    def start(self, task: object) -> None:
        raise RuntimeError("can't start new thread")


def test_a_failure_to_start_a_thread_is_retried() -> None:
    query = SlurmdQuery(COMMAND, FakeClock(), lambda _: "answer", Exhausted())
    for _ in range(2):
        assert query.ask()
        with pytest.raises(SlurmError, match="can't start new thread"):
            query.answer()


@pytest.fixture
def slow(tmp_path: Path, gpu: FakeGpu) -> Machine:
    """Return a node whose slurmd has not answered yet."""
    machine = Machine(tmp_path, gpu)
    machine.slurmd_worker = DeferredWorker()
    machine.start()
    return machine


def answer(machine: Machine) -> None:
    assert isinstance(machine.slurmd_worker, DeferredWorker)
    machine.slurmd_worker.run()
    assert machine.node is not None
    machine.node.step()
    machine.due_s = machine.node.due_s()


def test_the_time_until_slurmd_answers_is_a_gap_and_an_event(slow: Machine, gpu: FakeGpu) -> None:
    start = slow.clock.now_s
    gpu.work.append(Work(7, start, start + 200, 60, 1 << 30))
    slow.run(2)
    slow.hook("prolog", 7, "0")
    slow.run(60)
    assert slow.events() == ["gres_order_unknown"]
    assert slow.records(final=None) == []
    answer(slow)
    slow.run(40)
    slow.hook("epilog", 7, "0")
    slow.run(2)
    (record,) = slow.records()
    assert record.device == "GPU-0"
    assert record.allocated_s == pytest.approx(100, abs=0.1)
    assert record.sampled_s == pytest.approx(60, abs=1)  # with 20 s from the driver's ring
    assert core(record) == pytest.approx(60, abs=1)
    assert slow.events() == ["gres_order_unknown"]


def test_a_job_that_ends_before_slurmd_answers_still_has_its_device(slow: Machine) -> None:
    slow.run(60)  # the start of slurm-gpud is over
    slow.hook("prolog", 7, "0")
    slow.run(1)
    slow.hook("epilog", 7, "0")
    slow.run(1)
    assert slow.records() == []
    answer(slow)
    slow.run(1)
    (record,) = slow.records()
    assert (record.device, record.sampled_s) == ("GPU-0", 0)
    assert record.allocated_s == pytest.approx(1, abs=0.1)


def test_without_an_answer_of_slurmd_a_record_has_the_position(slow: Machine) -> None:
    slow.run(60)
    slow.hook("prolog", 7, "0")
    slow.run(1)
    slow.hook("epilog", 7, "0")
    slow.run(60)
    (record,) = slow.records()
    assert (record.device, record.sampled_s) == ("position:0", 0)
