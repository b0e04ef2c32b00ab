"""Test an administrator's first commands on a cluster on which no job has run yet."""

from __future__ import annotations

import json

from lab.cluster import Lab


def test_commands_work_before_the_first_job(no_lab: Lab) -> None:
    no_lab.up()
    assert no_lab.output(["squeue", "--noheader", "--states=all"]) == ""
    shown = json.loads(no_lab.output(["slurm-gpu", "nodes", "--json"]))["nodes"]
    assert {node["node"]: node["gpus_free"] for node in shown} == dict.fromkeys(no_lab.nodes, 4)
    sbatch = ["sbatch", "--gpus=1", "--time=1", "--wrap=true"]
    answer = json.loads(no_lab.output(["slurm-gpu", "explain", "--json", "--", *sbatch], user="alice"))
    assert answer["accepted"], answer
    assert json.loads(no_lab.output(["slurm-gpu", "jobs", "--all-users", "--json"])) == {"runs": []}
