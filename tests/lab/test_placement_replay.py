"""Compare the model of `placement replay` with the lab's real Slurm on the same jobs."""

from __future__ import annotations

import json
import random

import pytest

from lab.options import JobSubmit
from lab.polling import wait_for
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

JOBS, SEED = 30, 7
WITHIN, WITHIN_S = 0.3, 5.0
"""The allowed difference in mean wait: Slurm's backfill runs every 5 s, and the model has no prolog."""


def test_waits_of_the_model_match_slurm_s(lab_with: LabWith) -> None:
    lab = lab_with(job_submit=JobSubmit.NOOP, native_limits=False)
    before = lab.output(["date", "+%Y-%m-%dT%H:%M:%S%:z"]).strip()
    chosen = random.Random(SEED)
    jobs = []
    for _ in range(JOBS):  # more than can run at once on 16 GPUs
        gpus = chosen.choice((1, 1, 2, 4))
        nodes = chosen.choice((1, 2)) if gpus == 4 else 1
        jobs.append(
            lab.submit(
                chosen.choice(("alice", "bob", "carol")),
                *(f"--nodes={nodes}", f"--gpus-per-node={gpus}", "--ntasks-per-node=1", "--mem=1000"),
                *(f"--time={chosen.randint(1, 3)}", "--output=/dev/null"),
                f"--wrap=sleep {chosen.randint(10, 40)}",
            )
        )
    recorded = ["slurm-gpu", "jobs", "--all-users", "--since", before, "--all", "--json"]

    def all_ended() -> bool:
        runs = json.loads(lab.output(recorded))["runs"]
        return {run["job_id"] for run in runs if run["end_s"] is not None}.issuperset(jobs)

    wait_for(all_ended, 900, "slurm-gpudbd has imported the ends of all jobs", interval_s=2)
    replay = ["slurm-gpu", "placement", "replay", "--since", before, "--json"]
    answer = json.loads(lab.run_as("root", replay, timeout_s=120).stdout)
    found = answer["reproduction"]
    assert found["jobs"] == JOBS
    recorded_s, modelled_s = found["recorded_h"] * 3600, found["modelled_h"] * 3600
    assert recorded_s > 2 * WITHIN_S, "the jobs did not wait long enough"
    assert abs(modelled_s - recorded_s) <= max(WITHIN * recorded_s, WITHIN_S), found
    for figures in answer["rules"].values():
        assert (figures["jobs"], figures["never_started"]) == (JOBS, 0)
    assert answer["rules"]["ours"]["straddling"] == 0, "the lab has zones"
