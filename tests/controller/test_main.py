"""Test the start of slurm-gpuctld."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpu.controller.main import main

CONFIG = r"ClusterName = c\nSLURM_VERSION = 22.05.8\nSLURM_CONF = /nonexistent/s.conf\nSlurmUser = slurm(1)\n"
SLURM = f"""\
#!/bin/sh
if [ "$*" = "show config" ]; then printf '{CONFIG}'; fi
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a Slurm without nodes and jobs."""
    for name in ("scontrol", "squeue", "sacct"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(SLURM)
        command.chmod(0o755)
    (tmp_path / "slurm-gpu.yaml").write_text("cluster: c\n")
    # A missing SLURM_CONF would be reported without a query.
    kept = {name: value for name, value in os.environ.items() if name != "SLURM_CONF"}
    return {**kept, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


def start(tmp_path: Path, environ: dict[str, str], *argv: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "slurm_gpu.controller.main",
        "--config",
        str(tmp_path / "slurm-gpu.yaml"),
    ]
    return subprocess.Popen(
        [*command, "--run-dir", str(tmp_path), *argv], env=environ, stderr=subprocess.PIPE, text=True
    )


def test_once_reports_the_cost_and_writes_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    with start(tmp_path, environ, "--once") as once:
        assert once.stderr is not None
        said = once.stderr.read()
    assert once.returncode == 0, said
    assert "users with jobs: 0; calls to Slurm: scontrol 3 (" in said
    assert not (tmp_path / "snapshot.txt").exists()


def test_sigterm_ends_it_with_a_count_of_its_calls(tmp_path: Path, environ: dict[str, str]) -> None:
    with start(tmp_path, environ) as daemon:
        assert daemon.stderr is not None
        assert daemon.stderr.readline().startswith("<6>slurm-gpuctld: slurm-gpuctld ")
        daemon.terminate()
        said = daemon.stderr.read()
    assert daemon.returncode == 0, said
    assert "<6>slurm-gpuctld: stopped; snapshots written: " in said


def test_systemd_is_notified_of_polls_only_when_there_are_any(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    squeue, gate = tmp_path / "bin" / "squeue", tmp_path / "gate"
    os.mkfifo(gate)
    squeue.write_text(f"#!/bin/sh\nread -r _ <{gate}\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        environ |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        with start(tmp_path, environ) as daemon:
            received = [systemd.recv(200).decode()]
            with gate.open("w"):  # opens once a poll is running; slurmctld does not answer it
                systemd.setblocking(False)
                with pytest.raises(BlockingIOError):
                    systemd.recv(200)
                squeue.write_text("#!/bin/sh\n")
            systemd.settimeout(20)
            while received.count("WATCHDOG=1") < 2:
                received.append(systemd.recv(200).decode())
            daemon.terminate()
            while received[-1] != "STOPPING=1":
                received.append(systemd.recv(200).decode())
    assert received[0] == "READY=1"
    assert any(line.startswith("STATUS=snapshots written: ") for line in received)


def test_a_wrong_site_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "slurm-gpu.yaml"
    site.write_text("cluster: 4\n")
    assert main(["--once", "--config", str(site)]) == 2
    assert f"{site}:1:10: cluster: 4 must be the ClusterName of slurm.conf" in capsys.readouterr().err


def test_a_missing_run_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "slurm-gpu.yaml"
    site.write_text("cluster: c\n")
    gone = tmp_path / "gone"
    assert main(["--config", str(site), "--run-dir", str(gone)]) == 3
    assert capsys.readouterr().err == (
        f"slurm-gpuctld: the directory {gone} does not exist; SlurmUser must own it: run systemd-tmpfiles "
        f"--create slurm-gpu.conf, or install -d -o slurm -m 755 {gone}\n"
    )
