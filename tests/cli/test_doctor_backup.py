"""With a backup slurmctld, `doctor` on each host checks that both have the same script."""

import dataclasses
import os
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.slurm import job_submit
from slurm_gpu.cli.doctor.checks.slurm import peers as check
from slurm_gpu.policy.lua import peers
from slurm_gpu.slurm.client import SlurmSettings
from tests.cli.installation import Installation, levels, worst


@pytest.fixture
def hosts(installed: Installation) -> Installation:
    """Return the primary host `head` with its backup `head2`."""
    installed.conf |= {
        "SlurmctldHost[0]": "head(10.0.0.1)",
        "SlurmctldHost[1]": "head2.example.edu",
        "StateSaveLocation": str(installed.root / "shared"),
    }
    (installed.root / "shared").mkdir()
    script(installed).write_text("-- slurm-gpu 0.2.0\n")
    return installed


def script(installed: Installation) -> Path:
    return installed.root / "slurm" / "job_submit.lua"


def settings(installed: Installation) -> SlurmSettings:
    found = installed.at().settings
    return dataclasses.replace(found, slurm_user_uid=os.geteuid())


def write_report(installed: Installation, host: str, at_s: float = 1795263300.9) -> None:
    peers.write_report(settings(installed), host, script(installed), at_s)


def test_the_hosts_of_slurmctld_are_listed_in_order(hosts: Installation):
    assert peers.controllers(settings(hosts)) == ["head", "head2"]
    assert [peers.is_backup(settings(hosts), host) for host in ("head", "head2", "other")] == [
        False,
        True,
        False,
    ]
    hosts.conf |= {f"SlurmctldHost[{n}]": f"h{n}" for n in range(12)}
    assert peers.controllers(settings(hosts)) == [f"h{n}" for n in range(12)]


def test_without_a_backup_the_check_is_skipped(installed: Installation):
    assert levels(check.same_script(installed.at())) == ["skipped"]
    assert levels(check.same_script(installed.at("login"))) == ["skipped"]


@pytest.mark.parametrize(("here", "other"), [("head", "head2"), ("head2", "head")])
def test_a_host_without_a_policy_is_named(hosts: Installation, here: str, other: str):
    write_report(hosts, here)
    finding = worst(check.same_script(hosts.at(here)))
    assert finding.level.value == "fail"
    assert finding.message.startswith(
        f"no policy was applied on {other}: slurmctld there does not start without "
    )
    assert str(finding.remedy).endswith(f"; run slurm-gpu policy apply on {other}")


def test_equal_scripts_on_both_hosts_are_ok(hosts: Installation):
    script(hosts).write_text('-- slurm-gpu 0.2.0\n["snapshot"] = "/run/a"\n')
    write_report(hosts, "head")
    script(hosts).write_text('-- slurm-gpu 0.2.0\n["snapshot"] = "/run/b"\n')  # as `apply --run-dir` writes
    write_report(hosts, "head2")
    for host in ("head", "head2"):
        assert levels(check.same_script(hosts.at(host))) == ["ok"]


def test_different_scripts_are_reported(hosts: Installation):
    write_report(hosts, "head")
    script(hosts).write_text("-- slurm-gpu 0.2.0\n-- changed\n")
    write_report(hosts, "head2")
    assert worst(check.same_script(hosts.at("head2"))).message == (
        "job_submit.lua on head differs from this host's: it dates from 2026-11-21 12:15 UTC, and this "
        "host's from "
        "2026-11-21 12:15 UTC"
    )


@pytest.mark.parametrize(
    ("here", "follows"),
    [
        ("head", "; run slurm-gpu policy apply on head2"),
        ("head2", "on both hosts; run slurm-gpu policy apply on this host"),
    ],
)
def test_the_remedy_is_for_the_host_with_the_older_policy(hosts: Installation, here: str, follows: str):
    """Run doctor on the host `here`; `head` always has the newer policy."""
    texts = {"head2": "-- slurm-gpu 0.2.0\n", "head": "-- slurm-gpu 0.2.0\n-- newer\n"}
    for day, (host, text) in enumerate(texts.items()):
        script(hosts).write_text(text)
        write_report(hosts, host, 1795263300.9 + 86400 * day)
    script(hosts).write_text(texts[here])
    assert str(worst(check.same_script(hosts.at(here))).remedy).endswith(follows)


def test_a_script_changed_since_the_apply_has_the_time_of_its_file(hosts: Installation):
    write_report(hosts, "head", 1795000000.0)
    write_report(hosts, "head2", 1795263300.9)
    script(hosts).write_text("-- slurm-gpu 0.2.0\n-- rolled back\n")
    os.utime(script(hosts), (1795349700, 1795349700))
    finding = worst(check.same_script(hosts.at("head")))
    assert finding.message.endswith("from 2026-11-21 12:15 UTC, and this host's from 2026-11-22 12:15 UTC")
    assert str(finding.remedy).endswith("; run slurm-gpu policy apply on head2")


def test_reports_that_are_truncated_or_of_a_later_version_are_ignored(hosts: Installation):
    write_report(hosts, "head2")
    (file,) = (hosts.root / "shared" / "slurm-gpu").iterdir()
    for text in ("", "[]", '{"version": 2}', '{"version": 1, "host": "head2"}'):
        file.write_text(text)
        assert peers.read_reports(settings(hosts)) == {}


def test_a_shared_directory_needs_no_comparison(hosts: Installation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "shared_file_system", lambda path: "nfs4")
    finding = worst(check.same_script(hosts.at()))
    assert finding.message == f"{script(hosts)} is on nfs4, which head, head2 share"


def test_the_file_system_of_a_path_is_that_of_the_longest_mount_point(tmp_path: Path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "rootfs / ext4 rw 0 0\n"
        "filer:/slurm /etc/slurm\\040conf nfs4 rw 0 0\n"
        "tmpfs /etc/slurm\\040conf/own tmpfs rw 0 0\n"
        "dev /etc/s fuse.sshfs rw 0 0\n"
    )
    found = [
        peers.shared_file_system(Path(path), mounts)
        for path in ("/etc/slurm conf/job_submit.lua", "/etc/slurm conf/own/x", "/etc/slurm/x", "/")
    ]
    assert found == ["nfs4", None, None, None]


def test_an_old_copy_on_another_host_is_reported(hosts: Installation):
    hosts.conf["JobSubmitPlugins"] = "lua"
    copy = f"copy it from slurmctld's host, or share the directory {script(hosts).parent}"
    script(hosts).write_text("-- slurm-gpu 0.2.0\n-- newer\n")
    write_report(hosts, "head", script(hosts).stat().st_mtime + 60)
    assert levels(job_submit.script(hosts.at("login"))) == ["skipped"]
    script(hosts).write_text("-- slurm-gpu 0.2.0\n")
    finding = worst(job_submit.script(hosts.at("login")))
    assert (finding.level.value, finding.remedy) == ("warn", copy)
    assert finding.message == (
        f"{script(hosts)} differs from the file on head, so explain and quota may be wrong"
    )
    script(hosts).unlink()
    finding = worst(job_submit.script(hosts.at("login")))
    assert (finding.level.value, finding.remedy) == ("skipped", None)
    assert finding.message.endswith(f"; to use explain and quota on this host, {copy}")
