"""Test Slurm's own limits under a policy, in a real slurmdbd and slurmctld."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for

pytestmark = pytest.mark.long

POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision], qos: [sg-*]}
groups:
  vision: {accounts: [vision]}
  long: {qos: [sg-long]}
rules:
  - {id: share, for: vision, per: user, why: Turns., limits: {gpus_total: %(share)d}}
  - {id: running, for: vision, per: user, why: Turns., limits: {gpus_running: %(running)d}}
  - {id: size, for: vision, per: job, why: Turns., limits: {gpus: %(size)d, walltime: 2h}}
  - {id: queue, for: vision, per: user, why: Turns., limits: {jobs_total: %(queue)d}}
  - {id: long, for: long, per: job, why: Turns., limits: {gpus: 1}}
"""
LOOSE = {"share": 12, "running": 12, "size": 8, "queue": 40}
LATER = ("--begin=now+1hour", "--time=10", "--output=/dev/null", "--wrap=true")
NOW = ("--time=30", "--output=/dev/null", "--wrap=sleep 900")
DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm on a busy host."""
NO_OP = "function slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\nreturn 0\n"
LIMITS = (
    "cluster,account,user,grptres,grpjobs,grpsubmitjobs,maxtres,maxwall,maxjobs,maxsubmitjobs",
    "name,flags,grptres,grpjobs,grpsubmitjobs,maxtres,maxtrespu,maxwall,maxjobspu,maxsubmitjobspu",
)


@pytest.fixture(scope="module")
def bare(lab_with: Callable[..., Lab]) -> Iterator[Lab]:
    lab = lab_with(services=False)
    sacctmgr(lab, "add", "qos", "sg-long")
    sacctmgr(lab, "modify", "user", "where", "name=alice", "set", "qos+=sg-long")
    yield lab
    slurm_gpu(lab, "policy", "apply", str(lab.layout.policy_file))


@pytest.fixture
def lab(bare: Lab, tmp_path: Path) -> Iterator[Lab]:
    """Return a cluster with POLICY applied, unused limits, and an empty queue."""
    apply(bare, tmp_path, **LOOSE)
    yield bare
    bare.cancel_all_jobs()


def sacctmgr(lab: Lab, *arguments: str) -> str:
    return lab.run_as("root", ["sacctmgr", "-i", *arguments]).stdout


def slurm_gpu(
    lab: Lab, *argv: str, check: bool = True, extra: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return lab.run_as("root", ["slurm-gpu", *argv], check=check, extra=extra)


def written(directory: Path, **values: int) -> str:
    path = directory / "policy.yaml"
    path.write_text(POLICY % (LOOSE | values))
    return str(path)


def apply(lab: Lab, directory: Path, **values: int) -> str:
    return slurm_gpu(lab, "policy", "apply", "--replace", written(directory, **values)).stdout


def seen(lab: Lab) -> tuple[str, str, str]:
    """Return all of Slurm's own limits, and the script."""
    show = ["sacctmgr", "-nP", "show"]
    return (
        lab.output([*show, "assoc", "wopl", f"format={LIMITS[0]}"]),
        lab.output([*show, "qos", f"format={LIMITS[1]}"]),
        (lab.layout.etc / "job_submit.lua").read_text(),
    )


def limits_of(lab: Lab, account: str, user: str = "") -> str:
    rows = [row.split("|", 3) for row in seen(lab)[0].splitlines()]
    return next(row[3] for row in rows if row[1:3] == [account, user])


def queue(lab: Lab) -> dict[str, str]:
    """Return the reason by job ID, "None" for running jobs."""
    rows = lab.output(["squeue", "-h", "-o", "%A %r"]).splitlines()
    return {job_id: reason for job_id, _, reason in (row.partition(" ") for row in rows)}


def lost_script(lab: Lab) -> None:
    """Replace our script with one that accepts every job."""
    script = lab.layout.etc / "job_submit.lua"
    newer = int(script.stat().st_mtime) + 1
    script.write_text(NO_OP)
    subprocess.run(["touch", "-d", f"@{newer}", str(script)], check=True)


