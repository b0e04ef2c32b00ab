"""explain, quota and forecast state the same reasons why their answers may be incomplete or wrong."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.controller.queue.usage import Usage
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot, render
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.installed import read_policy_in_force
from slurm_gpu.policy.lua.peers import this_host, write_report
from slurm_gpu.slurm.client import SlurmSettings
from tests.cli.conftest import CommandLine
from tests.policy.limitstore import MemoryStore
from tests.slurm.recorded import DATA, NOW_S, recorded_client

POLICY = """\
version: 1
mode: enforce
groups: {vision: {accounts: [vision]}}
rules:
  - {id: share, for: vision, per: group, why: "Others.", limits: {gpus_total: 64}}
  - {id: week, for: vision, per: user, why: "Others.", limits: {gpu_hours: {week: 500}}}
"""
QUEUE = "this host has no current snapshot from slurm-gpuctld, so jobs were counted in Slurm's queue"
HOURS = "GPU-hours are not known on this host"
PRIVATE = "Slurm shows you only your own jobs (PrivateData), so jobs of other users were not counted"
ASK = ("--", "sbatch", "--gpus=1", "--time=10", "--wrap=true")


class Host:
    """A host with a policy, and the notes of the three commands on it."""

    def __init__(self, slurm_gpu: CommandLine, directory: Path) -> None:
        self.command, self.directory = slurm_gpu, directory
        self.script = directory / "job_submit.lua"
        self.raw = {"StateSaveLocation": str(directory)}
        self.has_slurmdbd = True
        site = slurm_gpu.site
        site.connect_slurm, site.run = lambda: self, self._run  # type: ignore[assignment,return-value]
        site.connect_limits = lambda: MemoryStore(())  # type: ignore[return-value]
        slurm_gpu.database.forecast_asked = lambda **_: "nothing learned yet"  # type: ignore[attr-defined]
        self.install(POLICY)

    def install(self, text: str) -> None:
        source = parse_yaml(text, "policy.yaml")
        policy = check_policy(source)
        facts = SiteFacts(n_gpus=16, run_directory=self.directory)
        names = resolve_names(policy, source, SystemDirectory())
        self.script.write_text(build_bundle(compile_policy(policy, names, facts)))

    def write_snapshot(self, **changes: Any) -> None:
        policy = read_policy_in_force(self.script)
        assert policy is not None
        snapshot = Snapshot(1, NOW_S, policy.groups_id, Usage({}, {}), **changes)
        (self.directory / "snapshot.txt").write_text(render(snapshot))

    def settings(self) -> SlurmSettings:
        found = recorded_client().settings()
        conf = str(self.directory / "slurm.conf")
        return dataclasses.replace(found, conf_path=conf, raw={**found.raw, **self.raw})

    def __getattr__(self, name: str) -> Any:
        return getattr(recorded_client(), name)

    def _run(self, argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
        if argv[0] == "sacctmgr":
            if not self.has_slurmdbd:
                raise SlurmError("slurmdbd: Connection refused")
            return "vision|vision|normal\n" if "user" in argv else "vision|normal\n"
        if argv[-1] == "--version":
            return "slurm-wlm 22.05.8\n"
        if argv[-1] == "partition":
            return (DATA / "partitions.txt").read_text()
        if "assoc_mgr" in argv:
            return f"UserName={getpass.getuser()}({os.getuid()}) DefAccount=vision DefWckey=\n"
        assert re.search("<[0-9a-f]{16}>", argv[-1]), argv  # squeue, whose queue is empty
        return ""

    def notes(self) -> list[list[str]]:
        """Return the notes of explain, quota and forecast, without the notes of job_submit.lua."""
        found = []
        for argv in (("explain", "--json", *ASK), ("quota", "--json"), ("forecast", "--json", *ASK)):
            assert self.command(*argv) in (0, 1), self.command.err
            notes = json.loads(self.command.out)["notes"]
            found.append([note for note in notes if not note.startswith("slurm-gpu: ")])
        return found


@pytest.fixture
def host(slurm_gpu: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.delenv("SLURM_GPU_RUN_DIR", raising=False)
    return Host(slurm_gpu, tmp_path)


def test_with_a_current_snapshot_there_are_no_notes(host: Host) -> None:
    host.write_snapshot(hours={}, period_starts={"gpu_h_week": 1})
    assert host.notes() == [[]] * 3
    host.write_snapshot()
    assert host.notes() == [[HOURS]] * 3


def test_without_a_snapshot_the_queue_is_named_as_the_source(host: Host) -> None:
    assert host.notes() == [[QUEUE, HOURS]] * 3
    for argv in (("explain", *ASK), ("quota",), ("forecast", *ASK)):
        host.command(*argv)
        assert f"note: {QUEUE}\nnote: {HOURS}\n" in host.command.err
    host.install(POLICY.partition("rules:")[0])
    assert host.notes() == [[]] * 3


@pytest.mark.parametrize(("uid", "hidden"), [(4321, [PRIVATE]), (0, [])])
def test_hidden_jobs_of_other_users_are_named(
    host: Host, monkeypatch: pytest.MonkeyPatch, uid: int, hidden: list[str]
) -> None:
    host.raw["PrivateData"] = "accounts,jobs"
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert host.notes() == [[QUEUE, HOURS, *hidden]] * 3
    host.install(POLICY.replace("per: group", "per: user"))  # jobs of other users do not count
    assert host.notes() == [[QUEUE, HOURS]] * 3
    host.write_snapshot(hours={}, period_starts={"gpu_h_week": 1})
    assert host.notes() == [[]] * 3


def test_a_copy_of_the_script_that_is_older_than_the_controllers_is_named(host: Host) -> None:
    host.write_snapshot(hours={}, period_starts={"gpu_h_week": 1})
    applied = host.directory / "applied.lua"
    applied.write_text(host.script.read_text() + "-- later\n")
    changed_s = host.script.stat().st_mtime
    settings = dataclasses.replace(host.settings(), slurm_user_uid=os.geteuid())
    write_report(settings, "head", applied, changed_s + 60)
    note = f"{host.script} differs from the file on head, so Slurm may decide differently"
    assert host.notes() == [[note]] * 3
    for name, script, at_s in (
        ("head", host.script, changed_s + 60),  # both hosts have the same script
        ("head", applied, changed_s - 60),  # the script changed here later, as after a rollback
        (this_host(), applied, changed_s + 60),
    ):
        (host.directory / "slurm-gpu" / "policy-head.json").unlink(missing_ok=True)
        write_report(settings, name, script, at_s)
        assert host.notes() == [[]] * 3
    (host.directory / "slurm-gpu").rename(host.directory / "unreadable")
    (host.directory / "slurm-gpu").touch()
    assert host.notes() == [[]] * 3


def test_while_slurmdbd_is_down_the_assumption_is_named(host: Host) -> None:
    host.write_snapshot(hours={}, period_starts={"gpu_h_week": 1})
    host.has_slurmdbd = False
    me = getpass.getuser()
    job = f"the job was checked for {me} with account vision, and with QOS normal unless --qos names a QOS"
    limits = f"limits of accounts and QOS that {me} may not use are also listed"
    assert host.notes() == [[f"slurmdbd does not answer, so {text}"] for text in (job, limits, job)]


def test_a_job_that_begins_later_is_not_forecast_as_if_it_could_start_now(host: Host) -> None:
    host.write_snapshot(hours={}, period_starts={"gpu_h_week": 1})
    for begin, notes in (("uts4102444800", 1), (f"uts{NOW_S}", 0)):
        host.command("forecast", "--json", "--", "sbatch", f"--begin={begin}", "--wrap=true")
        found = [note for note in json.loads(host.command.out)["notes"] if "but --begin is 2" in note]
        assert len(found) == notes
