"""Read the active policy of this host, and the use that its limits count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from slurm_gpu.cli.output import remark
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.controller.queue.usage import Usage, kinds_summed_up, usage_by_kind, usage_of
from slurm_gpu.controller.snapshot import snapshot_file as snapshots
from slurm_gpu.controller.snapshot.snapshot_file import Snapshot
from slurm_gpu.controller.watcher import facts_of
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.lua.bundle import RUN_DIRECTORY
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.installed import PolicyInForce, read_policy_in_force
from slurm_gpu.slurm.queue import QueueReader
from slurm_gpu.slurm.submission import read_partitions


class PolicyAbsentError(OutsideError):
    """No job_submit.lua of slurm-gpu is next to slurm.conf on this host, so limits are unknown."""


def read_use(site: CommandSite) -> tuple[PolicyInForce, Snapshot, str, Mapping[str, Usage]]:
    """Return the active policy, the use, the source of the use, and the use by kind of job.

    The use comes from slurm-gpuctld's snapshot, or from the queue if there is no valid snapshot. The use by
    kind of job always comes from the queue, and is empty if no rule needs it. Raise PolicyAbsentError if
    this host has no active policy.
    """
    settings = site.slurm.settings()
    script = Path(settings.conf_path).parent / SCRIPT_NAME
    policy = read_policy_in_force(script)
    if policy is None:
        raise PolicyAbsentError(_why_unknown(site, script))
    now_s = site.wall()
    directory = Path(os.environ.get("SLURM_GPU_RUN_DIR") or RUN_DIRECTORY)
    # The script names its snapshot, except in earlier versions.
    file = directory / snapshots.FILE_NAME if policy.snapshot is None else policy.snapshot
    found = snapshots.read_fresh(file, now_s)
    if found is not None and (found.groups_id is None or found.groups_id != policy.groups_id):
        found = None
    if found is not None and not kinds_summed_up(policy):
        return policy, found, "snapshot", {}
    if "jobs" in settings.raw.get("PrivateData", "").split(",") and os.geteuid() != 0:
        remark("Slurm shows you only your own jobs, so the use of groups is incomplete")
    jobs = QueueReader(site.run).read()
    facts = facts_of(policy, site.slurm.nodes(), read_partitions(site.run))
    by_kind = usage_by_kind(policy, jobs, facts)
    if found is not None:
        return policy, found, "snapshot", by_kind
    usage = usage_of(jobs, policy.groups, facts)
    return policy, Snapshot(0, int(now_s), policy.groups_id, usage), "queue", by_kind


def _why_unknown(site: CommandSite, script: Path) -> str:
    """Describe what is missing, and the remedies for users and for operators."""
    if script.exists():
        missing = f"{script} is not slurm-gpu's: this host has no active policy of slurm-gpu"
    else:
        missing = f"this host has no limits: {script} does not exist"
    web = site.config.web if site.config_path.exists() else None
    page = "" if web is None else f", or see My limits on {web} (sign in with slurm-gpu web)"
    return (
        f"{missing}. Run quota on slurmctld's host{page}. Operators: run slurm-gpu policy apply on that host "
        "to activate policy.yaml; quota then also works on login nodes that share its Slurm configuration"
    )
