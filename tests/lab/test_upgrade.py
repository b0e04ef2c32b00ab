"""Upgrade a cluster from the previous release while jobs run: the database first, then node by node."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import MetaData, create_engine

from lab.cluster import Lab
from lab.daemons import Daemon
from lab.options import JobSubmit
from lab.polling import wait_for
from slurm_gpu.database.settings import load_settings
from tests.lab.conftest import LabWith
from tests.lab.records import runs_of
from tests.upgrade.releases import BEFORE, unpacked

pytestmark = pytest.mark.long
# The longest time between the lab's hook and ours, which run one after the other.
STAMPS_S = 0.5
# The start of slurm-gpud and its first sample take seconds on a busy host. A job that ends before that has no
# samples (tests/node/test_restarts.py). For a longer job the driver still has all samples since its prolog.
OUTLASTS_A_START_S = 20


@pytest.fixture
def lab(lab_with: LabWith) -> Lab:
    return lab_with(job_submit=JobSubmit.NOOP)


def daemons_of_previous_release(lab: Lab) -> Mapping[str, Daemon]:
    """Return our daemons of the previous release, with the same files, addresses and PID files."""
    root = lab.layout.root / "before"
    root.mkdir(exist_ok=True)
    tree = root / BEFORE
    if not tree.exists():
        unpacked(BEFORE, root)
    daemons = {}
    for name, daemon in lab.daemons.items():
        if name.startswith("slurm-gpud"):
            program = Path(daemon.argv[0])
            start, n = re.subn("(?<=PYTHONPATH=)[^:]+", str(tree), program.read_text())
            if n != 1:
                pytest.skip("the lab runs installed packages, and the previous release is not installed")
            old = root / program.name
            old.write_text(start)
            old.chmod(0o755)
            daemons[name] = dataclasses.replace(daemon, argv=[str(old), *daemon.argv[1:]])
    return daemons


# Settings that the previous release rejects.
_NEWER_SETTINGS = "web", "workers"


def _settings_files(lab: Lab) -> dict[Path, Path]:
    """Return the settings files of slurm-gpudbd, each with the path of its saved contents."""
    files = lab.layout.site_file, lab.layout.database_file
    return {file: file.with_name(f"{file.name}.current") for file in files}


def start_its_database(lab: Lab, old: Mapping[str, Daemon]) -> None:
    """Start the slurm-gpudbd of the previous release, which creates its own tables."""
    lab.daemons["slurm-gpudbd"].stop()
    engine = create_engine(load_settings(lab.layout.database_file).url)
    for file, current in _settings_files(lab).items():
        shutil.copy2(file, current)
        settings = yaml.safe_load(file.read_bytes())
        kept = {key: value for key, value in settings.items() if key not in _NEWER_SETTINGS}
        file.write_text(yaml.safe_dump(kept))
    tables = MetaData()
    tables.reflect(engine)
    tables.drop_all(engine)
    engine.dispose()
    old["slurm-gpudbd"].start()


def upgrade_database(lab: Lab) -> None:
    """Upgrade the tables, and start the slurm-gpudbd of this release with its settings."""
    for file, current in _settings_files(lab).items():
        file.write_bytes(current.read_bytes())
        current.unlink()
    lab.run_as("root", ["slurm-gpu", "db", "upgrade", f"--database-config={lab.layout.database_file}"])
    lab.daemons["slurm-gpudbd"].start()


def submit(lab: Lab, node: str, seconds: int) -> int:
    """Submit a job with one GPU of a node; return its ID."""
    work = f"--wrap=simgpu --util 50 --mem-mib 2000 --seconds {seconds}"
    return lab.submit("alice", "-w", node, "--gpus=1", "--time=5", work)


def wait_until_begun(lab: Lab, *jobs: int) -> None:
    wait_for(lambda: all(lab.intervals(job) for job in jobs), 90.0, "the jobs begin")


def wait_until_ended(lab: Lab, *jobs: int) -> None:
    def over() -> bool:
        return all(interval.end_s is not None for job in jobs for interval in lab.intervals(job)) and all(
            lab.intervals(job) for job in jobs
        )

    wait_for(over, 180.0, "the jobs end")


def run_of(lab: Lab, job: int) -> dict[str, Any]:
    """Return the only run of a job, once the record of its GPU is final."""

    def found() -> Any:
        runs = runs_of(lab, job)
        whole = len(runs) == 1 and any(device["final"] for device in runs[0]["devices"])
        return runs[0] if whole and runs[0]["coverage"] is not None else None

    return dict(wait_for(found, 180.0, f"job {job} has its records", interval_s=0.5))


def require_whole(lab: Lab, job: int, lost_s: float) -> None:
    """Check that a run lacks at most `lost_s`, although one slurm-gpud replaced another while it ran."""
    run = run_of(lab, job)
    (interval,) = lab.intervals(job)
    assert interval.end_s is not None
    took_s = interval.end_s - interval.start_s
    seen_s = sum(device["allocated_s"] for device in run["devices"])
    assert took_s - lost_s - STAMPS_S <= seen_s <= took_s + STAMPS_S, (job, run["devices"])
    assert run["coverage"] >= 1 - (lost_s + 1.5) / took_s
    assert run["uGPUcore"] > 0
    assert {device["device"] for device in run["devices"]} == {
        lab.nodes[interval.node].at_position(position).uuid for position in interval.positions
    }


def test_nothing_is_lost_when_the_database_and_then_the_nodes_are_upgraded_under_running_jobs(
    lab: Lab,
) -> None:
    old, names = daemons_of_previous_release(lab), list(lab.nodes)
    first, second = names[0], names[1]
    start_its_database(lab, old)
    for name in old.keys() - {"slurm-gpudbd"}:
        lab.daemons[name].stop()
        old[name].start()
    running = [submit(lab, node, 75) for node in (first, second)]
    before = submit(lab, first, OUTLASTS_A_START_S)
    wait_until_begun(lab, *running, before)
    wait_until_ended(lab, before)
    require_whole(lab, before, 0.0)

    old["slurm-gpudbd"].stop()
    spooled = [submit(lab, node, 4) for node in (first, second)]
    wait_until_begun(lab, *spooled)
    wait_until_ended(lab, *spooled)
    upgrade_database(lab)
    for job in spooled:
        require_whole(lab, job, 0.0)

    old[f"slurm-gpud-{first}"].stop()
    lab.daemons[f"slurm-gpud-{first}"].start()
    old[f"slurm-gpud-{second}"].kill9()
    lab.daemons[f"slurm-gpud-{second}"].start()
    after = [submit(lab, node, OUTLASTS_A_START_S) for node in (first, second)]
    for name in names[2:]:
        old[f"slurm-gpud-{name}"].stop()
        lab.daemons[f"slurm-gpud-{name}"].start()
    wait_until_begun(lab, *after)
    wait_until_ended(lab, *after, *running)
    for job in after:
        require_whole(lab, job, 0.0)
    require_whole(lab, running[0], 5.0)
    require_whole(lab, running[1], 15.0)  # samples not yet stored at the kill


def test_newer_nodes_ship_to_an_older_database_and_continue_after_its_upgrade(lab: Lab) -> None:
    old, first = daemons_of_previous_release(lab), next(iter(lab.nodes))
    running = submit(lab, first, 30)
    wait_until_begun(lab, running)
    start_its_database(lab, old)
    short = submit(lab, first, 4)
    wait_until_begun(lab, short)
    wait_until_ended(lab, short)
    require_whole(lab, short, 0.0)
    old["slurm-gpudbd"].stop()
    upgrade_database(lab)
    wait_until_ended(lab, running)
    require_whole(lab, running, 0.0)
