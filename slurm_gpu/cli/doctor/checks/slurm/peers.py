"""Check that all hosts of slurmctld have the same job_submit.lua."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped
from slurm_gpu.policy.lua.install import SCRIPT_NAME
from slurm_gpu.policy.lua.peers import PeerScript, controllers, differing_hosts, shared_file_system, since_s
from slurm_gpu.text.cells import minute

_APPLY = "run slurm-gpu policy apply"
_SAME = "put the same policy.yaml on both hosts"


def same_script(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that a backup slurmctld has the same script as the primary, and can start."""
    hosts, script = controllers(at.settings), Path(at.settings.conf_path).parent / SCRIPT_NAME
    others = [host for host in hosts if host != at.host]
    state = Path(at.settings.raw.get("StateSaveLocation", ""))
    if not at.is_controller:
        yield skipped("job_submit.lua is on hosts of slurmctld, and this host is not one")
    elif not others:
        yield skipped("slurmctld has no backup host")
    elif not script.exists():
        yield skipped(f"{script} does not exist")
    elif (kind := shared_file_system(script)) is not None:
        yield ok(f"{script} is on {kind}, which {', '.join(hosts)} share")
    elif not os.access(state, os.R_OK | os.X_OK):
        yield skipped(f"only SlurmUser may read {state}; run doctor as root")
    else:
        different = list(differing_hosts(at.settings, at.host, script))
        for other, peer in different:
            yield _different(at, script, other, peer)
        if not different:
            yield ok(f"{', '.join(hosts)} have the same {SCRIPT_NAME}")


def _different(at: DoctorContext, script: Path, other: str, peer: PeerScript | None) -> CheckResult:
    """Return a failure whose remedy updates the host with the older script."""
    there = f"{_SAME}; {_APPLY} on {other}"
    if peer is None:
        return fail(
            f"no policy was applied on {other}: slurmctld there does not start without {script}", there
        )
    here_s = since_s(at.settings, at.host, script)
    message = (
        f"{SCRIPT_NAME} on {other} differs from this host's: it dates from {_moment(peer.at_s)}, and this "
        f"host's from {_moment(here_s)}"
    )
    return fail(message, f"{_SAME}; {_APPLY} on this host" if peer.at_s > here_s else there)


def _moment(at_s: int) -> str:
    return f"{minute(at_s, dt.UTC)} UTC"
