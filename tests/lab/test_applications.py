"""A job on the real cluster is recognised by its libraries, and its host record is right."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of

CPU_S = 6.0
MEMORY_MIB = 150

TRAINING = f"""
import ctypes, json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
memory = bytearray(b"x") * ({MEMORY_MIB} << 20)
time.sleep(2)  # frameworks load late: slurm-gpud may have examined the process before
ctypes.CDLL(str(here / "site-packages/torch/lib/libtorch_cuda.so"))
(here / "pid").write_text(str(os.getpid()))
while time.process_time() < {CPU_S}:
    pass
(here / "worked").touch()
while not (here / "enough").exists():
    time.sleep(0.1)
(here / "used").write_text(json.dumps(time.process_time()))
"""


@pytest.fixture
def training(lab_with: LabWith, tmp_path: Path) -> tuple[Lab, Path]:
    """Write a training script in alice's home, and a library with the name of PyTorch's."""
    lab = lab_with(job_submit=JobSubmit.NOOP)
    directory = lab.layout.home / "alice" / "training"
    lab.run_as("alice", ["mkdir", "-p", str(directory)])
    (directory / "train.py").write_text(TRAINING)
    library = directory / "site-packages" / "torch" / "lib" / "libtorch_cuda.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    source = tmp_path / "nothing.c"
    source.write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return lab, directory


def hosts(lab: Lab, job: int) -> list[dict[str, Any]]:
    return [host for run in runs_of(lab, job) for host in run.get("hosts") or ()]


def test_a_training_is_recognised_and_its_cpu_time_and_memory_are_right(training: tuple[Lab, Path]) -> None:
    lab, directory = training
    work = f"python3 {directory}/train.py --batch-size 64 --model {directory}/resnet50 --token SECRET"
    job = lab.submit("alice", "--time=5", "--mem=1G", "--gpus=1", f"--wrap={work}")
    pid_file = directory / "pid"
    pid = wait_for(lambda: pid_file.read_text() if pid_file.exists() else "", 90, "it loads")

    shown = subprocess.run(
        [str(lab.layout.bin / "slurm-gpud"), "applications", "--pid", pid],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"{pid}  PyTorch (deep learning)" in shown.stdout
    assert "libtorch_cuda.so" in shown.stdout
    assert "batch_size=64, model=resnet50" in shown.stdout

    node = lab.intervals(job)[0].node
    shown = subprocess.run(
        [str(lab.layout.bin / "slurm-gpud"), "applications", "--job", str(job), "--node", node],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{pid}  PyTorch (deep learning)" in shown.stdout

    logs = [lab.layout.node(node).state / "spool" / "log" for node in lab.nodes]
    wait_for(lambda: any(b'"PyTorch"' in log.read_bytes() for log in logs), 120, "slurm-gpud recognises it")
    wait_for((directory / "worked").exists, 180, "it has done its work")
    lab.run_as("alice", ["touch", str(directory / "enough")])
    wait_for(lambda: any(interval.end_s for interval in lab.intervals(job)), 120, f"job {job} ends")
    (host,) = wait_for(
        lambda: [host for host in hosts(lab, job) if host["final"]], 120, f"job {job} has a final host record"
    )

    used_s = json.loads((directory / "used").read_text())
    assert host["cpu_s"] == pytest.approx(used_s, rel=0.1)
    assert MEMORY_MIB < host["rss_max_mib"] < MEMORY_MIB + 50
    assert (host["app"], host["app_field"], host["container"]) == ("PyTorch", "deep learning", False)
    assert host["app_params"] == {"batch_size": "64", "model": "resnet50"}
    assert "SECRET" not in json.dumps(host)
