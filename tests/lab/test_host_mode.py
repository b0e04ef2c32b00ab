"""A machine without Slurm and MUNGE: two users on its GPUs, from their processes to `slurm-gpu jobs`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lab.nvml import SOURCES, build
from lab.polling import wait_for
from lab.simgpu.world import GpuSpec, create

ROOT = Path(__file__).resolve().parents[2]
SIMGPU = SOURCES.parent / "simgpu" / "simgpu"
ALICE, BOB = 12001, 12002

pytestmark = pytest.mark.lab


class Workstation:
    """slurm-gpudbd and slurm-gpud of one machine with two GPUs; commands find no Slurm."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.chmod(0o755)
        (directory / "truth").mkdir(mode=0o777)
        (directory / "truth").chmod(0o777)
        (directory / "nodes" / "ws1").mkdir(parents=True)
        world = directory / "nodes" / "ws1" / "gpus.world"
        create(world, [GpuSpec("GPU-a", minor=0), GpuSpec("GPU-b", minor=1)])
        self.site = directory / "site.yaml"
        self.site.write_text(
            "cluster: host:ws1\nimport_interval: 1s\ndatabase: http://127.0.0.1:6899\n"
            f"database_socket: {directory}/db.sock\n"
        )
        (directory / "db.yaml").write_text(f"url: sqlite:///{directory}/slurm-gpu.db\n")
        (directory / "bin").mkdir()
        self.environment = {
            "PATH": f"{directory}/bin",
            "LD_LIBRARY_PATH": str(build(directory / "lib").parent),
            "SIMGPU_WORLD": str(world),
            "SLURM_GPU_CONF": str(self.site),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> None:
        with (self.directory / "log").open("ab") as log:
            command = [sys.executable, "-m", *arguments]
            self.processes.append(subprocess.Popen(command, env=self.environment, stderr=log, cwd=ROOT))

    def work(self, uid: int, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_GPU_LAB_DIR": str(self.directory),
            "SLURMD_NODENAME": "ws1",
            "SIMGPU_DEVICES": "/nowhere",
        }
        command = [str(SIMGPU), *arguments]
        return subprocess.Popen(command, env=environment, user=uid, group=uid, extra_groups=[], cwd="/")

    def say(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "slurm_gpu.cli.main", *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + self.log()
        return done.stdout

    def runs(self) -> Sequence[dict[str, object]]:
        return list(json.loads(self.say("jobs", "--json"))["runs"])

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(20)


@pytest.fixture
def workstation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workstation]:
    directory = tmp_path_factory.mktemp("ws", numbered=True)
    for parent in (directory.parent, directory.parent.parent):
        parent.chmod(0o755)
    workstation = Workstation(directory)
    workstation.start(
        "slurm_gpu.database.main",
        f"--config={workstation.site}",
        f"--database-config={directory}/db.yaml",
        "--listen=127.0.0.1:6899",
    )
    wait_for((directory / "db.sock").exists, 20, "slurm-gpudbd listens", workstation.log)
    workstation.start(
        "slurm_gpu.node.main",
        "--no-slurm",
        "--node=ws1",
        f"--config={workstation.site}",
        f"--run-dir={directory}/run",
        f"--state-dir={directory}/state",
    )
    yield workstation
    workstation.end()


def test_two_users_share_a_gpu_and_each_sees_his_own(workstation: Workstation) -> None:
    alice = workstation.work(ALICE, "--util=30", "--mem-mib=4096", "--seconds=25", "--gpus=0")
    bob = workstation.work(BOB, "--util=60", "--mem-mib=8192", "--seconds=20", "--gpus=0,1")
    wait_for(lambda: len(workstation.runs()) == 2, 20, "both are seen", workstation.log, 0.5)
    assert {run["state"] for run in workstation.runs()} == {"RUNNING"}
    alice.wait(40)
    bob.wait(40)

    def over() -> bool:
        runs = workstation.runs()
        return all(run["state"] == "COMPLETED" and run["uGPUcore"] is not None for run in runs)

    wait_for(over, 30, "both are over and have their records", workstation.log, 0.5)
    by_user = {run["user"]: run for run in workstation.runs()}
    assert set(by_user) == {str(ALICE), str(BOB)}
    assert [by_user[str(uid)]["nGPU"] for uid in (ALICE, BOB)] == [1, 2]
    assert by_user[str(ALICE)]["uGPUcore"] == pytest.approx(30, abs=6)
    assert by_user[str(BOB)]["uGPUcore"] == pytest.approx(60, abs=10)
    assert "GPU-a" in workstation.say("job", "1")
    assert json.loads(workstation.say("job", "1", "--json"))["runs"][0]["hosts"][0]["cpu_s"] > 0
    assert "sacct" not in workstation.log()
