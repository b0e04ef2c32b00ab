"""`slurm-gpu audit`: what was done to the cluster, the last one last."""

from __future__ import annotations

import json

from slurm_gpu.database.client import Act
from tests.cli.conftest import CommandLine
from tests.slurm.recorded import NOW_S

URGENT = Act(
    id="1" * 32, at_s=NOW_S - 60, host="head", act="urgent job started", subject="job 7 of alice",
    why="a \x1b[1m deadline", new="overtook 2 jobs; requeued for it: 5", evidence={"job_id": 7}, who="slurm",
)  # fmt: skip
MOVED = Act(
    id="2" * 32, at_s=NOW_S, host="head", act="limit moved", subject="share", why="w", old="1", new="2"
)


def test_the_last_comes_last_and_nothing_steers_the_terminal(slurm_gpu: CommandLine):
    slurm_gpu.database.act_list = [MOVED, URGENT]
    assert slurm_gpu("audit") == 0
    lines = slurm_gpu.out.splitlines()
    assert lines[0].split() == ["when", "act", "of", "before", "after", "why", "told", "by"]
    assert "job 7 of alice" in lines[1]
    assert "\x1b" not in slurm_gpu.out
    assert "limit moved" in lines[-1]


def test_one_sort_of_act_and_as_json_with_its_evidence(slurm_gpu: CommandLine):
    slurm_gpu.database.act_list = [MOVED, URGENT]
    assert slurm_gpu("audit", "--act", "urgent", "--json") == 0
    (act,) = json.loads(slurm_gpu.out)["audit"]
    assert act["evidence"] == {"job_id": 7}


def test_nothing_is_said_to_be_nothing(slurm_gpu: CommandLine):
    assert slurm_gpu("audit") == 0
    assert slurm_gpu("audit", "--act", "urgent") == 0
    assert (slurm_gpu.out, "no such act is on record" in slurm_gpu.err) == ("", True)
