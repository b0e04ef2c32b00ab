"""Load a policy with facts about the cluster, and define the directories of `policy apply`."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from slurm_gpu.cli.options import run_directory_option
from slurm_gpu.cli.output import remark
from slurm_gpu.cli.policy.file import PATH, existing_policy, timezone
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.config.yaml_source import YamlSource
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.journal import ApplyJournal
from slurm_gpu.policy.language.check import load_policy
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import ResolvedNames, SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, compile_policy
from slurm_gpu.policy.lua.in_force import InForce, compare_installed
from slurm_gpu.policy.lua.install import SCRIPT_NAME, STATE_DIRECTORY
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.policy.native.difference import Owned
from slurm_gpu.policy.native.plan import NativePlan, plan_native
from slurm_gpu.slurm.client import SlurmSettings
from slurm_gpu.slurm.submission import read_partitions

state_option = click.option(
    "--state-dir",
    type=PATH,
    metavar="DIR",
    default=STATE_DIRECTORY,
    show_default=True,
    envvar="SLURM_GPU_POLICY_STATE",
    help="Directory of replaced scripts and old limits.",
)
run_option = run_directory_option("Directory of decisions.log.")


@dataclass(frozen=True)
class LoadedPolicy:
    """A checked policy, with the facts about the cluster that the policy needs."""

    path: Path
    policy: Policy
    source: YamlSource
    names: ResolvedNames
    settings: SlurmSettings
    facts: SiteFacts
    directory: SystemDirectory

    @classmethod
    def read(cls, site: CommandSite, file: Path | None, run_dir: Path = RUN_DIRECTORY) -> LoadedPolicy:
        """Load FILE, or policy.yaml next to the site file; raise InvalidFileError with all errors.

        `run_dir` is the directory of the decision log; comparisons do not need it.
        """
        path = existing_policy(site, file)
        settings = site.slurm.settings()
        policy, source = load_policy(path)
        directory = site.directory()
        names = resolve_names(policy, source, directory)
        if names.unknown:
            raise InvalidFileError(names.unknown)
        facts = SiteFacts.of(settings, site.slurm.nodes(), run_dir.absolute(), timezone(site))
        return cls(path, policy, source, names, settings, facts, directory)

    @property
    def script(self) -> Path:
        """Return the path of the job_submit.lua that slurmctld runs."""
        return Path(self.settings.conf_path).parent / SCRIPT_NAME

    def compiled(self) -> dict[str, Plain]:
        """Return the compiled policy, which the script contains as data."""
        return compile_policy(self.policy, self.names, self.facts)

    def native(self, site: CommandSite, owned: Iterable[Owned]) -> NativePlan:
        """Plan the changes to limits in slurmdbd; raise SlurmError if a command of Slurm fails."""
        today = dt.datetime.fromtimestamp(site.wall(), ZoneInfo(self.facts.timezone)).date()
        return plan_native(
            self.policy,
            self.names,
            self.settings,
            site.limits,
            owned,
            site.slurm.jobs,
            lambda: {one.name: one.qos for one in read_partitions(site.run)},
            today,
            self.directory.uid,
            self.facts.n_gpus,
        )

    def in_force(self) -> InForce:
        """Return how the installed script compares with the policy."""
        return compare_installed(self.script, self.policy, self.source, self.facts, self.directory)


def owned_by_policy(journal: ApplyJournal, cluster: str) -> tuple[Owned, ...]:
    """Return the limits in slurmdbd that the policy set; none if the caller may not read the journal."""
    if journal.directory.exists() and not os.access(journal.directory, os.R_OK | os.X_OK):
        remark(f"warning: {journal.directory} is readable only by SlurmUser, so earlier limits are unknown")
        return ()
    return journal.owned(cluster)
