"""Test that on a host without usable cgroups the lab logs one line and works without them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab import cgroups
from lab.cgroups import CgroupSupport, CgroupVersion, probe
from lab.cluster import Lab
from lab.layout import REPOSITORY

WITHOUT_CGROUPS = """
set -e
mount -t tmpfs none /sys/fs/cgroup
{lab}/up --no-services
cd / && {lab}/as alice srun --gpus=1 true
{lab}/down
"""


def test_without_cgroups_jobs_run_unfenced(no_lab: Lab) -> None:
    script = WITHOUT_CGROUPS.format(lab=REPOSITORY / "lab")
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "not fenced" in line]
    assert said == [
        "lab: jobs are not fenced from each other's devices: "
        "no cgroup freezer and devices controller at /sys/fs/cgroup"
    ]


def test_a_host_that_gives_too_few_controllers_of_cgroup_v2_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids rdma\n")
    assert probe(tmp_path).version is CgroupVersion.NONE
    assert probe(tmp_path).reason == "cgroup v2 lacks cpu, cpuset, memory"


def test_the_probe_leaves_nothing(no_lab: Lab) -> None:
    probe()
    # Other cgroups may be created or removed on this host meanwhile.
    groups = [path for depth in ("*", "*/*") for path in Path("/sys/fs/cgroup").glob(depth)]
    assert [path for path in groups if "slurm-gpu" in path.name] == []


@pytest.mark.long
def test_the_lab_runs_without_cgroup_v2_if_slurm_cannot_use_it(
    no_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    if probe().version is CgroupVersion.V2:
        pytest.skip("Slurm may be able to use cgroup v2 on this host")
    monkeypatch.setattr(cgroups, "probe", lambda: CgroupSupport(CgroupVersion.V2))
    said: list[str] = []
    lab = Lab(no_lab.layout, no_lab.options, said.append)
    lab.up()
    assert [line for line in said if "Slurm cannot use cgroup v2 here" in line] == said
    assert lab.output(["srun", "--gpus=1", "--time=1", "hostname"], user="alice")
