"""Set the clock of a node or of slurm-gpudbd during real jobs: each job keeps its record and its length."""

from __future__ import annotations

import pytest

from lab.clocks import DATABASE_HOST
from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient, Run
from slurm_gpu.config.site import load_config
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

AHEAD_S = 120


def reported_run(lab: Lab, job: int) -> Run | None:
    """Return the run of the job in the database, once it has a GPU."""
    client = DatabaseClient(load_config(lab.layout.site_file))
    try:
        (run,) = client.run(str(job)) or (None,)
    finally:
        client.close()
    return run if run is not None and run.devices else None


def whole_run(lab: Lab, job: int) -> Run:
    def found() -> Run | None:
        run = reported_run(lab, job)
        if run is None or run.end_s is None or not all(one.final for one in run.devices or ()):
            return None
        return run

    return wait_for(found, 120, f"the record of job {job} is whole", interval_s=0.5)


def submit(lab: Lab, seconds: int) -> int:
    work = f"exec simgpu --util 60 --mem-mib 2000 --seconds {seconds}"
    return lab.submit("alice", "--time=5", "-w", "n1", "--gpus=1", f"--wrap={work}")


def test_a_clock_that_is_set_under_a_job_costs_it_nothing(lab_with: LabWith) -> None:
    lab = lab_with(own_clocks=True)
    during = submit(lab, 20)
    wait_for(lambda: reported_run(lab, during), 60, "slurm-gpud has reported the job")
    lab.step_clock("n1", AHEAD_S)
    lab.step_clock(DATABASE_HOST, -AHEAD_S)
    after = submit(lab, 4)
    runs = [whole_run(lab, job) for job in (during, after)]
    lab.step_clock("n1", -AHEAD_S)
    lab.step_clock(DATABASE_HOST, AHEAD_S)
    for run, ahead_s in zip(runs, (0, AHEAD_S), strict=True):
        (share,) = lab.truth(run.job_id)
        assert run.devices is not None
        (record,) = run.devices
        assert record.first_s - share.start_s == pytest.approx(ahead_s, abs=2 + share.unsure_s)
        assert record.allocated_s == pytest.approx(share.end_s - share.start_s, abs=0.1 + share.unsure_s)
        # Driver samples that were not read before the clock step are lost, which leaves a gap.
        assert record.sampled_s == pytest.approx(record.allocated_s, abs=2)
        assert run.ugpucore == pytest.approx(share.usage.util_pct, abs=6 if ahead_s == 0 else 1)
    assert "the wall clock was set by +120" in lab.daemons["slurm-gpud-n1"].log.read_text()
