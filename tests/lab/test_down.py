"""Test that lab/down removes the lab in any state, and changes nothing else on the host."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from lab.cgroups import remove
from lab.cluster import Lab
from lab.layout import REPOSITORY
from lab.polling import wait_for
from lab.processes import start_ticks
from tests.lab.traces import traces

DAEMONS = (
    "munged",
    "mariadb",
    "slurmdbd",
    "slurmctld",
    "slurmd-n1",
    "slurm-gpudbd",
    "slurm-gpud-n1",
    "slurm-gpuweb",
)
STUBBORN_JOB = """#!/bin/sh
trap '' TERM INT
setsid sleep 1000 &
setsid nohup sh -c "trap '' TERM; sleep 1001" >/dev/null 2>&1 &
sleep 1002
"""


def rarely(values: Iterable[object], often: Container[object]) -> list[object]:
    """Return the values as parameters, with those marked `long` for which `make test` has no time."""
    return [one if one in often else pytest.param(one, marks=pytest.mark.long) for one in values]


def with_running_jobs(lab: Lab) -> None:
    """Bring the lab up with jobs that ignore signals, one of them suspended."""
    lab.up()
    lab.wait_until_idle_nodes()
    jobs = [lab.submit("alice", "--gpus=1", "-wn1", script=STUBBORN_JOB) for _ in range(2)]
    jobs.append(lab.submit("bob", "-N2", "--gpus-per-node=1", script=STUBBORN_JOB))
    # A job cannot be suspended before its prolog has ended.
    states = ["squeue", "--noheader", f"--jobs={','.join(map(str, jobs))}", "--format=%T"]
    wait_for(lambda: lab.output(states).split() == ["RUNNING"] * len(jobs), 60, "the jobs start")
    lab.output(["scontrol", "suspend", str(jobs[1])])


def stepds_of(jobs: int) -> list[int]:
    """Return the slurmstepd processes once there is one for each job, else none."""
    found = subprocess.run(["pgrep", "-x", "slurmstepd"], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in found.stdout.split()]
    return pids if len(pids) >= jobs else []


def test_down_leaves_nothing(no_lab: Lab) -> None:
    before = traces()
    with_running_jobs(no_lab)
    assert traces().since(before)
    no_lab.down()
    assert traces().since(before) == []


def test_down_twice_is_fine(no_lab: Lab) -> None:
    before = traces()
    no_lab.down()
    no_lab.down()
    assert traces().since(before) == []


def test_a_busy_group_and_groups_made_since_are_removed_by_the_next_call(tmp_path: Path) -> None:
    group = tmp_path / "slurm_n1"
    (group / "job_1").mkdir(parents=True)
    keeps_it = group / "job_1" / "process"
    keeps_it.touch()  # makes rmdir fail, like a process in the group
    assert not remove([group])
    (group / "job_1" / "step_0").mkdir()
    keeps_it.unlink()
    assert remove([group])
    assert not group.exists()


@pytest.mark.parametrize("victim", rarely([*DAEMONS, "slurmstepd", "all"], {"slurm-gpud-n1", "all"}))
def test_down_leaves_nothing_after_a_crash(no_lab: Lab, victim: str) -> None:
    before = traces()
    with_running_jobs(no_lab)
    if victim == "slurmstepd":
        # squeue shows RUNNING shortly before a job's slurmstepd exists.
        for pid in wait_for(lambda: stepds_of(3), 30, "each job has its slurmstepd"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        for name in no_lab.daemons if victim == "all" else [victim]:
            no_lab.daemons[name].kill9()
    no_lab.down()
    assert traces().since(before) == []


@pytest.mark.parametrize("seed", rarely(range(5), {3}))
def test_up_killed_at_any_moment_can_be_undone_and_repeated(no_lab: Lab, seed: int) -> None:
    before = traces()
    moment_s = random.Random(seed).uniform(0.1, 4.0)
    starting = subprocess.Popen([REPOSITORY / "lab" / "up"], stderr=subprocess.DEVNULL)
    time.sleep(moment_s)
    starting.kill()
    starting.wait()
    if seed % 2:
        no_lab.up()
        assert all(no_lab.status().values())
    no_lab.down()
    assert traces().since(before) == []


@pytest.fixture
def foreign_configuration() -> Iterator[dict[Path, tuple[bytes, int]]]:
    """Return the files in /etc/slurm, /etc/munge and /etc/mysql; add a slurm.conf if there is none."""
    foreign = Path("/etc/slurm/slurm.conf")
    put_there = not foreign.exists()
    if put_there:
        foreign.parent.mkdir(exist_ok=True)
        foreign.write_text("ClusterName=production\nSlurmctldHost=ctl\n")
    yield _files(Path("/etc/slurm"), Path("/etc/munge"), Path("/etc/mysql"))
    if put_there:
        foreign.unlink()


def _files(*directories: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_slurm_configured_on_the_host_is_not_touched(
    no_lab: Lab, foreign_configuration: dict[Path, tuple[bytes, int]]
) -> None:
    no_lab.up()
    cluster = no_lab.output(["scontrol", "show", "config"])
    no_lab.down()
    assert "production" not in cluster
    assert _files(Path("/etc/slurm"), Path("/etc/munge"), Path("/etc/mysql")) == foreign_configuration


def test_processes_of_others_survive(no_lab: Lab) -> None:
    """Test that the lab does not kill a user's shell with the variables of lab/env, or its children."""
    no_lab.up()
    environment = no_lab.output([str(REPOSITORY / "lab" / "env")])
    bystander = subprocess.Popen(["sh", "-c", f"{environment}\ncd {no_lab.layout.root}; exec sleep 1000"])
    try:
        no_lab.down()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_user_of_the_host_with_the_same_name_is_refused_and_kept(no_lab: Lab) -> None:
    subprocess.run(["useradd", "-M", "-u", "59999", "bob"], check=True, capture_output=True)
    try:
        before = traces()
        refused = subprocess.run([REPOSITORY / "lab" / "up"], capture_output=True, text=True, check=False)
        assert refused.returncode == 3
        assert "a user bob (uid 59999) exists here and is not the lab's" in refused.stderr
        no_lab.down()
        assert traces().since(before) == []
    finally:
        subprocess.run(["userdel", "bob"], check=True, capture_output=True)


