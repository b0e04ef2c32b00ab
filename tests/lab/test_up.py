"""Test that lab/up starts a cluster that runs jobs with fenced GPUs, and that lab/up can be run again."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from lab import cgroups
from lab.cluster import PORT_RANGE_SIZE, Lab
from lab.polling import wait_for

OPEN_EVERY_DEVICE = """#!/bin/sh
for device in /dev/slurm-gpu-lab/$SLURMD_NODENAME/*; do
    (: <"$device") 2>&1
done
exit 0
"""


def finished(lab: Lab, job_id: int) -> bool:
    state = lab.output(["squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%T"]).strip()
    assert state not in {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, state
    return state == "COMPLETED"


def test_up_again_restarts_nothing(lab: Lab) -> None:
    before = {name: daemon.pid for name, daemon in lab.daemons.items()}
    Lab().up()
    assert {name: daemon.pid for name, daemon in lab.daemons.items()} == before
    assert None not in before.values()


def slurmctld_saved_its_jobs(lab: Lab) -> None:
    """After a kill, slurmctld reads a saved state at most 5 s old, and reuses job IDs assigned after it."""
    lab.submit("alice", "--job-name=the last to be saved", "--wrap=true", "--output=/dev/null")
    saved = lab.layout.slurmctld / "job_state"
    wait_for(
        lambda: saved.exists() and b"the last to be saved" in saved.read_bytes(), 60, "slurmctld saves jobs"
    )


def test_up_starts_what_was_killed(lab: Lab) -> None:
    slurmctld_saved_its_jobs(lab)
    before = {name: daemon.pid for name, daemon in lab.daemons.items()}
    lab.daemons["slurmctld"].kill9()
    lab.daemons["slurmd-n2"].kill9()
    Lab().up()
    after = {name: daemon.pid for name, daemon in lab.daemons.items()}
    assert None not in after.values()
    assert {name for name in before if before[name] != after[name]} == {"slurmctld", "slurmd-n2"}


def test_nodes_have_gpus_shards_and_zones(lab: Lab) -> None:
    lines = lab.output(["sinfo", "-h", "-N", "-o", "%N %G %f"]).splitlines()
    assert lines == [
        f"{name} gpu:a100:4,shard:a100:16 {zone},a100"
        for name, zone in (("n1", "zone1"), ("n2", "zone1"), ("n3", "zone2"), ("n4", "zone2"))
    ]


def test_users_have_their_accounts_and_groups(lab: Lab) -> None:
    fields = ["-n", "-P", "format=user,account,admin"]
    listed = lab.output(["sacctmgr", "show", "user", "-s", *fields]).split()
    assert {"alice|vision|None", "bob|nlp|None", "carol|vision|Operator"} <= set(listed)
    assert "undergrad" in lab.output(["id", "-Gn"], user="bob").split()
    assert "gpuops" in lab.output(["id", "-Gn"], user="carol").split()


def test_a_job_of_one_gpu_opens_only_its_own_device(lab: Lab) -> None:
    if cgroups.probe().version is cgroups.CgroupVersion.NONE:
        pytest.skip(f"no fencing on this host: {cgroups.probe().reason}")
    output = lab.layout.home / "alice" / "opened"
    job = lab.submit("alice", "--gpus=1", f"--output={output}", script=OPEN_EVERY_DEVICE)
    wait_for(lambda: finished(lab, job), 60, f"job {job} ends")
    (interval,) = lab.intervals(job)
    denied = [line for line in output.read_text().splitlines() if "Operation not permitted" in line]
    without_driver = [line for line in output.read_text().splitlines() if "No such device" in line]
    assert len(denied) == 3
    own = lab.nodes[interval.node].at_position(interval.positions[0])
    assert [str(own.file) in line for line in without_driver] == [True]


def test_each_interval_of_allocated_gpus_is_stamped(lab: Lab) -> None:
    submitted_s = time.time()
    job = lab.submit("alice", "-N2", "--gpus-per-node=2", script="#!/bin/sh\nsleep 1\n")
    wait_for(lambda: finished(lab, job), 60, f"job {job} ends")

    def closed() -> bool:
        return all(interval.end_s is not None for interval in lab.intervals(job))

    wait_for(closed, 60, "both epilogs ran")
    now_s = time.time()
    intervals = lab.intervals(job)
    assert [len(interval.positions) for interval in intervals] == [2, 2]
    assert len({interval.node for interval in intervals}) == 2
    for interval in intervals:
        assert interval.end_s is not None
        # The kernel's time stamps have a resolution of 10 ms.
        assert submitted_s - 0.02 <= interval.start_s < interval.start_s + 1 <= interval.end_s <= now_s + 0.02


def test_no_secret_is_readable_by_users(lab: Lab) -> None:
    passwords = [
        line.partition("=")[2]
        for line in (lab.layout.etc / "slurmdbd.conf").read_text().splitlines()
        if line.startswith("StoragePass=")
    ]
    assert len(passwords) == 1
    for directory in (lab.layout.etc, lab.layout.root / "nodes", lab.layout.munge):
        result = lab.run_as("alice", ["grep", "-rls", passwords[0], str(directory)], check=False)
        assert result.stdout == ""
    denied = lab.run_as("alice", ["cat", str(lab.layout.munge / "munge.key")], check=False)
    assert denied.returncode != 0


def test_commands_work_from_any_directory(lab: Lab, tmp_path: Path) -> None:
    repository = Path(__file__).parents[2]
    result = lab.run_as("root", ["sh", "-c", f"cd {tmp_path} && {repository}/lab/as alice id -un"])
    assert result.stdout == "alice\n"


def test_the_truth_about_a_job_is_known_per_gpu(lab: Lab) -> None:
    work = "#!/bin/sh\nsimgpu --gpus 0 --util 40 --mem-mib 4096 --seconds 3\n"
    job = lab.submit("alice", "--gpus=2", "-N1", script=work)
    wait_for(lambda: finished(lab, job), 60, f"job {job} ends")
    wait_for(lambda: len(lab.truth(job)) == 2, 60, "its epilog ran")
    busy, idle = sorted(lab.truth(job), key=lambda share: share.usage.util_pct, reverse=True)
    assert idle.usage.util_pct == 0
    assert idle.usage.mem_used_frac == 0
    share_of_time = 3 / (busy.end_s - busy.start_s)
    assert busy.usage.util_pct == pytest.approx(40 * share_of_time, abs=0.5)
    assert busy.usage.mem_used_frac == pytest.approx(0.1 * share_of_time, abs=0.005)


@pytest.mark.usefixtures("no_lab")
def test_a_taken_port_moves_the_lab_to_the_next_range() -> None:
    usual = Lab().layout  # the previous lab may use other ports
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", usual.slurmctld_port))
        taken.listen()
        said: list[str] = []
        moved = Lab(report=said.append)
        moved.up()
    assert moved.layout.port == usual.port + PORT_RANGE_SIZE
    assert any(str(usual.slurmctld_port) in line for line in said)
    # Any later command finds the lab on its new ports.
    assert Lab().layout == moved.layout
    assert all(Lab().status().values())
