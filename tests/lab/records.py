"""Read the runs of jobs as `slurm-gpu job` shows them."""

from __future__ import annotations

import json
from typing import Any

from lab.cluster import Lab


def runs_of(lab: Lab, job: int | str, user: str = "carol") -> list[dict[str, Any]]:
    """Return the runs of a job, latest first; [] while slurm-gpudbd has none, as for a pending job."""
    shown = lab.run_as(user, ["slurm-gpu", "job", str(job), "--json"], check=False)
    found: list[dict[str, Any]] = json.loads(shown.stdout)["runs"] if shown.returncode == 0 else []
    return found