def test_only_what_the_policy_manages_is_written_to(lab: Lab) -> None:
    assert limits_of(lab, "vision") == "|||gres/gpu=8|02:00:00||40"
    assert limits_of(lab, "vision", "alice") == "gres/gpu=12||||||"
    for account, user in (("nlp", ""), ("nlp", "bob"), ("root", ""), ("root", "root")):
        assert limits_of(lab, account, user) == "||||||"
    assert seen(lab)[1].splitlines() == ["normal|||||||||", "sg-long|DenyOnLimit||||gres/gpu=1||||"]


def test_native_limits_apply_without_job_submit_lua(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, size=2)
    lost_script(lab)
    large = str(lab.submit("alice", "--gpus=4", *NOW))
    wait_for(
        lambda: queue(lab)[large] == "AssocMaxGRESPerJob",
        DEADLINE_S,
        "it waits",
        lambda: str(queue(lab)),
        0.5,
    )
    refused = lab.run_as("alice", ["sbatch", "--gpus=2", "--qos=sg-long", *NOW], check=False)
    assert "QOSMaxGRESPerJob" in refused.stderr  # a job that can never start is refused immediately


def test_native_limits_on_running_jobs_delay_accepted_ones(lab: Lab, tmp_path: Path) -> None:
    apply(lab, tmp_path, running=2)
    jobs = [str(lab.submit("alice", "--gpus=1", *NOW)) for _ in range(3)]
    wait_for(
        lambda: sorted(queue(lab).values()) == ["AssocGrpGRES", "None", "None"],
        DEADLINE_S,
        "two of three run",
        lambda: str(queue(lab)),
        0.5,
    )
    never = lab.run_as("alice", ["sbatch", "--gpus=3", *NOW], check=False)
    assert "GPUs of running jobs: limit 2, requested 3." in never.stderr
    apply(lab, tmp_path, running=3)
    wait_for(
        lambda: [queue(lab)[job] for job in jobs] == ["None"] * 3,
        DEADLINE_S,
        "the third runs once it may",
        lambda: str(queue(lab)),
        0.5,
    )


def test_pending_jobs_count_regardless_of_their_reason(lab: Lab, tmp_path: Path) -> None:
    """Test held, dependent, --begin and throttled jobs: Slurm and our script count all as pending."""
    apply(lab, tmp_path, queue=5)
    lost_script(lab)
    lab.submit("alice", *LATER)
    held = lab.submit("alice", "--hold", *NOW)
    lab.submit("alice", f"--dependency=afterok:{held}", *NOW)
    lab.submit("alice", "--hold", "--array=0-1%1", *NOW)
    refused = lab.run_as("alice", ["sbatch", *NOW], check=False)
    assert refused.returncode != 0
    assert "AssocMaxSubmitJobLimit" in refused.stderr


def test_queued_jobs_that_a_change_would_strand_are_listed_and_left(lab: Lab, tmp_path: Path) -> None:
    large = lab.submit("alice", "--gpus=4", *LATER)
    small = lab.submit("alice", "--gpus=1", *LATER)
    path = written(tmp_path, size=2)
    plan: dict[str, Any] = json.loads(slurm_gpu(lab, "policy", "plan", "--json", path).stdout)
    assert [(one["job_id"], one["limit"], one["requested"]) for one in plan["native"]["stranded"]] == [
        (large, 2, 4)
    ]
    shown = slurm_gpu(lab, "policy", "apply", path)
    assert f"job {large} of alice requests 4 gres/gpu: account vision, MaxTRES=gres/gpu=2" in shown.stderr
    assert set(queue(lab)) == {str(large), str(small)}
    assert "vision|alice" in seen(lab)[0]


