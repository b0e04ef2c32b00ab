"""Rules that count pending jobs alone."""

from __future__ import annotations

import pytest

from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript

from .model import Request
from .render import PARTITIONS, description, record
from .test_per_account import script

TEXT = """\
version: 1
mode: enforce
groups: {all: {}}
rules:
  - {id: queue, for: all, per: user, why: "Others queue, too.", limits: {jobs_pending: 3, gpus_pending: 6}}
"""
JOB = Request(1001, "vision", per_job=2)


def queued(plugin: PolicyScript, *, pending: int, running: int) -> None:
    phases = [False] * pending + [True] * running
    plugin.set_jobs(record(10 + n, JOB, running=runs) for n, runs in enumerate(phases))


@pytest.mark.parametrize("lua", LUA_VERSIONS)
def test_running_jobs_do_not_count(lua: str) -> None:
    plugin = script(TEXT, lua)
    queued(plugin, pending=2, running=9)
    assert plugin.submit(description(JOB), PARTITIONS).accepted
    refused = plugin.submit(description(Request(1001, "vision", per_job=1)), PARTITIONS)
    assert refused.messages == (
        "Refused by rule queue: Others queue, too.",
        "  GPUs pending: used 6 (2 just submitted), limit 6, requested 1.",
        "  jobs pending: used 3 (1 just submitted), limit 3, requested 1.",
        "  Jobs that were just submitted count before they appear in the queue. If Slurm",
        "    refused them, try again in 10 s; otherwise wait for a job to start.",
    )


def test_jobs_that_have_started_make_room() -> None:
    plugin = script(TEXT)
    queued(plugin, pending=3, running=0)
    refused = plugin.submit(description(JOB), PARTITIONS)
    assert refused.messages[-2:] == (
        "  No smaller request fits the limits now. Wait for a job to start, or cancel one:",
        "    scancel 12",
    )
    queued(plugin, pending=2, running=1)
    assert plugin.submit(description(JOB), PARTITIONS).accepted


def test_an_array_is_refused_if_its_tasks_exceed_the_limit() -> None:
    plugin = script(TEXT)
    refused = plugin.submit(description(Request(1001, "vision", per_job=1, array_tasks=4)), PARTITIONS)
    assert refused.messages[-1] == "  Try: sbatch --array=1-3%3 ..."


def test_a_running_job_may_be_changed_whatever_is_pending() -> None:
    plugin = script(TEXT)
    queued(plugin, pending=3, running=1)
    row = record(13, JOB, running=True)
    assert plugin.modify({"time_limit": 5}, row, PARTITIONS, 1001).accepted
