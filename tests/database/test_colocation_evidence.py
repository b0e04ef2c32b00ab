"""slurm-gpuctld reads finished runs from slurm-gpudbd to learn profiles of jobs."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from slurm_gpu.client.connector import DatabaseConnector
from slurm_gpu.controller.colocation.evidence import DatabaseEvidence
from slurm_gpu.database.storage.schema import metadata
from slurm_gpu.wire import Timeline
from slurm_gpu.wire.timeline import level
from tests.database.running_server import Running
from tests.database.samples import T0, gpu, host, record, row
from tests.database.test_run_detail import account, ship


@pytest.fixture
def site(server: Running) -> Running:
    """Return the server with empty tables."""
    with server.database.engine.begin() as connection:
        for table in metadata.sorted_tables:
            connection.execute(delete(table))
    return server


def test_a_run_has_its_time_its_use_and_how_little_it_did_for_a_while(site: Running) -> None:
    course = Timeline(width_s=1, start_s=T0, series={"util": bytes([level(0)] * 30 + [level(0.6)] * 70)})
    one = {"first_s": T0, "last_s": T0 + 100, "node": "here"}
    ship(
        site,
        records=[record(**one, timeline=course, util_hist_ms={0: 30_000, 60: 70_000})],
        hosts=[host(**one)],
        devices=[gpu(node="here")],
    )
    account(site, row(nodes="here", end_s=T0 + 100, elapsed_s=100))
    ran = DatabaseEvidence(DatabaseConnector(site.config)).ran(1, T0)
    assert ran is not None
    assert (ran.allocated_s, ran.memory_frac, ran.util_frac) == (100, 0.25, pytest.approx(0.42))
    assert ran.idlest == pytest.approx((0, 0.15, 0.375))
    assert DatabaseEvidence(DatabaseConnector(site.config)).ran(1, T0 + 60) is None
    assert DatabaseEvidence(DatabaseConnector(site.config)).ran(2, T0) is None


def test_idle_times_are_unknown_for_a_run_without_a_timeline(site: Running) -> None:
    ship(site, records=[record(node="here")], hosts=[host(node="here")], devices=[gpu(node="here")])
    account(site)
    ran = DatabaseEvidence(DatabaseConnector(site.config)).ran(1, T0)
    assert ran is not None
    assert (ran.util_frac, ran.idlest) == (pytest.approx(0.4), ())
