"""Run the jobs of the demo: the policy decides as expected, and every row agrees with the truth."""

from __future__ import annotations

from statistics import median
from typing import Any

from lab import demo
from lab.cluster import Lab
from lab.scenario import ACCEPTED, REFUSED
from tests.lab.records import runs_of
from tests.lab.test_node import late_samples_pct


def test_every_row_is_within_one_point_of_what_the_gpus_really_did(lab: Lab) -> None:
    accepted, refusals = demo.submit_all(lab)
    rows = demo.wait_for_runs(lab, accepted)

    assert len(rows) == sum(job.n_runs for job in ACCEPTED)
    devices = {r["id"]: _devices(lab, r["id"]) for r in rows}
    differences = [each for each in demo.differences(lab, rows) if each.core is not None]
    for each in differences:
        assert each.core is not None
        assert each.memory is not None
        assert abs(each.core) <= demo.TOLERANCE_PCT, each
        late_pct = max(late_samples_pct(record) for record in devices[each.job])
        assert abs(each.memory) <= demo.TOLERANCE_PCT + late_pct, each
    assert median(each.worst for each in differences) <= demo.TOLERANCE_PCT
    assert len(refusals) == len(REFUSED)

    row = {
        entry.job.about: next(
            r for r in rows if r["job_id"] == entry.job_id or r["array_job_id"] == entry.job_id
        )
        for entry in accepted
    }
    # 0 is a measurement, None is a gap.
    idle, cpu_only = row["allocates a GPU and leaves it idle"], row["no GPU at all"]
    assert (idle["nGPU"], idle["uGPUcore"], idle["uGPUmem"]) == (1, 0, 0)
    assert (cpu_only["nGPU"], cpu_only["uGPUcore"], cpu_only["uGPUmem"]) == (0, None, None)
    assert row["a quarter of a GPU"]["nGPU"] == 0.25
    assert row["two nodes, two GPUs each"]["nNODE"] == 2

    assert len(devices[row["two nodes, two GPUs each"]["id"]]) == 4  # one for each GPU of each node
    assert all(len(devices[r["id"]]) == 1 for r in rows if r["array_job_id"])  # one device for each task
    assert len(devices[row["three seconds"]["id"]]) == 1
    # The coverage of a run uses whole seconds, which are too coarse for short jobs.
    assert all(d["sampled_s"] > 0.9 * d["allocated_s"] for found in devices.values() for d in found)


def test_a_refusal_names_rule_reason_numbers_and_a_way_out(lab: Lab) -> None:
    accepted, refusals = demo.submit_all(lab)
    assert accepted
    by_about = {refusal.job.about: refusal.message for refusal in refusals}
    gpus = by_about["more GPUs than a course job may have"]
    for part in ("undergrad-job", "Course work fits on two GPUs for four hours.", "2", "4", "--gpus=2"):
        assert part in gpus
    walltime = by_about["a day, where hours are allowed"]
    for part in ("undergrad-job", "--time="):
        assert part in walltime
    share = by_about["more than her share, counting running and pending jobs"]
    for part in ("grad-share", "10", "12", "4"):
        assert part in share


def _devices(lab: Lab, job: str) -> list[dict[str, Any]]:
    return [device for run in runs_of(lab, job) for device in run["devices"]]
