"""Simulate a host of slurmctld on which `slurm-gpu policy` applies a policy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import QueuedJob, SlurmNode, SlurmSettings

from .limitstore import MemoryStore, account, qos, user

POLICY = """\
version: 1
mode: enforce
manages: {accounts: [vision]}
groups: {vision: {accounts: [vision]}}
rules:
  - {id: share, for: vision, per: user, why: "Four each.", limits: {gpus_total: 4}}
  - {id: days, for: vision, per: job, why: "Turns.", limits: {walltime: 1d}}
"""


class Cluster:
    """A host of slurmctld that also acts as SlurmClient, with an empty queue and a slurmdbd in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = MemoryStore(
            (account("vision"), user("alice", "vision"), user("bob", "vision")), (qos("normal"),)
        )
        self.raw = {
            "JobSubmitPlugins": "lua",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageEnforce": "associations,limits,qos",
        }
        self.queue: list[QueuedJob] = []
        self.is_down = False
        self.script = root / "job_submit.lua"
        (root / "slurm-gpu.yaml").write_text("cluster: c\n")
        self.write()

    def write(self, old: str = "", new: str = "") -> None:
        (self.root / "policy.yaml").write_text(POLICY.replace(old, new) if old else POLICY)

    def write_owners(self) -> None:
        owners = "owners: {vision: {gpus: 4, lend_in: sg-loans, return_within: 10m}}\nrules:"
        lending = POLICY.replace("rules:", owners)
        managed = lending.replace("{accounts: [vision]}\n", "{qos: [sg-*], accounts: [vision]}\n", 1)
        (self.root / "policy.yaml").write_text(managed)

    def settings(self) -> SlurmSettings:
        return SlurmSettings(
            cluster="c",
            version="22.05.8",
            slurm_user="slurm",
            slurm_user_uid=os.getuid(),
            conf_path=str(self.root / "slurm.conf"),
            raw=self.raw,
        )

    def nodes(self) -> list[SlurmNode]:
        return []

    def jobs(self, job_ids: Any = None) -> list[QueuedJob]:
        if self.is_down:
            raise SlurmError("slurmctld is down")
        return self.queue

    def accounting(self, since_s: int, until_s: int | None = None, job_ids: Any = None) -> Any:
        raise AssertionError("these commands do not read Slurm's accounting")

    def run(self, command: str, *argv: str) -> int:
        where = ["--state-dir", str(self.root / "state"), "--run-dir", str(self.root / "run")]
        return self.run_bare(command, *where, *argv)

    def run_bare(self, *argv: str) -> int:
        site = CommandSite(
            config_path=self.root / "slurm-gpu.yaml",
            connect_slurm=lambda: self,
            connect_limits=lambda: self.store,
        )
        return main(["policy", *argv], site)
