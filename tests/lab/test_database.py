"""Test slurm-gpudbd on a real cluster: Slurm is authoritative, and other users cannot write."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from sqlalchemy import delete

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient, MungeAuth, Run
from slurm_gpu.config.site import SiteConfig, load_config
from slurm_gpu.database.storage.engine import Database
from slurm_gpu.database.storage.schema import device, node_period, run
from slurm_gpu.wire import Record
from tests.lab.records import runs_of

WORK = "#!/bin/sh\nexec simgpu --util 60 --mem-mib 8192 --seconds 3\n"


@pytest.fixture
def database(lab: Lab) -> Iterator[DatabaseClient]:
    """Return a client of slurm-gpudbd as root."""
    with DatabaseClient(load_config(lab.layout.site_file)) as client:
        yield client


def recorded(database: DatabaseClient, job: int | str, n_runs: int = 1, n_devices: int = 1) -> list[Run]:
    """Return the runs of a job, once all have ended and have their final records."""

    def found() -> list[Run]:
        runs = list(database.run(str(job)))
        # slurmdbd may have the end of a short job up to 5 s before its eligible time.
        done = all(
            run.end_s is not None
            and run.eligible_s is not None
            and len({(record.node, record.device) for record in run.devices or () if record.final})
            == n_devices
            for run in runs
        )
        return runs if done and len(runs) == n_runs else []

    return wait_for(found, 120, f"the records of job {job} arrive", interval_s=0.3)


def test_a_three_second_job_has_one_run_with_one_record(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=WORK)
    (run,) = recorded(database, job)
    assert (run.state, run.n_nodes, run.n_gpus, run.gpu_type) == ("COMPLETED", 1, 1.0, "a100")
    assert len(run.devices or ()) == 1
    (share,) = lab.truth(job)
    assert run.ugpucore == pytest.approx(share.usage.util_pct, abs=1.0)
    assert run.coverage is not None
    assert run.elapsed_s is not None
    allocated_s = share.end_s - share.start_s
    # Up to 1 s is Slurm's rounding; a longer time is the wait for the prolog, before GPUs are allocated.
    not_held_s = run.elapsed_s - allocated_s
    possible = [1.0] * (not_held_s < 1.1) + [allocated_s / run.elapsed_s] * (not_held_s > 0.9)
    assert any(run.coverage == pytest.approx(coverage, abs=0.05) for coverage in possible), possible
    assert run.wait_h is not None
    assert run.run_h == (run.elapsed_s or 0) / 3600


def test_a_multi_node_job_has_one_record_per_node_gpu(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "-N2", "--gpus-per-node=2", "--time=5", script=WORK)
    (run,) = recorded(database, job, n_devices=4)
    assert (run.n_nodes, run.n_gpus) == (2, 4.0)
    allocated = {
        (h.node, lab.nodes[h.node].at_position(p).uuid) for h in lab.intervals(job) for p in h.positions
    }
    assert {(record.node, record.device) for record in run.devices or ()} == allocated


def test_each_array_task_and_each_component_is_a_run(lab: Lab, database: DatabaseClient) -> None:
    array = lab.submit("bob", "--array=0-2", "--gpus=1", "--time=5", script=WORK)
    runs = recorded(database, array, n_runs=3)
    assert sorted(run.id for run in runs) == [f"{array}_{task}" for task in range(3)]
    assert len({record.segment for run in runs for record in run.devices or ()}) == 3
    (one,) = database.run(f"{array}_1")
    assert one.array_task == 1


def test_shards_count_as_parts_of_a_gpu(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("bob", "--gres=shard:1", "--time=5", script=WORK)
    (run,) = recorded(database, job)
    assert run.n_gpus == 0.25
    assert run.gpu_type == "a100"
    assert [record.granted_mgpu in (250, None) for record in run.devices or ()] == [True]


def test_a_job_that_ended_while_slurmdbd_was_down_has_its_end(lab: Lab, database: DatabaseClient) -> None:
    enough = lab.layout.home / "alice" / "enough"
    until_file_exists = (
        f"#!/bin/sh\nsimgpu --util 60 --seconds 1\nwhile [ ! -e {enough} ]; do sleep 0.2; done\n"
    )
    job = lab.submit("alice", "--gpus=1", "--time=5", script=until_file_exists)
    wait_for(lambda: [run for run in database.run(str(job)) if run.start_s], 60, f"job {job} is imported")
    lab.daemons["slurmdbd"].kill9()
    try:
        lab.run_as("alice", ["touch", str(enough)])
        wait_for(lambda: lab.intervals(job) and lab.intervals(job)[0].end_s, 60, f"job {job} ends")
        wait_for(lambda: database.health().import_error, 90, "slurm-gpudbd notices")
    finally:
        enough.unlink(missing_ok=True)
        lab.daemons["slurmdbd"].start()
    (run,) = recorded(database, job)
    assert run.state == "COMPLETED"
    wait_for(lambda: database.health().import_error is None, 90, "the import works again")


def test_others_see_the_occupancy_of_a_job_and_no_more(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=confidential", script=WORK)
    recorded(database, job)
    for user, sees in (("alice", True), ("carol", True), ("bob", False)):
        (run,) = runs_of(lab, job, user)
        assert (run["user"], run["nGPU"], run["full"]) == ("alice", 1, sees)
        assert ("confidential" in json.dumps(run)) is sees
        assert (run["uGPUcore"] is not None) is sees


def ship(lab: Lab, record: Record, address: str, **headers: str) -> dict[str, Any]:
    """Return the answer of slurm-gpudbd to root at `address`, with the site's MUNGE key.

    Like a node, it repeats the request while slurmctld does not answer in time.
    """
    config = load_config(lab.layout.site_file)
    with httpx.Client(
        base_url=config.database,
        auth=MungeAuth(config.munge_socket),
        transport=httpx.HTTPTransport(local_address=address),
        trust_env=False,
    ) as client:
        shipment = {"wire": 1, "node": record.node, "boot_id": record.boot_id, "records": [record.to_wire()]}

        def answer() -> httpx.Response | None:
            reply = client.post("/v1/node", json=shipment, headers=headers)
            return None if reply.status_code == 503 else reply

        reply = wait_for(answer, 60, "slurm-gpudbd has an answer", interval_s=0.5)
        assert reply is not None
        content: dict[str, Any] = reply.json()
        return content


@pytest.mark.long  # a minute: nodes send every 10 s, and the database is checked every 30 s
def test_running_daemons_send_again_what_the_database_lost(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=WORK)
    (before,) = recorded(database, job)
    devices = {report.node: {one.uuid for one in report.devices} for report in database.nodes()}
    assert all(devices.values())
    lost = Database(yaml.safe_load(lab.layout.database_file.read_text())["url"])
    for table in (device, run, node_period):
        lost.write(lambda connection, table=table: connection.execute(delete(table)))
    lost.dispose()

    def again() -> bool:
        there = {report.node: {one.uuid for one in report.devices} for report in database.nodes()}
        return there == devices

    wait_for(again, 150, "nodes send their devices again", interval_s=1)
    (after,) = recorded(database, job)
    assert (after.ugpucore, after.coverage, after.zone) == (before.ugpucore, before.coverage, before.zone)


def test_a_node_can_report_only_its_own_jobs(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "-w", "n1", "--time=5", script=WORK)
    (run,) = recorded(database, job)
    (true,) = run.devices or ()
    forged = replace(true, seq=true.seq + 1, util_hist_ms={100: 1000})
    elsewhere = ship(lab, forged, lab.nodes["n2"].address)
    assert elsewhere["rejected"][0]["why"].startswith("127.0.1.2 is not an address of n1")

    def denied_by() -> str:
        foreign = ship(lab, replace(forged, node="n2"), lab.nodes["n2"].address)
        assert (foreign["stored"], foreign["stale"]) == (0, 0)
        (rejected,) = foreign["rejected"]
        return str(rejected["why"])

    # Slurm does not list all nodes of a completing job, so only the segment contradicts Slurm.
    wait_for(
        lambda: denied_by() == f"job {job} was never on n2 according to Slurm",
        60,
        "Slurm denies it",
        denied_by,
    )
    (after,) = database.run(str(job))
    # The host record and accounting of the job may arrive meanwhile.
    for name in ("devices", "events", "ugpucore", "ugpumem", "coverage", "energy_j"):
        assert getattr(after, name) == getattr(run, name), name


def test_a_malformed_or_unauthenticated_request_changes_nothing(lab: Lab, database: DatabaseClient) -> None:
    before = _settled(database)
    config: SiteConfig = load_config(lab.layout.site_file)
    body = json.dumps({"wire": 1, "node": "n1", "records": []})
    with httpx.Client(base_url=config.database, trust_env=False) as client:
        for headers in ({}, {"Authorization": "MUNGE x"}, {"Authorization": "Basic cm9vdDo="}):
            assert client.post("/v1/node", content=body, headers=headers).status_code == 401
            assert client.get("/v1/runs", headers=headers).status_code == 401
        for content in ("", "[", "{}", '{"wire": 1}', '{"wire": 1, "node": "n1", "records": NaN}'):
            answer = client.post("/v1/node", content=content, auth=MungeAuth(config.munge_socket))
            assert answer.status_code == 400
    assert _content(database) == before


def _content(database: DatabaseClient) -> tuple[list[dict[str, Any]], int]:
    return [run.to_json() for run in database.all_runs()], database.health().unmatched


def _settled(database: DatabaseClient) -> tuple[list[dict[str, Any]], int]:
    """Return the answer after an import and late shipments without changes."""

    def unchanged() -> list[tuple[list[dict[str, Any]], int]]:
        before, last_s = _content(database), database.health().last_import_s
        wait_for(lambda: database.health().last_import_s != last_s, 60, "a pass ends", interval_s=0.5)
        return [before] if _content(database) == before else []

    (answer,) = wait_for(unchanged, 120, "nothing more arrives")
    return answer


def test_no_file_of_a_node_contains_a_database_password(lab: Lab) -> None:
    layout = lab.layout
    settings = layout.database_file.read_text()
    password = urlsplit(re.findall(r"url: *(\S+)", settings)[0]).password
    assert password
    assert stat.S_IMODE(layout.database_file.stat().st_mode) == 0o600
    # Files of the database host: slurm-gpudbd's settings and the script that creates MariaDB's users.
    holders = {layout.database_file, layout.mariadb / "init.sql"}
    assert [path for path in _files(layout.root) if path not in holders and _holds(path, password)] == []
    for name in lab.nodes:
        pid = lab.daemons[f"slurm-gpud-{name}"].pid
        for part in ("environ", "cmdline", "maps"):
            assert password.encode() not in Path(f"/proc/{pid}/{part}").read_bytes()


def _files(root: Path) -> Iterator[Path]:
    for directory, directories, names in os.walk(root):
        if Path(directory) == root:
            # MariaDB's tables contain hashes; view/ is the interpreter.
            directories[:] = sorted(set(directories) - {"view", "mariadb"})
        paths = (Path(directory) / name for name in names)
        yield from (path for path in paths if path.is_file() and not path.is_symlink())
    yield root / "mariadb" / "init.sql"


def _holds(path: Path, password: str) -> bool:
    try:
        return password.encode() in path.read_bytes()
    except FileNotFoundError:  # daemons rename and remove files meanwhile
        return False
