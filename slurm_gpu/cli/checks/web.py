"""Whether slurm-gpuweb, on whatever host, may read what its pages show."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.cells import span
from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, ok


def reads_everything(at: Surroundings) -> Iterator[Finding]:
    """slurm-gpudbd has refused no slurm-gpuweb lately."""
    with at.site.database() as database:
        health = database.health()
    for refused in health.web_refused:
        user = "" if refused.get("user") is None else f" ({refused['user']})"
        host = refused.get("address") or "slurm-gpudbd's host"
        yield fail(
            f"slurm-gpudbd refuses slurm-gpuweb, uid {refused['uid']}{user} from {host}: {refused['why']}; "
            f"last {span(health.now_s - refused['at_s'])} ago",
            f"if slurm-gpuweb runs there as that user, write {refused['write']} into slurm-gpudbd.yaml on "
            "slurm-gpudbd's host, then systemctl restart slurm-gpudbd",
        )
    if not health.web_refused:
        yield ok("slurm-gpudbd has refused no slurm-gpuweb within the last 10 minutes")
