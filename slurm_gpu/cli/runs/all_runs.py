"""Read the runs of all users, for commands that evaluate a policy with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import OutsideError

if TYPE_CHECKING:  # httpx takes longer to import than `policy check` takes to run
    from slurm_gpu.client.database_client import Run

_PAGE = 1000


def all_users_runs(site: CommandSite, since_s: int, until_s: int | None) -> list[Run]:
    """Return all runs submitted in the period; raise OutsideError if the caller may not see all of them."""
    with site.database() as database:
        runs = list(database.all_runs(since_s=since_s, until_s=until_s, limit=_PAGE))
    if not all(run.full for run in runs):
        raise OutsideError(
            "this command requires the jobs of all users: run it as root on slurm-gpudbd's host, or as an "
            "operator (operators: in slurm-gpu.yaml)"
        )
    return runs
