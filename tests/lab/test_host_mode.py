"""Test that, without Slurm and MUNGE, `slurm-gpu jobs -a` lists the processes of two users on the GPUs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.nvml import SOURCES, build
from lab.polling import wait_for
from lab.simgpu.creation import create
from lab.simgpu.specs import GpuSpec

ROOT = Path(__file__).resolve().parents[2]
SIMGPU = SOURCES.parent / "simgpu" / "simgpu"
ALICE, BOB = 12001, 12002

pytestmark = pytest.mark.lab


class Workstation:
    """The slurm-gpudbd and slurm-gpud of one machine with two GPUs and without Slurm's commands."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.chmod(0o755)
        (directory / "truth").mkdir(mode=0o777)
        (directory / "truth").chmod(0o777)
        (directory / "nodes" / "ws1").mkdir(parents=True)
        world = directory / "nodes" / "ws1" / "gpus.world"
        create(world, [GpuSpec("GPU-a", minor=0), GpuSpec("GPU-b", minor=1)])
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.site = directory / "site.yaml"
        self.site.write_text(
            f"cluster: host:ws1\nimport_interval: 1s\ndatabase: http://{self.address}\n"
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
        process = subprocess.Popen(command, env=environment, user=uid, group=uid, extra_groups=[], cwd="/")
        self.processes.append(process)
        return process

    def run_command(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "slurm_gpu.cli.main", *arguments]
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + self.log()
        return done.stdout

    def runs(self) -> Sequence[dict[str, Any]]:
        return list(json.loads(self.run_command("jobs", "--all-users", "--json"))["runs"])

    def both(self) -> Sequence[dict[str, Any]]:
        """Return both users' runs, () while one is missing."""
        runs = self.runs()
        return runs if len(runs) == 2 else ()

    def recorded(self) -> Sequence[dict[str, Any]]:
        """Return both users' runs with records, () until both have ended and all records are final."""
        runs = [json.loads(self.run_command("job", run["id"], "--json"))["runs"][0] for run in self.both()]
        for run in runs:
            final = [record["final"] for record in (*run["devices"], *run["hosts"])]
            if run["state"] != "COMPLETED" or final != [True] * (int(run["nGPU"] or 0) + 1):
                return ()
        return runs

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(60)


@pytest.fixture
def workstation() -> Iterator[Workstation]:
    """Start the daemons in a directory that all users may enter, unlike pytest's temporary directories."""
    with tempfile.TemporaryDirectory(prefix="slurm-gpu-ws") as made:
        directory = Path(made)
        workstation = Workstation(directory)
        try:
            _start(workstation)
            yield workstation
        finally:
            workstation.end()


def _start(workstation: Workstation) -> None:
    directory = workstation.directory
    workstation.start(
        "slurm_gpu.database.main",
        f"--config={workstation.site}",
        f"--database-config={directory}/db.yaml",
        f"--listen={workstation.address}",
    )
    wait_for((directory / "db.sock").exists, 60, "slurm-gpudbd listens", workstation.log)
    workstation.start(
        "slurm_gpu.node.main",
        "--no-slurm",
        "--node=ws1",
        f"--config={workstation.site}",
        f"--run-dir={directory}/run",
        f"--state-dir={directory}/state",
    )


def test_two_users_share_a_gpu_and_each_sees_his_own(workstation: Workstation) -> None:
    alice = workstation.work(ALICE, "--util=30", "--mem-mib=4096", "--seconds=250", "--gpus=0")
    bob = workstation.work(BOB, "--util=60", "--mem-mib=8192", "--seconds=250", "--gpus=0,1")
    seen = wait_for(workstation.both, 120, "both are seen", workstation.log, 0.5)
    assert {run["state"] for run in seen} == {"RUNNING"}
    seen_s = time.time()
    wait_for(lambda: time.time() > seen_s + 12, 60, "they have worked for 12 s")
    for process in (bob, alice):
        process.terminate()
        process.wait(60)

    over = wait_for(workstation.recorded, 90, "both are over and have their records", workstation.log, 0.5)
    by_user = {run["user"]: run for run in over}
    assert set(by_user) == {str(ALICE), str(BOB)}
    assert [by_user[str(uid)]["nGPU"] for uid in (ALICE, BOB)] == [1, 2]
    assert by_user[str(ALICE)]["uGPUcore"] == pytest.approx(30, abs=6)
    assert by_user[str(BOB)]["uGPUcore"] == pytest.approx(60, abs=10)
    job = by_user[str(ALICE)]["id"]
    assert "GPU-a" in workstation.run_command("job", job, "--uuid")
    assert "GPU-a" not in workstation.run_command("job", job)
    (first,) = json.loads(workstation.run_command("job", job, "--json"))["runs"]
    assert first["hosts"][0]["cpu_s"] > 0
    assert "sacct" not in workstation.log()
