"""slurm-gpudbd on a real cluster: what Slurm says decides, and nobody else writes."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lab.cluster import Lab
from lab.polling import wait_for
from slurm_gpu.config import SiteConfig, load_config
from slurm_gpu.database.client import DatabaseClient, MungeAuth, Run
from slurm_gpu.records import Record

WORK = "#!/bin/sh\nexec simgpu --util 60 --mem-mib 8192 --seconds 3\n"


@pytest.fixture
def database(lab: Lab) -> Iterator[DatabaseClient]:
    """What root sees of slurm-gpudbd."""
    with DatabaseClient(load_config(lab.layout.site_file)) as client:
        yield client


def recorded(database: DatabaseClient, job: int | str, n_runs: int = 1, n_devices: int = 1) -> list[Run]:
    """The runs of a job, once all have ended and have their final records."""

    def found() -> list[Run]:
        runs = list(database.run(str(job)))
        done = all(
            run.end_s is not None
            and len({(record.node, record.device) for record in run.devices or () if record.final})
            == n_devices
            for run in runs
        )
        return runs if done and len(runs) == n_runs else []

    return wait_for(found, 60, f"the records of job {job} arrive", interval_s=0.3)


def test_a_three_second_job_has_one_run_with_one_record(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=WORK)
    (run,) = recorded(database, job)
    assert (run.state, run.n_nodes, run.n_gpus, run.gpu_type) == ("COMPLETED", 1, 1.0, "a100")
    assert len(run.devices or ()) == 1
    (share,) = lab.truth(job)
    assert run.ugpucore == pytest.approx(share.usage.util_pct, abs=1.0)
    assert run.coverage is not None
    assert run.coverage > 0.6
    assert run.wait_h is not None
    assert run.run_h == (run.elapsed_s or 0) / 3600


def test_a_multi_node_job_has_one_record_per_node_gpu(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "-N2", "--gpus-per-node=2", "--time=5", script=WORK)
    (run,) = recorded(database, job, n_devices=4)
    assert (run.n_nodes, run.n_gpus) == (2, 4.0)
    held = {(h.node, lab.nodes[h.node].at_position(p).uuid) for h in lab.held(job) for p in h.positions}
    assert {(record.node, record.device) for record in run.devices or ()} == held


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


def test_a_job_that_ended_while_slurmdbd_was_away_gets_its_end(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", script=WORK)
    wait_for(lambda: database.run(str(job)), 30, f"job {job} is imported")
    lab.daemons["slurmdbd"].kill9()
    try:
        wait_for(lambda: lab.held(job) and lab.held(job)[0].end_s, 60, f"job {job} ends")
        wait_for(lambda: database.health().import_error, 30, "slurm-gpudbd notices")
    finally:
        lab.daemons["slurmdbd"].start()
    (run,) = recorded(database, job)
    assert run.state == "COMPLETED"
    wait_for(lambda: database.health().import_error is None, 30, "slurm-gpudbd is content again")


def test_others_see_the_occupancy_of_a_job_and_no_more(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "--time=5", "--job-name=confidential", script=WORK)
    recorded(database, job)
    for user, sees in (("alice", True), ("carol", True), ("bob", False)):
        (run,) = json.loads(lab.output(["slurm-gpu", "job", str(job), "--json"], user=user))["runs"]
        assert (run["user"], run["nGPU"], run["full"]) == ("alice", 1, sees)
        assert ("confidential" in json.dumps(run)) is sees
        assert (run["uGPUcore"] is not None) is sees


def ship(lab: Lab, record: Record, address: str, **headers: str) -> httpx.Response:
    """What slurm-gpudbd answers root at `address`, who has the site's MUNGE key."""
    config = load_config(lab.layout.site_file)
    with httpx.Client(
        base_url=config.database,
        auth=MungeAuth(config.munge_socket),
        transport=httpx.HTTPTransport(local_address=address),
        trust_env=False,
    ) as client:
        shipment = {"wire": 1, "node": record.node, "boot_id": record.boot_id, "records": [record.to_wire()]}
        return client.post("/v1/node", json=shipment, headers=headers)


def test_a_node_speaks_for_itself_and_for_jobs_that_it_had(lab: Lab, database: DatabaseClient) -> None:
    job = lab.submit("alice", "--gpus=1", "-w", "n1", "--time=5", script=WORK)
    (run,) = recorded(database, job)
    (true,) = run.devices or ()
    forged = replace(true, seq=true.seq + 1, util_hist_ms={100: 1000})
    elsewhere = ship(lab, forged, lab.nodes["n2"].address).json()
    assert elsewhere["rejected"][0]["why"].startswith("127.0.1.2 is not an address of n1")
    foreign = ship(lab, replace(forged, node="n2"), lab.nodes["n2"].address).json()
    assert foreign["rejected"] == [{"index": 0, "why": f"job {job} was never on n2, says Slurm"}]
    assert (foreign["stored"], foreign["stale"]) == (0, 0)
    (after,) = database.run(str(job))
    assert after == run


def test_a_malformed_or_unauthenticated_request_changes_nothing(lab: Lab, database: DatabaseClient) -> None:
    before = [run.to_json() for run in database.all_runs()], database.health().unmatched
    config: SiteConfig = load_config(lab.layout.site_file)
    body = json.dumps({"wire": 1, "node": "n1", "records": []})
    with httpx.Client(base_url=config.database, trust_env=False) as client:
        for headers in ({}, {"Authorization": "MUNGE x"}, {"Authorization": "Basic cm9vdDo="}):
            assert client.post("/v1/node", content=body, headers=headers).status_code == 401
            assert client.get("/v1/runs", headers=headers).status_code == 401
        for content in ("", "[", "{}", '{"wire": 1}', '{"wire": 1, "node": "n1", "records": NaN}'):
            answer = client.post("/v1/node", content=content, auth=MungeAuth(config.munge_socket))
            assert answer.status_code == 400
    assert ([run.to_json() for run in database.all_runs()], database.health().unmatched) == before


def test_no_file_that_a_node_reads_holds_a_database_password(lab: Lab) -> None:
    layout = lab.layout
    settings = layout.database_file.read_text()
    password = urlsplit(re.findall(r"url: *(\S+)", settings)[0]).password
    assert password
    assert stat.S_IMODE(layout.database_file.stat().st_mode) == 0o600
    # The database host's own: slurm-gpudbd's settings, and what made MariaDB's users.
    holders = {layout.database_file, layout.mariadb / "init.sql"}
    assert [path for path in _files(layout.root) if path not in holders and _holds(path, password)] == []
    for name in lab.nodes:
        pid = lab.daemons[f"slurm-gpud-{name}"].pid
        for part in ("environ", "cmdline", "maps"):
            assert password.encode() not in Path(f"/proc/{pid}/{part}").read_bytes()


def _files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        # MariaDB's tables hold hashes; view/ is the interpreter.
        inside = path.relative_to(root).parts[0]
        if inside not in {"view", "mariadb"} and path.is_file() and not path.is_symlink():
            yield path
    yield root / "mariadb" / "init.sql"


def _holds(path: Path, password: str) -> bool:
    return password.encode() in path.read_bytes()
