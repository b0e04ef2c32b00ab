"""`slurmd -G` is run as the slurmd of the node would read its files, and holds nobody up."""

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
    """A slurmd of our own, first on the PATH."""
    path = tmp_path / "opt" / "slurmd"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.defpath}")
    return path


def test_what_it_prints_on_either_output_is_told(script: Path) -> None:
    script.write_text('#!/bin/sh\necho "$@"\necho gres >&2\n')
    assert run_slurmd(COMMAND) == "-G\ngres\n"


def test_its_failure_is_told_in_its_own_words(script: Path) -> None:
    script.write_text("#!/bin/sh\necho no such node >&2\nexit 1\n")
    with pytest.raises(SlurmError, match="slurmd -G: exit status 1: no such node"):
        run_slurmd(COMMAND)


def test_where_it_is_not_found_the_path_is_told() -> None:
    with pytest.raises(SlurmError, match=r"slurmd-of-nobody is not on the PATH \(.*:/usr/sbin:/sbin\)"):
        run_slurmd(("slurmd-of-nobody", "-G"))


def test_one_that_does_not_answer_is_ended(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(slurmd, "DEADLINE_S", 0.1)
    for ends_within_s in (None, 5.0):
        with pytest.raises(SlurmError, match=r"slurmd -G: no answer within 0.1 s"):
            run_slurmd(COMMAND, ends_within_s)


def test_without_a_slurm_conf_it_reads_what_slurmctld_sent(
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
def test_slurm_s_own_finds_gres_conf_beside_what_slurmctld_sent(
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


def test_a_file_beside_a_slurmd_that_was_told_of_a_server_is_not_heeded(tmp_path: Path) -> None:
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


def test_a_thread_of_its_own_waits_for_one_question_at_a_time() -> None:
    go, asked, woken = threading.Event(), [], threading.Event()

    def hung(command: Sequence[str]) -> str:
        asked.append(command)
        assert go.wait(10)
        return "said"

    question = SlurmdQuery(COMMAND, FakeClock(), hung, wake=woken.set)
    assert question.ask()
    assert question.answer() is None
    assert not question.ask()
    assert question.is_open
    go.set()
    question.wait(10)
    assert (question.answer(), question.answer(), question.is_open, asked) == ("said", None, False, [COMMAND])
    assert woken.wait(10)


def test_what_nobody_foresaw_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    def broken(command: Sequence[str]) -> str:
        raise ZeroDivisionError

    question = SlurmdQuery(COMMAND, FakeClock(), broken)
    question.ask()
    question.wait(10)
    with pytest.raises(SlurmError, match="an internal error"):
        question.answer()
    assert question.is_silent


class Exhausted(DeferredWorker):
    """A system without room for another thread."""

    def start(self, task: object) -> None:
        raise RuntimeError("can't start new thread")


def test_without_room_for_a_thread_it_is_tried_again() -> None:
    question = SlurmdQuery(COMMAND, FakeClock(), lambda _: "said", Exhausted())
    for _ in range(2):
        assert question.ask()
        with pytest.raises(SlurmError, match="can't start new thread"):
            question.answer()


@pytest.fixture
def slow(tmp_path: Path, gpu: FakeGpu) -> Machine:
    """A node whose slurmd has not answered yet."""
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


def test_what_a_job_does_until_slurmd_answers_is_a_gap_and_told(slow: Machine, gpu: FakeGpu) -> None:
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
    assert record.sampled_s == pytest.approx(60, abs=1)  # with 20 s that the driver's ring remembers
    assert core(record) == pytest.approx(60, abs=1)
    assert slow.events() == ["gres_order_unknown"]


def test_a_job_that_is_over_before_slurmd_answers_has_its_device_all_the_same(slow: Machine) -> None:
    slow.run(60)  # it is no start any more
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


def test_a_job_whose_devices_slurmd_never_tells_has_a_record_by_position(slow: Machine) -> None:
    slow.run(60)
    slow.hook("prolog", 7, "0")
    slow.run(1)
    slow.hook("epilog", 7, "0")
    slow.run(60)
    (record,) = slow.records()
    assert (record.device, record.sampled_s) == ("position:0", 0)