def test_a_requested_port_in_use_is_named(no_lab: Lab) -> None:
    asked = os.environ | {"SLURM_GPU_LAB_PORT": str(no_lab.layout.port)}
    with socket.create_server(("127.0.0.1", no_lab.layout.slurmctld_port)):
        refused = subprocess.run(
            [REPOSITORY / "lab" / "up"], capture_output=True, text=True, check=False, env=asked
        )
    assert refused.returncode == 3
    assert f"port {no_lab.layout.slurmctld_port}: Address already in use" in refused.stderr
    assert "SLURM_GPU_LAB_PORT" in refused.stderr


def test_labs_in_a_chroot_and_in_a_container_on_the_same_host_survive(no_lab: Lab, tmp_path: Path) -> None:
    """Test that processes of other labs survive, although they are visible and have the same names."""
    no_lab.up()
    theirs = no_lab.environment_of("alice")
    root = tmp_path / "root"
    for directory in ("usr", "proc"):
        (root / directory).mkdir(parents=True)
        subprocess.run(["mount", "--rbind", f"/{directory}", str(root / directory)], check=True)
    others = []
    try:
        for link in ("bin", "lib", "lib64"):
            (root / link).symlink_to(f"usr/{link}")
        sleep = ["env", *(f"{name}={value}" for name, value in theirs.items()), "sleep", "1000"]
        for command in (["chroot", str(root)], ["unshare", "--pid", "--fork", "--kill-child"]):
            others.append(subprocess.Popen([*command, *sleep]))
        pids = [asleep(other.pid) for other in others]
        no_lab.down()
        assert all(start_ticks(pid) is not None for pid in pids)
    finally:
        for other in others:
            other.kill()
            other.wait()
        for directory in ("usr", "proc"):
            subprocess.run(["umount", "-l", str(root / directory)], check=True)


def asleep(pid: int) -> int:
    """Wait until a process or one of its children is `sleep`, and return its id."""

    def sleeping() -> int | None:
        process = psutil.Process(pid)
        return next((one.pid for one in (process, *process.children()) if one.name() == "sleep"), None)

    return wait_for(sleeping, 30, "it sleeps")
