"""`slurm-gpu doctor` checks that slurm-gpud on this host runs, reads events and sends records."""

import dataclasses
import json
import os
from types import SimpleNamespace

import pytest

from slurm_gpu.cli.doctor.checks.daemons import node
from slurm_gpu.cli.doctor.checks.files import applications
from slurm_gpu.cli.doctor.checks.finding import Level
from tests.cli.installation import Installation, levels, worst
from tests.slurm.recorded import NOW_S


def test_invalid_application_rules_are_reported(installed: Installation):
    assert levels(applications.rules(installed.at())) == ["ok"]
    own = installed.site_file.parent / "applications.yaml"
    own.write_text("version: 1\napplications:\n  App: {any: [{exec: app}]}\n")
    finding = worst(applications.rules(installed.at()))
    assert f"{own}:3:16: 'exec' is not a setting" in finding.message


def test_a_missing_slurm_gpud_is_reported(installed: Installation):
    assert levels(node.alive(installed.at())) == ["fail"]
    installed.process(4711, "/usr/bin/python3", "/usr/sbin/slurm-gpud")
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(at.site.slurm.nodes()[0], name="n1", address="10.0.0.1")]
    assert levels(node.alive(at)) == ["ok"]


@pytest.mark.parametrize(
    "place", [{"host": "head.cluster"}, {"address": "head.cluster"}, {"host": "head", "address": "10.0.0.1"}]
)
def test_a_slurm_gpud_with_another_node_name_is_reported(installed: Installation, place: dict[str, str]):
    at = installed.at("head")
    node_of_slurm = dataclasses.replace(
        at.site.slurm.nodes()[0], name="gpu1", **({"address": "10.0.0.1"} | place)
    )
    at.nodes = [node_of_slurm]
    assert at.gpu_nodes_here == ["gpu1"]
    installed.process(4711, "/usr/bin/python3", "/usr/sbin/slurm-gpud")
    finding = worst(node.alive(at))
    assert finding.message.startswith("slurm-gpud reports as node head, but Slurm calls this host gpu1")
    assert "--node gpu1" in str(finding.remedy)
    installed.process(4711, "/usr/bin/python3", "/usr/sbin/slurm-gpud", "--node", "gpu1")
    assert levels(node.alive(at)) == ["ok"]


def test_on_a_host_with_several_nodes_one_without_slurm_gpud_is_named(installed: Installation):
    for number, name in enumerate(("n1", "n2"), 4711):
        installed.process(number, "python3", "/usr/sbin/slurm-gpud", f"--node={name}")
    finding = worst(node.alive(installed.at()))
    assert (finding.level, finding.message) == (
        Level.FAIL,
        "slurm-gpud is not running for n3, which this host simulates",
    )
    installed.process(4712, "python3", "slurm-gpud", "--node", "n3")
    assert worst(node.alive(installed.at())).message.startswith("slurm-gpud is not running for n2")


def test_a_slurm_gpud_in_a_container_does_not_count(installed: Installation):
    process = installed.process(4711, "/usr/bin/python3", "/usr/sbin/slurm-gpud")
    (process / "status").write_text("Name:\tslurm-gpud\nNSpid:\t4711\t7\n")
    at = installed.at("n1")
    at.nodes = [dataclasses.replace(at.site.slurm.nodes()[0], name="n1", address="10.0.0.1")]
    assert levels(node.alive(at)) == ["fail"]
    (process / "status").write_text("Name:\tslurm-gpud\nNSpid:\t4711\n")
    assert levels(node.alive(at)) == ["ok"]


def test_directories_come_from_the_command_line_of_slurm_gpud(installed: Installation):
    installed.process(4711, "python3", "slurm-gpud", "--run-dir=/a", "--state-dir", "/b")
    assert "/a/jobs" in worst(node.hook_directory(installed.at())).message
    assert "/b/spool" in worst(node.spool(installed.at())).message


def test_a_host_without_gpus_needs_no_slurm_gpud(installed: Installation):
    at = installed.at()
    at.nodes = [dataclasses.replace(at.site.slurm.nodes()[0], name="far", address="10.0.0.7")]
    assert levels(node.alive(at)) == levels(node.hook_directory(at)) == ["skipped"]
    assert levels(applications.rules(at)) == ["skipped"]


def test_unread_events_are_reported(installed: Installation):
    assert levels(node.hook_directory(installed.at())) == ["ok"]
    event = installed.root / "run" / "jobs" / "1-7-prolog"
    event.write_text("EVENT=prolog\n")
    os.utime(event, (NOW_S - 600, NOW_S - 600))
    assert "1 event waiting" in worst(node.hook_directory(installed.at())).message
    os.utime(event, (NOW_S - 1, NOW_S - 1))
    assert levels(node.hook_directory(installed.at())) == ["ok"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the directory must belong to root")
def test_a_directory_of_events_that_others_can_enter_is_reported(installed: Installation):
    (installed.root / "run" / "jobs").chmod(0o755)
    assert worst(node.hook_directory(installed.at())).remedy.endswith(f"chmod 700 {installed.root}/run/jobs")


def test_unsent_records_are_reported(installed: Installation):
    assert levels(node.spool(installed.at())) == ["skipped"]
    log = installed.root / "state" / "spool" / "log"

    def write(*changes: tuple[str, object]) -> None:
        with log.open("a") as file:
            file.writelines(
                f"00000000 {json.dumps({'key': key, 'value': value})}\n" for key, value in changes
            )

    write(("allocation/a", {}), ("record/a/GPU-1", {"final": False, "seq": 3}))
    assert levels(node.spool(installed.at())) == ["ok"]
    just_now, before = NOW_S - 10, NOW_S - 90
    ended = {"final": True, "seq": 4}
    write(("record/a/GPU-1", {**ended, "last_s": just_now}), ("shipped/record/a/GPU-1", 3))
    assert levels(node.spool(installed.at())) == ["ok"]  # the final record is still being sent
    write(("record/a/GPU-1", {**ended, "last_s": before}))
    assert worst(node.spool(installed.at())).message.endswith(" has 1 final record to send")
    write(("shipped/record/a/GPU-1", 4))
    assert levels(node.spool(installed.at())) == ["ok"]
    write(("record/b/GPU-1", {**ended, "last_s": before}), ("record/b/GPU-1", None))
    with log.open("a") as file:
        file.write("1234")  # slurm-gpud is just writing this line
    assert levels(node.spool(installed.at())) == ["ok"]
    rejected = installed.root / "state" / "spool" / "rejected"
    rejected.mkdir()
    (rejected / "x.json").write_text("{}")
    assert levels(node.spool(installed.at())) == ["warn", "ok"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"f_bavail": 4095}, "is full: 15 MiB and 100 files are left"),
        ({"f_favail": 0}, "is full: 16 MiB and 0 files are left"),
        ({"f_favail": 0, "f_files": 0}, None),  # Btrfs has no fixed number of files
        ({"f_flag": os.ST_RDONLY}, "is mounted read-only"),
    ],
)
def test_a_full_or_read_only_disk_is_reported(
    installed: Installation, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], message: str | None
):
    disk = {"f_bavail": 4096, "f_frsize": 4096, "f_favail": 100, "f_files": 1000, "f_flag": 0} | changes
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**disk))
    (installed.root / "state" / "spool" / "log").write_text("")
    for check, place in ((node.spool, "state/spool"), (node.hook_directory, "run/jobs")):
        found = [finding for finding in check(installed.at()) if finding.level is Level.FAIL]
        messages = [finding.message for finding in found]
        assert messages == ([] if message is None else [f"{installed.root / place} {message}"])
