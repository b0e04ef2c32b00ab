"""Test live values, windows and timelines from a real node to the reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient, NodeWindow, Run
from slurm_gpu.config.site import load_config
from slurm_gpu.database.settings import load_settings
from slurm_gpu.errors import NotFoundError

_LONG = "#!/bin/sh\nexec simgpu --util 60 --mem-mib 8192 --seconds 300\n"


@pytest.fixture
def database(lab: Lab) -> Iterator[DatabaseClient]:
    """Return a client of slurm-gpudbd as root."""
    with DatabaseClient(load_config(lab.layout.site_file)) as client:
        yield client


def nodes_live(lab: Lab, user: str) -> dict[str, Any]:
    """Return `user`'s view of each node, {} while Slurm or slurm-gpudbd does not answer in time."""
    shown = lab.run_as(user, ["slurm-gpu", "nodes", "--live", "--json"], check=False)
    if shown.returncode != 0:
        return {}
    return {node["node"]: node["live"] for node in json.loads(shown.stdout)["nodes"]}


def test_a_job_is_seen_while_it_runs_and_afterwards(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=_LONG)
    (interval,) = wait_for(lambda: lab.intervals(job), 60, "the job starts")
    uuid = lab.nodes[interval.node].at_position(interval.positions[0]).uuid

    def live(user: str) -> dict[str, Any]:
        node: dict[str, Any] = nodes_live(lab, user).get(interval.node) or {"devices": {}}
        values: dict[str, Any] = node["devices"].get(uuid, {})
        return values if values.get("jobs") == [job] else {}

    def works(user: str) -> bool:
        """Return whether the job computes; values up to ten seconds old may precede the start of its work."""
        return "util_pct" in (values := live(user)) and abs(values["util_pct"] - 60) <= 2

    wait_for(lambda: works("carol"), 60, "an operator sees what it does now", interval_s=1.0)
    wait_for(lambda: works("alice"), 60, "its owner sees it too", interval_s=1.0)
    assert wait_for(lambda: live("bob"), 60, "others see who holds it", interval_s=1.0) == {"jobs": [job]}

    def window() -> list[NodeWindow]:
        # Each request renews the demand for windows. Accounting receives the job's start after some seconds.
        try:
            found = list(database.windows(str(job)))
        except NotFoundError:
            return []
        return [item for item in found if any(value is not None for value in item.values("util_pct"))]

    (seen,) = wait_for(window, 120, "its node sends the window", interval_s=2.0)
    measured = [value for value in seen.values("util_pct") if value is not None]
    assert (seen.node, seen.device) == (interval.node, uuid)
    assert measured[-1] == pytest.approx(60, abs=2)

    lab.run_as("alice", ["scancel", "--full", str(job)])

    def over() -> list[Run]:
        return [
            run
            for run in database.run(str(job))
            if run.end_s
            and run.app
            and any(device.final for device in run.devices or ())
            and any(host.final for host in run.hosts or ())
        ]

    (run,) = wait_for(over, 120, "its records arrive", interval_s=0.5)
    assert (run.app, run.device_facts is not None and uuid in run.device_facts) == ("Python", True)
    (course,) = database.timelines(str(job))
    assert course.devices is not None
    assert course.devices[0].timeline is not None
    shares = [share for share in course.devices[0].timeline.fractions("util") if share is not None]
    assert max(shares) == pytest.approx(0.6, abs=0.02)
    printed = lab.run_as("alice", ["slurm-gpu", "job", str(job)]).stdout
    for word in ("application Python", "throttled", "CPUs busy", "PCIe in/out", "▅"):
        assert word in printed


def test_node_periods_are_recorded(lab: Lab) -> None:
    engine = create_engine(load_settings(lab.layout.database_file).url)

    def up() -> set[tuple[str, int]]:
        query = text("SELECT DISTINCT node, gpus FROM node_period WHERE state = 'up'")
        with engine.connect() as connection:
            found = {(node, gpus) for node, gpus in connection.execute(query)}
        return found if len(found) == len(lab.nodes) else set()

    try:
        # slurmctld is polled for nodes every minute, and may have reported them as down at first.
        found = wait_for(up, 120, "all nodes are up", interval_s=1.0)
    finally:
        engine.dispose()
    assert found == {(name, len(node.gpus)) for name, node in lab.nodes.items()}
