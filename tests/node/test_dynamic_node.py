"""The options of `slurmd -G` for a dynamic node are read from the command line of its slurmd."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.node.allocation.dynamic_node import DynamicNode
from slurm_gpu.node.allocation.gres import GresOrder
from tests.node.fakes import FakeClock
from tests.node.machine import ImmediateWorker
from tests.node.test_gres import SHUFFLED, gpus

CONF = "CPUs=32 Gres=gpu:a100:4 Feature=a"


class Processes:
    """A /proc in which tests start and end slurmds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.n_started = 0

    def start(self, *words: str, pid: int = 4711) -> None:
        self.n_started += 1
        process = self.root / str(pid)
        process.mkdir(parents=True, exist_ok=True)
        (process / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        fields = ["S", *map(str, range(4, 22)), str(1000 + self.n_started), "0"]
        (process / "stat").write_text(f"{pid} (slurmd: a) b) {' '.join(fields)}\n")

    def end(self, pid: int = 4711) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "proc")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["slurmd", "-D"], []),
        (["slurmd", "-D", "-N", "n2"], []),
        (["slurmd", "-Z", "-N", "n1", "--conf", CONF], []),
        (["/usr/sbin/slurmd", "-Z", "-N", "n2", "--conf", CONF], ["-Z", "-N", "n2", "--conf", CONF]),
        (["slurmd", f"--conf={CONF}", "-DZ", "-Nn2"], ["-Z", "-N", "n2", "--conf", CONF]),
        (["slurmd", "-vvvDZN", "n2"], ["-Z", "-N", "n2"]),
        (["slurmd", "-Z", "--conf", CONF], ["-Z", "--conf", CONF]),  # the host is n2
        (["slurmd", "-D", "-L", "-Z", "-N", "n2"], []),  # a log file of that name
        (["slurmd", "-n", "-5", "-Z", "--conf-server", "h:1", "--conf", CONF], ["-Z", "--conf", CONF]),
        (["slurmd", "-Z", "--systemd", "--extra=a", "--parameters", "p", "-f/x"], ["-Z"]),
        (["slurmd", "-Z", "-N", "n2", "--inst", "x", "--con", "y"], ["-Z", "-N", "n2"]),
        (["slurmd", "-F", "-Nn2"], []),
        (["slurmd", "-N"], []),
        (["vi", "-Z", "--conf", CONF], []),
    ],
)
def test_command_lines_of_slurmd(processes: Processes, words: list[str], options: list[str]) -> None:
    processes.start(*words)
    assert list(DynamicNode("n2", processes.root, "n2.cluster").options()) == options


def test_without_a_node_name_the_only_dynamic_slurmd_is_used(processes: Processes) -> None:
    processes.start("slurmd", "-D", pid=1)
    processes.start("slurmd", "-Z", "-N", "d7", "--conf", CONF, pid=2)
    assert DynamicNode(None, processes.root, "host").options() == ("-Z", "-N", "d7", "--conf", CONF)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_process_of_another_user_is_not_taken_for_slurmd(processes: Processes) -> None:
    processes.start("slurmd", "-Z", "--conf", CONF)
    os.chown(processes.root / "4711", 1001, 1001)
    assert DynamicNode(None, processes.root).options() == ()


def test_slurmd_is_queried_again_when_restarted_with_other_options(
    processes: Processes, tmp_path: Path
) -> None:
    answers = {"Gres=gpu:4": SHUFFLED, "Gres=gpu:2": SHUFFLED.replace("nvidia3", "nvidia2")}
    queried: list[str] = []

    def slurmd(command: Sequence[str]) -> str:
        assert list(command[:4]) == ["slurmd", "-G", "-N", "n2"]
        if len(command) == 4:
            raise SlurmError("exit status 1")
        queried.append(command[-1])
        return answers[command[-1]]

    clock = FakeClock()
    order = GresOrder(
        "n2",
        clock,
        run=slurmd,
        environ={"SLURM_CONF": str(tmp_path / "slurm.conf")},
        worker=ImmediateWorker(),
        file_worker=ImmediateWorker(),
        wait_s=0,
        proc=processes.root,
    )
    devices = gpus(2, 0, 3, 1)
    assert order.uuids([0], devices) == {}
    processes.start("slurmd", "-Z", "-N", "n2", "--conf", "Gres=gpu:4")
    clock.advance(60)
    assert order.uuids([0], devices) == {0: "GPU-3"}
    processes.end()
    assert order.uuids([0], devices) == {0: "GPU-3"}  # jobs outlive their slurmd
    processes.start("slurmd", "-Z", "-N", "n2", "--conf", "Gres=gpu:4")
    assert order.uuids([0], devices) == {0: "GPU-3"}
    assert queried == ["Gres=gpu:4"]
    processes.end()
    processes.start("slurmd", "-Z", "-N", "n2", "--conf", "Gres=gpu:2")
    assert order.uuids([0], devices) == {0: "GPU-2"}
    assert queried == ["Gres=gpu:4", "Gres=gpu:2"]
