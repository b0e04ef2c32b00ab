"""Where slurmctld has a backup, `doctor` on either host says whether both decide alike."""

import dataclasses
import os
from pathlib import Path

import pytest

from slurm_gpu.cli.doctor.checks.slurm import peers as check
from slurm_gpu.policy.lua import peers
from slurm_gpu.slurm.client import SlurmSettings
from tests.cli.installation import Installation, levels, worst


@pytest.fixture
def two(installed: Installation) -> Installation:
    """The primary host `head`, and its backup `head2`."""
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


def test_the_hosts_of_slurmctld_in_their_order(two: Installation):
    assert peers.controllers(settings(two)) == ["head", "head2"]
    assert [peers.is_backup(settings(two), host) for host in ("head", "head2", "other")] == [
        False,
        True,
        False,
    ]
    two.conf |= {f"SlurmctldHost[{n}]": f"h{n}" for n in range(12)}
    assert peers.controllers(settings(two)) == [f"h{n}" for n in range(12)]


def test_where_there_is_no_backup_there_is_nothing_to_compare(installed: Installation):
    assert levels(check.same_script(installed.at())) == ["skipped"]
    assert levels(check.same_script(installed.at("login"))) == ["skipped"]


@pytest.mark.parametrize(("here", "other"), [("head", "head2"), ("head2", "head")])
def test_a_host_that_was_given_no_policy_is_named(two: Installation, here: str, other: str):
    write_report(two, here)
    finding = worst(check.same_script(two.at(here)))
    assert finding.level.value == "fail"
    assert finding.message.startswith(f"no policy was applied on {other}: without ")
    assert str(finding.remedy).endswith(f"ssh {other} slurm-gpu policy apply")


def test_two_hosts_with_the_same_script(two: Installation):
    script(two).write_text('-- slurm-gpu 0.2.0\n["snapshot"] = "/run/a"\n')
    write_report(two, "head")
    script(two).write_text('-- slurm-gpu 0.2.0\n["snapshot"] = "/run/b"\n')  # `apply --run-dir` chose that
    write_report(two, "head2")
    for host in ("head", "head2"):
        assert levels(check.same_script(two.at(host))) == ["ok"]


def test_two_hosts_with_different_scripts(two: Installation):
    write_report(two, "head")
    script(two).write_text("-- slurm-gpu 0.2.0\n-- changed\n")
    write_report(two, "head2")
    assert worst(check.same_script(two.at("head2"))).message == (
        "head has another job_submit.lua than this host, of 2026-11-21 12:15 UTC; this one is of "
        "2026-11-21 12:15 UTC"
    )


@pytest.mark.parametrize(
    ("here", "follows"),
    [("head", "; ssh head2 slurm-gpu policy apply"), ("head2", "on both hosts; slurm-gpu policy apply")],
)
def test_the_host_that_was_given_the_older_policy_is_the_one_to_follow(
    two: Installation, here: str, follows: str
):
    """`head` has the newer one, whichever of them is asked."""
    texts = {"head2": "-- slurm-gpu 0.2.0\n", "head": "-- slurm-gpu 0.2.0\n-- newer\n"}
    for day, (host, text) in enumerate(texts.items()):
        script(two).write_text(text)
        write_report(two, host, 1795263300.9 + 86400 * day)
    script(two).write_text(texts[here])
    assert str(worst(check.same_script(two.at(here))).remedy).endswith(follows)


def test_a_script_that_was_changed_since_the_apply_is_as_old_as_its_file(two: Installation):
    write_report(two, "head", 1795000000.0)
    write_report(two, "head2", 1795263300.9)
    script(two).write_text("-- slurm-gpu 0.2.0\n-- rolled back\n")
    os.utime(script(two), (1795349700, 1795349700))
    finding = worst(check.same_script(two.at("head")))
    assert finding.message.endswith("of 2026-11-21 12:15 UTC; this one is of 2026-11-22 12:15 UTC")
    assert str(finding.remedy).endswith("; ssh head2 slurm-gpu policy apply")


def test_what_a_later_version_told_or_half_of_it_counts_as_not_told(two: Installation):
    write_report(two, "head2")
    (file,) = (two.root / "shared" / "slurm-gpu").iterdir()
    for text in ("", "[]", '{"version": 2}', '{"version": 1, "host": "head2"}'):
        file.write_text(text)
        assert peers.parse_report(settings(two)) == {}


def test_a_directory_that_is_shared_needs_no_comparison(two: Installation, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "shared_file_system", lambda path: "nfs4")
    finding = worst(check.same_script(two.at()))
    assert finding.message == f"{script(two)} lies on nfs4, which head, head2 share"


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
