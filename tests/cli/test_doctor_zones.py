"""`slurm-gpu doctor` reports missing node features of zones, and jobs that wait for a zone indefinitely."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import pytest

from slurm_gpu.cli.doctor.checks.finding import Level
from slurm_gpu.cli.doctor.checks.slurm import zones
from slurm_gpu.slurm.client import QueuedJob
from slurm_gpu.slurm.commands import CommandClient
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import recorded_client

COMMENT = "slurm-gpu/1 t=abc1 z=zone1:700,zone2:0"


def write(installed: Installation, zones: str) -> None:
    installed.site_file.write_text(f"cluster: neuron\nzones: {zones}\n")


def wait_for_zones(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Put one job that waits for a zone into the queue."""
    job = dataclasses.replace(
        recorded_client().jobs()[0], job_id=7, state="PENDING", admin_comment=COMMENT, **changes
    )

    def jobs(self: CommandClient, job_ids: Iterable[int] | None = None) -> Sequence[QueuedJob]:
        return [job]

    monkeypatch.setattr(CommandClient, "jobs", jobs)


def test_without_zones_the_check_is_skipped(installed: Installation) -> None:
    assert levels(zones.zones(installed.at("node"))) == ["skipped"]


def test_zones_whose_nodes_have_their_feature_are_ok(installed: Installation) -> None:
    write(installed, '{zone1: {nodes: "n[1-2]"}, zone2: {nodes: n3, role: large}}')
    found = list(zones.zones(installed.at("node")))
    assert [finding.level for finding in found] == [Level.OK]
    assert found[0].message == "jobs can be kept in 2 of 2 zones; placement's mode is observe"


def test_a_zone_without_its_feature_is_named_with_the_line_to_write(installed: Installation) -> None:
    write(installed, '{rack7: {nodes: "n[1-2]"}, zone2: {nodes: n3}}')
    finding = worst(zones.zones(installed.at("node")))
    assert finding.level is Level.WARN
    assert finding.message == "zone rack7: n[1-2] lack the feature rack7, so no job is kept in it"
    assert finding.remedy is not None
    assert finding.remedy.startswith("add Feature=rack7 to the line NodeName=n[1-2] of slurm.conf")


def test_a_node_outside_the_zone_with_its_feature_is_named(installed: Installation) -> None:
    write(installed, "{zone1: {nodes: n1}}")
    assert worst(zones.zones(installed.at("node"))).message.startswith(
        "zone zone1: n2 outside the zone has the feature zone1 too"
    )


def test_jobs_that_wait_indefinitely_are_named_with_a_remedy(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(installed, '{zone1: {nodes: "n[1-2]"}, zone2: {nodes: n3}}')
    wait_for_zones(monkeypatch, features="(a|b)&[zone2|zone1]")
    finding = worst(zones.zones(installed.at()))
    assert finding.level is Level.WARN
    assert finding.message.startswith("1 job may wait for one zone indefinitely")
    assert finding.remedy is not None
    assert finding.remedy.endswith("scontrol update JobId=7 Features='a|b'")
    installed.process(815, "python3", "/usr/sbin/slurm-gpuctld")
    assert levels(zones.zones(installed.at())) == ["ok"]


def test_a_constraint_that_the_owner_wrote_is_ignored(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(installed, '{zone1: {nodes: "n[1-2]"}, zone2: {nodes: n3}}')
    wait_for_zones(monkeypatch, features="[zone1]")
    assert levels(zones.zones(installed.at())) == ["ok"]