def test_manual_changes_are_drift(lab: Lab, tmp_path: Path) -> None:
    path = written(tmp_path)
    assert slurm_gpu(lab, "policy", "status", path).returncode == 0
    sacctmgr(lab, "modify", "user", "where", "name=alice", "account=vision", "set", "GrpTRES=gres/gpu=99")
    sacctmgr(lab, "modify", "account", "where", "name=vision", "set", "GrpJobs=77")  # not in any rule
    found = slurm_gpu(lab, "policy", "status", path, check=False)
    assert found.returncode == 1
    assert (
        "user alice in account vision: GrpTRES=gres/gpu=12 (rule share) was set to 99 by hand" in found.stdout
    )
    assert "GrpJobs" not in found.stdout
    slurm_gpu(lab, "policy", "apply", path)
    assert slurm_gpu(lab, "policy", "status", path).returncode == 0
    assert limits_of(lab, "vision").startswith("|77|")
    sacctmgr(lab, "modify", "account", "where", "name=vision", "set", "GrpJobs=-1")


def test_rollback_works_while_slurmctld_is_down(lab: Lab, tmp_path: Path) -> None:
    before = seen(lab)
    apply(lab, tmp_path, share=3, size=3)
    assert seen(lab) != before
    lab.daemons["slurmctld"].kill9()
    slurm_gpu(lab, "policy", "rollback")
    lab.daemons["slurmctld"].start()
    assert seen(lab) == before
    large = lab.submit("alice", "--gpus=4", *NOW)
    wait_for(lambda: queue(lab)[str(large)] == "None", DEADLINE_S, "what was refused in between runs")


@pytest.mark.parametrize("signal", ["", "KILL"], ids=["sacctmgr fails", "apply is killed"])
@pytest.mark.parametrize("call", [1, 2])
def test_half_an_apply_is_none(lab: Lab, tmp_path: Path, call: int, signal: str) -> None:
    """Let sacctmgr fail at each change in turn, or kill the calling command."""
    before = seen(lab)
    shim = tmp_path / "bin" / "sacctmgr"
    shim.parent.mkdir()
    count = tmp_path / "count"
    last = f"kill -{signal} $PPID" if signal else "echo slurmdbd is down >&2; exit 1"
    shim.write_text(
        "#!/bin/sh\n"
        'case "$*" in *modify*) echo x >> ' + f"{count};; esac\n"
        f'case "$*" in *modify*) [ $(wc -l < {count}) = {call} ] && {{ {last}; }};; esac\n'
        'PATH=${PATH#*:} exec sacctmgr "$@"\n'
    )
    shim.chmod(0o755)
    path = f"{shim.parent}:{lab.environment_of('root')['PATH']}"
    wanted = written(tmp_path, share=3, size=3, queue=9)
    failed = slurm_gpu(lab, "policy", "apply", wanted, check=False, extra={"PATH": path})
    if signal:
        assert failed.returncode == -9
        assert "was interrupted" in slurm_gpu(lab, "policy", "status", wanted, check=False).stdout
        assert "has been undone" in slurm_gpu(lab, "policy", "rollback").stdout
    else:
        assert failed.returncode == 3
        assert "slurmdbd is down" in failed.stderr
    assert seen(lab) == before
    slurm_gpu(lab, "policy", "apply", wanted)
    assert limits_of(lab, "vision", "alice") == "gres/gpu=3||||||"


def test_without_slurmdbd_the_script_alone_is_applied(lab: Lab, tmp_path: Path) -> None:
    conf = lab.layout.slurm_conf
    whole = conf.read_text()

    def run_with(text: str) -> None:
        conf.write_text(text)
        lab.daemons["slurmctld"].kill9()
        lab.daemons["slurmctld"].start()

    kept = [line for line in whole.splitlines() if not line.startswith("AccountingStorage")]
    try:
        run_with("\n".join([*kept, "AccountingStorageType=accounting_storage/none", ""]))
        path = written(tmp_path, share=5)
        shown = slurm_gpu(lab, "policy", "plan", path).stdout
        assert "this Slurm has no slurmdbd, so only job_submit.lua enforces the policy" in shown
        assert "is active" in slurm_gpu(lab, "policy", "apply", path).stdout
        assert slurm_gpu(lab, "policy", "status", path).returncode == 0
    finally:
        run_with(whole)
