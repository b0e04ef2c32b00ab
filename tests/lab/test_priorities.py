"""Test on a real Slurm that a waiting large job earns points and starts before earlier small ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from lab.cluster import Lab
from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

DEADLINE_S = 120.0
"""A deadline for asynchronous work of Slurm and slurm-gpuctld; points are updated once a minute."""
WORK = "#!/bin/sh\nexec sleep 3600\n"


@pytest.fixture
def lab(lab_with: LabWith) -> Iterator[Lab]:
    lab = lab_with(services=False, controller=True, job_submit=JobSubmit.NONE)
    before = lab.layout.site_file.read_text()
    yield lab
    lab.layout.site_file.write_text(before)
    lab.daemons["slurm-gpuctld"].restart()
    lab.cancel_all_jobs()


def submit(lab: Lab, *options: str) -> int:
    return lab.submit("alice", "--time=60", "--output=/dev/null", *options, script=WORK)


def points(lab: Lab) -> dict[int, int]:
    """Return the site factor of each pending job."""
    rows = lab.output(["sprio", "--noheader", "--format=%i|%S"]).split()
    return {int(job): int(factor) for job, _, factor in (row.partition("|") for row in rows)}


def write(lab: Lab, **priority: object) -> None:
    site = yaml.safe_load(lab.layout.site_file.read_text())
    site["placement"] = {"mode": "enforce", "priority": priority}
    lab.layout.site_file.write_text(yaml.safe_dump(site, sort_keys=False))


def test_a_large_job_overtakes_small_ones_by_waiting(lab: Lab):
    blocker = submit(lab, "--nodes=4", "--gpus-per-node=4")
    wait_for(lambda: running(lab) == [blocker], DEADLINE_S, "all GPUs are busy", lambda: queue(lab))
    small = [submit(lab, "--nodes=1", "--gpus=2") for _ in range(8)]
    large = submit(lab, "--nodes=4", "--gpus-per-node=4")
    by_hand = submit(lab, "--nodes=4", "--gpus-per-node=4")
    wait_for(
        lambda: {large, by_hand, *small} <= points(lab).keys(), DEADLINE_S, "they wait", lambda: queue(lab)
    )
    lab.output(["scontrol", "update", f"JobId={by_hand}", "SiteFactor=-7"])
    write(lab, per_hour={"large": 1_000_000}, max_points=50_000)
    lab.daemons["slurm-gpuctld"].restart()
    wait_for(lambda: points(lab)[large] > 0, DEADLINE_S, "the large job has points", lambda: queue(lab))
    found = points(lab)
    assert found[by_hand] == -7
    assert {found[job] for job in small} == {0}
    first = found[large]

    # After a change of the weights, the job gets its new points without a restart of any daemon.
    write(lab, per_hour={"large": 1_000_000}, max_points=first // 2)
    wait_for(lambda: points(lab)[large] <= first // 2, DEADLINE_S, "it has fewer", lambda: queue(lab))
    assert points(lab)[large] > 0

    lab.output(["scancel", str(blocker)])
    wait_for(
        lambda: running(lab) != [blocker] and running(lab), DEADLINE_S, "another runs", lambda: queue(lab)
    )
    assert running(lab) == [large]


def running(lab: Lab) -> list[int]:
    rows = lab.output(["squeue", "--noheader", "--states=RUNNING", "--format=%A"]).split()
    return [int(row) for row in rows]


def queue(lab: Lab) -> str:
    return lab.output(["squeue"]) + lab.output(["sprio", "-l"])
