"""Test a backup slurmctld: both hosts need the policy and a snapshot, and doctor reports missing ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import services
from lab.cluster import Lab
from lab.configuration import slurm_version
from lab.polling import wait_for
from slurm_gpu.client.database_client import DatabaseClient
from slurm_gpu.config.site import load_config
from slurm_gpu.controller.placement.table import read
from tests.lab.conftest import LabWith

pytestmark = pytest.mark.long

NAME, ADDRESS = "backup", "127.0.0.2"
TWO_HOSTS = (
    f"SlurmctldHost={NAME}({ADDRESS})",
    "CommunicationParameters=NoCtldInAddrAny",  # both hosts listen on one port, each on its own address
    "SlurmctldTimeout=5",
)


class Backup:
    """A second host for slurmctld, with its own host name, /etc/slurm and /run."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.root = lab, lab.layout.root / NAME
        self._processes: list[subprocess.Popen[bytes]] = []
        etc, run = self.root / "etc", self.root / "run"
        shutil.copytree(lab.layout.etc, etc)
        (etc / "job_submit.lua").unlink()
        run.mkdir()
        shutil.chown(run, "slurm", "slurm")
        shutil.chown(self.root, "slurm", "slurm")
        # Each slurmctld takes localhost for itself.
        conf = etc / "slurm.conf"
        text = conf.read_text().replace("SlurmctldHost=localhost", f"SlurmctldHost={os.uname().nodename}")
        for ending in ("pid", "log"):
            text = text.replace(f"slurmctld.{ending}", f"slurmctld-{NAME}.{ending}")
        conf.write_text(text)
        hosts = self.root / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n")
        own = {etc: lab.layout.etc, run: lab.layout.controller_run, hosts: "/etc/hosts"}
        mounts = " && ".join(f"mount --bind {source} {target}" for source, target in own.items())
        script = f"hostname {NAME} && {mounts} && echo ready && exec sleep infinity"
        holder = subprocess.Popen(
            ["unshare", "--uts", "--mount", "sh", "-c", script],
            env=services.tagged_environment(lab.layout),
            stdout=subprocess.PIPE,
        )
        self._processes.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        self._enter = ["nsenter", f"--target={holder.pid}", "--uts", "--mount"]

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the second host."""
        return self.lab.run_as("root", [*self._enter, *argv], check=check)

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """Start a daemon as SlurmUser on the second host."""
        who = ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups"]
        with (self.root / "out").open("ab") as out:
            process = subprocess.Popen(
                [*self._enter, *who, *argv],
                env=services.tagged_environment(self.lab.layout),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._processes.append(process)
        return process

    def said(self) -> str:
        return (self.root / "out").read_text(errors="replace")

    def end(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.root)


@pytest.fixture
def backup(lab_with: LabWith) -> Iterator[Backup]:
    lab = lab_with(nodes=1, extra_slurm_conf=TWO_HOSTS)
    found = Backup(lab)
    yield found
    found.end()
    lab.daemons["slurmctld"].start()


def _findings(shown: subprocess.CompletedProcess[str], name: str) -> list[tuple[str, str]]:
    """Return the level and message of each finding of a check."""
    checks = json.loads(shown.stdout)["checks"]
    return [(check["level"], check["message"]) for check in checks if check["check"] == name]


def _check(shown: subprocess.CompletedProcess[str], name: str) -> tuple[str, str]:
    """Return the level and message of the only finding of a check."""
    (found,) = _findings(shown, name)
    return found


def _doctor() -> list[str]:
    return ["slurm-gpu", "doctor", "--json"]


def _refused(lab: Lab) -> bool:
    """Return whether the policy is called and refuses."""
    argv = ["sbatch", "--test-only", "--gpus=1", "--time=3-00:00:00", "--wrap=true"]
    return "grad-days" in lab.run_as("alice", argv, check=False).stderr


def test_the_backup_has_the_policy_and_takes_over(backup: Backup) -> None:
    lab, policy = backup.lab, str(backup.lab.layout.policy_file)
    script = lab.layout.etc / "job_submit.lua"
    assert _check(lab.run_as("root", _doctor(), check=False), "backup") == (
        "fail",
        f"no policy was applied on {NAME}: slurmctld there does not start without {script}",
    )
    assert backup.start("slurmctld", "-D").wait(30) != 0
    assert "failed to initialize job_submit plugin" in backup.said()

    applied = backup.run("slurm-gpu", "policy", "apply", policy)
    assert "is active" in applied.stdout
    assert "warning: " not in applied.stderr.replace("warning: Slurm's own limits", "")
    for shown in (lab.run_as("root", _doctor(), check=False), backup.run(*_doctor(), check=False)):
        assert _check(shown, "backup")[0] == "ok"
        assert _check(shown, "applied")[0] == "ok"

    backup.start("slurmctld", "-D", "-i")  # without -i, 26.05 does not take over from a killed slurmctld
    watcher = [str(lab.layout.bin / "slurm-gpuctld"), f"--run-dir={lab.layout.controller_run}"]
    backup.start(*watcher, f"--config={lab.layout.site_file}", "--foreground")
    snapshot = backup.root / "run" / "snapshot.txt"
    wait_for(lambda: f"{NAME} is UP" in _ping(lab), 30, "the backup answers", backup.said, 0.2)
    wait_for(snapshot.exists, 30, "the backup has a snapshot of its own", backup.said, 0.2)

    lab.daemons["slurmctld"].kill9()
    wait_for(lambda: _refused(lab), 60, "the backup asks the policy", backup.said, 0.5)
    assert _check(backup.run(*_doctor(), check=False), "snapshot")[0] == "ok"
    lab.daemons["slurmctld"].start()
    wait_for(lambda: _refused(lab), 60, "the first asks the policy again", backup.said, 0.5)


def test_a_policy_applied_on_only_one_host_is_reported_on_both(backup: Backup, tmp_path: Path) -> None:
    lab = backup.lab
    backup.run("slurm-gpu", "policy", "apply", str(lab.layout.policy_file))
    other = tmp_path / "policy.yaml"
    other.write_text(lab.layout.policy_file.read_text().replace("jobs_total: 10", "jobs_total: 11"))
    try:
        shown = lab.run_as("root", ["slurm-gpu", "policy", "apply", str(other)])
        assert f"run `slurm-gpu policy apply` on {NAME} with the same policy.yaml" in shown.stderr
        for shown in (lab.run_as("root", _doctor(), check=False), backup.run(*_doctor(), check=False)):
            level, message = _check(shown, "backup")
            assert level == "fail"
            assert "differs from this host's" in message
    finally:
        lab.output(["slurm-gpu", "policy", "apply", str(lab.layout.policy_file)])
    assert _check(lab.run_as("root", _doctor(), check=False), "backup")[0] == "ok"


def test_weights_of_nodes_continue_during_failover_and_are_restored_at_the_end(backup: Backup) -> None:
    lab = backup.lab
    backup.run("slurm-gpu", "policy", "apply", str(lab.layout.policy_file))
    before = lab.layout.site_file.read_text()
    for etc in (lab.layout.etc, backup.root / "etc"):
        (etc / lab.layout.site_file.name).write_text(before + "placement: {mode: enforce}\n")
    first = lab.daemons["slurm-gpuctld"]
    watcher = [str(lab.layout.bin / "slurm-gpuctld"), f"--run-dir={lab.layout.controller_run}"]
    try:
        backup.start("slurmctld", "-D", "-i")
        wait_for(lambda: f"{NAME} is UP" in _ping(lab), 30, "the backup answers", backup.said, 0.2)
        second = backup.start(*watcher, f"--config={lab.layout.site_file}", "--foreground")
        first.restart()
        wait_for(lambda: _weight(lab) == WHOLE, 60, "the first sets weights", first.log_tail, 0.5)
        assert _check(lab.run_as("root", _doctor(), check=False), "weights")[0] == "ok"

        lab.daemons["slurmctld"].kill9()
        first.kill9()
        wait_for(
            lambda: _taken_over(backup) or _is_rejected(lab), 60, "the backup sets them", backup.said, 0.5
        )
        if _is_rejected(lab) and slurm_version() == (24, 11):
            pytest.xfail("slurmctld 24.11 may reject a node with shards that registers after a takeover")
        assert _check(backup.run(*_doctor(), check=False), "weights")[0] == "ok"
        assert _weight(lab) == WHOLE

        lab.daemons["slurmctld"].start()
        first.start()
        wait_for(lambda: _weight(lab) == WHOLE, 60, "the primary sets them again", first.log_tail, 0.5)
        wait_for(lambda: not _taken_over(backup), 60, "the second has noticed", backup.said, 0.5)
        second.terminate()  # an inactive slurm-gpuctld removes nothing
        second.wait(30)
        assert _weight(lab) == WHOLE
        first.stop()
        assert _weight(lab) == OWN
    finally:
        lab.layout.site_file.write_text(before)
        first.restart()
    assert _check(lab.run_as("root", _doctor(), check=False), "weights")[0] == "ok"


def test_reservations_continue_when_the_backup_takes_over(backup: Backup) -> None:
    lab = backup.lab
    backup.run("slurm-gpu", "policy", "apply", str(lab.layout.policy_file))
    before = lab.layout.site_file.read_text()
    for etc in (lab.layout.etc, backup.root / "etc"):
        (etc / lab.layout.site_file.name).write_text(before + "placement: {reservations: {}}\n")
    first = lab.daemons["slurm-gpuctld"]
    watcher = [str(lab.layout.bin / "slurm-gpuctld"), f"--run-dir={lab.layout.controller_run}"]
    lab.daemons["slurm-gpudbd"].restart()
    database = DatabaseClient(load_config(lab.layout.site_file))
    start_s = int(time.time()) + 3600

    def promise(later_s: int) -> int:
        number = database.request_reservation(
            user="alice", account="vision", partition="gpu", gpus=4, n_nodes=1, duration_s=300, why="paper"
        ).id
        at_s = start_s + later_s
        database.decide_reservation(number, "approve", start_s=at_s, end_s=at_s + 300, nodes="n1")
        return number

    def ours() -> set[str]:
        shown = lab.run_as("root", ["scontrol", "-o", "show", "reservation"], check=False).stdout
        return {word.partition("=")[2] for word in shown.split() if word.startswith("ReservationName=")}

    try:
        backup.start("slurmctld", "-D", "-i")
        wait_for(lambda: f"{NAME} is UP" in _ping(lab), 30, "the backup answers", backup.said, 0.2)
        backup.start(*watcher, f"--config={lab.layout.site_file}", "--foreground")
        first.restart()
        kept, cancelled = promise(0), promise(1000)
        wait_for(lambda: ours() == {f"sg_{kept}", f"sg_{cancelled}"}, 60, "both made", first.log_tail, 0.5)

        lab.daemons["slurmctld"].kill9()
        first.kill9()
        database.decide_reservation(cancelled, "cancel")
        later = promise(2000)
        wait_for(
            lambda: ours() == {f"sg_{kept}", f"sg_{later}"}, 90, "the backup continues", backup.said, 0.5
        )
        # Slurm 24.11 drains a node with shards when it registers after a takeover.
        found = _findings(backup.run(*_doctor(), check=False), "reservations")
        assert all(level == "ok" or "out of service" in message for level, message in found), found
        for number in (kept, later):
            database.decide_reservation(number, "cancel")
        wait_for(lambda: not ours(), 60, "the second takes them away", backup.said, 0.5)
    finally:
        database.close()
        lab.daemons["slurmctld"].start()
        lab.layout.site_file.write_text(before)
        lab.daemons["slurm-gpudbd"].restart()
        first.restart()


OWN, WHOLE = 1, 17
"""The weights of an idle node with four GPUs: the site's and slurm-gpuctld's."""


def _weight(lab: Lab) -> int | None:
    """Return the weight of the only node, None while no slurmctld answers."""
    shown = lab.run_as("root", ["sinfo", "-hN", "-o", "%w"], check=False).stdout.split()
    return int(shown[0]) if shown else None


def _taken_over(backup: Backup) -> bool:
    """Return whether slurm-gpuctld on the second host is active and has set the weights."""
    table = read(backup.root / "run" / "placement.json")
    return table is not None and table.in_charge and [line.weight for line in table.nodes] == [WHOLE]


def _is_rejected(lab: Lab) -> bool:
    """Return whether slurmctld has rejected the registration of the only node."""
    return "INVALID_REG" in lab.run_as("root", ["scontrol", "show", "nodes"], check=False).stdout


def _ping(lab: Lab) -> str:
    return lab.run_as("root", ["scontrol", "ping"], check=False).stdout
