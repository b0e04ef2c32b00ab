"""Whether the hosts of slurmctld have the same job_submit.lua."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.checks.finding import Finding, Surroundings, fail, ok, skipped
from slurm_gpu.policy.install import SCRIPT_NAME
from slurm_gpu.policy.peers import controllers, shared_file_system, unlike


def same_script(at: Surroundings) -> Iterator[Finding]:
    """A backup of slurmctld decides as the first does, and starts at all."""
    hosts, script = controllers(at.settings), Path(at.settings.conf_path).parent / SCRIPT_NAME
    others = [host for host in hosts if host != at.host]
    state = Path(at.settings.raw.get("StateSaveLocation", ""))
    if not at.is_controller:
        yield skipped("job_submit.lua lies on the hosts of slurmctld, and this host is none")
    elif not others:
        yield skipped("slurmctld has no backup host")
    elif not script.exists():
        yield skipped(f"there is no {script}")
    elif (kind := shared_file_system(script)) is not None:
        yield ok(f"{script} lies on {kind}, which {', '.join(hosts)} share")
    elif not os.access(state, os.R_OK | os.X_OK):
        yield skipped(f"{state} is SlurmUser's; run doctor as root")
    else:
        different = list(unlike(at.settings, at.host, script))
        for other, told in different:
            if told is None:
                message = f"no policy was applied on {other}: without {script} its slurmctld does not start"
            else:
                when = dt.datetime.fromtimestamp(told.at_s, dt.UTC)
                message = f"{other} has another {SCRIPT_NAME} than this host, of {when:%Y-%m-%d %H:%M} UTC"
            yield fail(message, f"the same policy.yaml on both hosts; ssh {other} slurm-gpu policy apply")
        if not different:
            yield ok(f"{', '.join(hosts)} have the same {SCRIPT_NAME}")
