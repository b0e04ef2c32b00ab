"""Hooks write one complete file per event and never fail, for any environment and disk."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from slurm_gpu.node.allocation.hooks import HookKind, read_event

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {kind: ROOT / kind / "10-slurm-gpu" for kind in ("prolog", "epilog")}
SHELLS = [shell for shell in ("/bin/dash", "/bin/bash", "/bin/busybox") if Path(shell).exists()]
MOST = 4000
"""The number of waiting events at which hooks stop writing."""


def run(
    kind: str, run_dir: Path, shell: str = "/bin/sh", **environment: str
) -> subprocess.CompletedProcess[str]:
    # Run hooks like slurmd, without PATH and with only the given variables.
    command = [shell, "sh", HOOKS[kind]] if shell.endswith("busybox") else [shell, HOOKS[kind]]
    return subprocess.run(
        command,
        env={"SLURM_GPU_RUN_DIR": str(run_dir), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "jobs").iterdir())


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_writes_what_the_daemon_reads(tmp_path: Path, kind: str, shell: str) -> None:
    before, uptime = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    done = run(
        kind,
        tmp_path,
        shell,
        SLURM_JOB_ID="4711",
        SLURM_JOB_UID="1001",
        SLURM_JOB_GPUS="0,3",
        SLURM_JOB_RESTART_COUNT="2",
        SLURMD_NODENAME="n1",
        SLURM_CLUSTER_NAME="neuron",
        SLURM_JOB_WORK_DIR="/home/a b/$(reboot)`reboot`*",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (path,) = files(tmp_path)
    event = read_event(path)
    assert (event.kind, event.job_id, event.positions, event.restart) == (HookKind(kind), 4711, (0, 3), 2)
    assert (event.uid, event.node, event.cluster) == (1001, "n1", "neuron")
    assert before <= event.at_s <= time.time()
    assert uptime - 0.011 <= event.uptime_s <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert event.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert "SLURM_JOB_WORK_DIR=/home/a b/$(reboot)`reboot`*\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("shell", SHELLS)
def test_no_value_can_pass_for_a_line_of_its_own(tmp_path: Path, shell: str) -> None:
    forged = "/home/mallory\nSLURM_JOB_GPUS=7\nEVENT=epilog"
    assert run("prolog", tmp_path, shell, SLURM_JOB_ID="1", SLURM_JOB_WORK_DIR=forged).returncode == 0
    (path,) = files(tmp_path)
    assert read_event(path).positions == ()
    assert path.read_text().count("EVENT=") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_value_without_end_costs_the_job_nothing_but_that_value(tmp_path: Path, shell: str) -> None:
    long = "/home/" + 30_000 * "x"
    values = {"SLURM_JOB_WORK_DIR": long, "SLURM_NODELIST": long, "CUDA_VISIBLE_DEVICES": long}
    done = run("prolog", tmp_path, shell, SLURM_JOB_ID="1", SLURM_JOB_GPUS="0,1", **values)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = files(tmp_path)
    assert read_event(path).positions == (0, 1)
    assert "WORK_DIR" not in path.read_text()


@pytest.mark.parametrize("job_id", [None, "", "../../etc/passwd", "1 2", "1\n2", "-1", "9" * 40])
@pytest.mark.parametrize("kind", HOOKS)
def test_without_a_job_id_nothing_is_written(tmp_path: Path, kind: str, job_id: str | None) -> None:
    environment = {} if job_id is None else {"SLURM_JOB_ID": job_id}
    done = run(kind, tmp_path, **environment)
    assert done.returncode == 0
    assert "SLURM_JOB_ID" in done.stderr
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", HOOKS)
def test_a_directory_that_cannot_be_written_fails_no_job(tmp_path: Path, kind: str, shell: str) -> None:
    (tmp_path / "file").touch()
    done = run(kind, tmp_path / "file", shell, SLURM_JOB_ID="1")
    assert done.returncode == 0
    assert "not recorded" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", HOOKS)
def test_unread_hook_files_are_limited_in_number(tmp_path: Path, kind: str, shell: str) -> None:
    """Test that a blocked log does not delay a job, and that logging resumes when the log is read."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for number in range(MOST):
        (jobs / f"{10**18 + number}-{number}-prolog").touch()
    newest = jobs / f"{10**18 + MOST - 1}-{MOST - 1}-prolog"
    for _ in range(2):
        done = run(kind, tmp_path, shell, SLURM_JOB_ID="4711")
        assert (done.returncode, done.stdout) == (0, "")
        assert f"{kind} of job 4711 not recorded: {MOST} events wait in {jobs}; check" in done.stderr
        assert len(list(jobs.iterdir())) == MOST
    newest.unlink()
    assert run(kind, tmp_path, shell, SLURM_JOB_ID="4711").stderr == ""
    assert [path.name.partition("-")[2] for path in files(tmp_path)[-1:]] == [f"4711-{kind}"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
@pytest.mark.parametrize("shell", [s for s in SHELLS if not s.endswith("busybox")])
def test_a_full_disk_fails_no_job_and_leaves_no_half_file(tmp_path: Path, shell: str) -> None:
    script = f"""
        mount -t tmpfs -o size=8k none {tmp_path} && mkdir {tmp_path}/jobs || exit 77
        head -c 100000 /dev/zero >{tmp_path}/filler 2>/dev/null
        SLURM_GPU_RUN_DIR={tmp_path} SLURM_JOB_ID=1 {shell} {HOOKS["prolog"]}
        echo "status $?" && ls -A {tmp_path}/jobs
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode == 77:
        pytest.skip("cannot mount a tmpfs here")
    assert done.stdout == "status 0\n"
    assert "not recorded" in done.stderr


def test_the_hooks_are_executable_and_differ_in_nothing_but_their_name() -> None:
    lines = [path.read_text().splitlines() for path in HOOKS.values()]
    differ = [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
    assert [b for _, b in differ][1:] == ["event=epilog"]
    assert len(differ) == 2
    assert all(os.access(path, os.X_OK) for path in HOOKS.values())
