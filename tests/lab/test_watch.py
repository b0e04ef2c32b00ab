"""Test that the watch over running jobs on a real cluster reports slow and hanging jobs only."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from lab.simgpu.faults import clear, throttle
from lab.simgpu.world import World

_WELL_S = 75
"""The seconds for which all jobs are healthy, as a reference."""
_THERMAL = 0x40
"""NVML's bit of thermal throttling by hardware."""
_BUSY = "exec simgpu --util 100 --mem-mib 8192 --seconds 600"
_HANGS = f"simgpu --util 100 --mem-mib 8192 --seconds {_WELL_S}\nexec sleep 600"


def unhealthy(lab: Lab, user: str) -> dict[int, dict[str, Any]]:
    """Return the alerts that `slurm-gpu top` shows this user, by job."""
    shown = lab.run_as(user, ["slurm-gpu", "top", "--json"], check=False)
    alerts = json.loads(shown.stdout)["attention"] or [] if shown.returncode == 0 else []
    return {alert["job_id"]: alert for alert in alerts if alert["alert"] == "unhealthy"}


@pytest.mark.long
def test_a_slow_gpu_and_a_hang_are_reported_and_a_healthy_job_is_not(lab: Lab) -> None:
    options = ("-N1", "--time=15")
    slow = lab.submit("alice", *options, "--gpus=4", script=f"#!/bin/sh\n{_BUSY}\n")
    well = lab.submit("alice", *options, "--gpus=2", script=f"#!/bin/sh\n{_BUSY}\n")
    hangs = lab.submit("bob", *options, "--gpus=2", script=f"#!/bin/sh\n{_HANGS}\n")
    wait_for(lambda: all(lab.intervals(job) for job in (slow, well, hangs)), 60, "all three run")
    (interval,) = lab.intervals(slow)
    culprit = lab.nodes[interval.node].at_position(interval.positions[2])
    world = World(lab.layout.node(interval.node).world)
    device = [one.uuid for one in world.devices].index(culprit.uuid)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began >= _WELL_S, 2 * _WELL_S, "they have run for a while")
    throttle(world, device, _THERMAL)
    try:
        seen: dict[int, dict[str, Any]] = {}

        def both() -> bool:
            seen.update(unhealthy(lab, "carol"))
            return {slow, hangs} <= seen.keys()

        def why() -> str:
            said = [
                lab.run_as("carol", ["slurm-gpu", "diagnose", str(job)], check=False).stdout
                for job in (slow, hangs)
            ]
            return "\n".join([f"seen: {seen}", *said])

        wait_for(both, 180, "an operator sees both", why, interval_s=2.0)
    finally:
        clear(world, device)
    assert well not in seen
    assert (seen[slow]["verdict"]["cause"], seen[slow]["devices"]) == ("slow or failing", [culprit.uuid])
    assert seen[slow]["verdict"]["confidence"] >= 0.6
    assert seen[hangs]["verdict"]["cause"] == "hang"

    assert set(unhealthy(lab, "bob")) == {hangs}  # users see their own jobs
    suspects = json.loads(lab.output(["slurm-gpu", "nodes", "--suspect", "--json"], user="carol"))
    assert suspects["as_of_s"] is not None
    assert suspects["suspects"] == []  # one slow job does not make a node a suspect
    for job in (slow, well, hangs):
        lab.output(["scancel", str(job)])
    wait_for(lambda: not unhealthy(lab, "carol"), 60, "ended alerts disappear", interval_s=2.0)
