"""Read the active policy of this host and the usage that its limits count, with their caveats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.queue.usage import Usage, selecting_rules, usage_by_rule, usage_of
from slurm_gpu.controller.snapshot import snapshot_file as snapshots
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.controller.watcher import facts_of
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.hour_sums import named
from slurm_gpu.policy.lua.bundle import STUB_MARK
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import PolicyInForce, read_policy_in_force
from slurm_gpu.policy.lua.peers import newer_elsewhere, this_host
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.slurm.client import SlurmSettings, has_slurmdbd
from slurm_gpu.slurm.queue import QueueReader
from slurm_gpu.slurm.submission import read_partitions


class PolicyAbsentError(OutsideError):
    """No job_submit.lua of slurm-gpu is next to slurm.conf on this host, so limits are unknown."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """The policy in job_submit.lua on this host, and the current snapshot from slurm-gpuctld."""

    settings: SlurmSettings
    script: Path
    bundle: str
    policy: PolicyInForce
    # None if all usage is counted in Slurm's queue.
    snapshot: Snapshot | None

    def caveats(self, uid: int, assumed: str | None) -> Iterator[str]:
        """Yield the reasons why an answer about a user may be incomplete or differ from Slurm's.

        `assumed` is the assumption that replaces the user's data in slurmdbd; None if slurmdbd answers.
        """
        rules, snapshot, lends = self.policy.rules, self.snapshot, self.policy.lending is not None
        if assumed is not None and has_slurmdbd(self.settings):
            yield f"slurmdbd does not answer, so {assumed}"
        newer = newer_elsewhere(self.settings, this_host(), self.script)
        if newer is not None:
            yield f"{self.script} differs from the file on {newer.host}, so Slurm may decide differently"
        if snapshot is None and (lends or any(rule.per != "job" for rule in rules)):
            missing = "this host has no current snapshot from slurm-gpuctld"
            yield f"{missing}, so jobs were counted in Slurm's queue"
        if self.policy.hour_sums and (snapshot is None or snapshot.hours is None):
            yield f"{named(self.policy.hour_sums)} are not known on this host"
        counts_others = lends or any(rule.per in ("account", "group") for rule in rules) or uid != os.getuid()
        counts_queue = snapshot is None or selecting_rules(self.policy)
        if counts_queue and counts_others and _hides_jobs(self.settings):
            yield "Slurm shows you only your own jobs (PrivateData), so jobs of other users were not counted"


def read_active(site: CommandSite) -> ActivePolicy:
    """Return the active policy; raise PolicyAbsentError if this host has none."""
    settings = site.slurm.settings()
    script = Path(settings.conf_path).parent / SCRIPT_NAME
    policy = read_policy_in_force(script)
    bundle = script.read_text(encoding="utf-8", errors="replace") if script.exists() else ""
    if bundle.startswith(STUB_MARK):
        policy = PolicyInForce()
    if policy is None:
        raise PolicyAbsentError(_why_unknown(site, script))
    directory = Path(os.environ.get("SLURM_GPU_RUN_DIR") or RUN_DIRECTORY)
    # Scripts of earlier versions do not name their snapshot.
    file = directory / snapshots.FILE_NAME if policy.snapshot is None else policy.snapshot
    found = snapshots.read_fresh(file, site.wall())
    if found is not None and (found.groups_id is None or found.groups_id != policy.groups_id):
        found = None
    return ActivePolicy(settings, script, bundle, policy, found)


def read_use(site: CommandSite, active: ActivePolicy) -> tuple[Snapshot, Mapping[str, Usage]]:
    """Return the usage, and the usage by rule for rules that count only some jobs of their groups.

    The usage comes from the snapshot or, without one, from the queue; the usage by rule always comes from the
    queue.
    """
    policy, found = active.policy, active.snapshot
    if found is not None and not selecting_rules(policy):
        return found, {}
    jobs = QueueReader(site.run).read()
    facts = facts_of(policy, site.slurm.nodes(), read_partitions(site.run))
    by_rule = usage_by_rule(policy, jobs, facts)
    if found is None:
        found = Snapshot(0, int(site.wall()), policy.groups_id, usage_of(jobs, policy.groups, facts))
    return found, by_rule


def _hides_jobs(settings: SlurmSettings) -> bool:
    """Return whether Slurm hides the jobs of other users from the caller."""
    hidden = settings.raw.get("PrivateData", "").split(",")
    return "jobs" in hidden and os.geteuid() not in (0, settings.slurm_user_uid)


def _why_unknown(site: CommandSite, script: Path) -> str:
    """Describe what is missing, and where the user can see the limits instead."""
    missing = "was not written by slurm-gpu" if script.exists() else "does not exist"
    web = site.config.web if site.config_path.exists() else None
    page = "" if web is None else f"; see My limits on {web} (sign in with slurm-gpu web)"
    return f"the policy is not known on this host, because {script} {missing}{page}"
