"""Test the slurm-gpuweb program: errors in its files, listening and termination."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from slurm_gpu.monitor.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "slurm_gpu.monitor.main"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return a site whose slurm-gpudbd is unreachable."""
    site, web = tmp_path / "slurm-gpu.yaml", tmp_path / "slurm-gpuweb.yaml"
    socket_path = tmp_path / "none.sock"
    site.write_text(f"cluster: lab\ndatabase: http://127.0.0.1:9\ndatabase_socket: {socket_path}\n")
    web.write_text("refresh: 1s\n")
    return [f"--config={site}", f"--web-config={web}"]


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number: int = taken.getsockname()[1]
        return number


@pytest.fixture
def daemon(files: list[str], port: int) -> Iterator[subprocess.Popen[str]]:
    argv = [*PROGRAM, *files, f"--listen=127.0.0.1:{port}", "--foreground"]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process
        process.kill()


def test_it_answers_before_slurm_gpudbd_does_and_ends_on_request(daemon: subprocess.Popen[str], port: int):
    answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/layout", trust_env=False)
    assert answer.status_code == 401, "no user is signed in"
    assert "server" not in answer.headers
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait(10) == 0


def test_a_mistake_in_its_file_ends_it_with_the_place(files: list[str], tmp_path: Path):
    (tmp_path / "slurm-gpuweb.yaml").write_text("listen: everywhere\n")
    done = subprocess.run([*PROGRAM, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "slurm-gpuweb.yaml:1:9: listen: 'everywhere' must be HOST:PORT" in done.stderr


def test_once_reports_why_slurm_gpudbd_cannot_be_read(files: list[str]):
    done = subprocess.run([*PROGRAM, *files, "--once"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[-1].startswith("slurm-gpuweb: ")


def test_the_example_contains_the_defaults():
    assert load_settings(ROOT / "etc" / "slurm-gpuweb.yaml") == load_settings(None)
