"""Check that the daemons find Slurm's commands: their PATH may differ from that of this shell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.processes import DaemonProcess, running
from slurm_gpu.cli.doctor.checks.daemons.services import environment_of, restart
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped
from slurm_gpu.node.allocation.slurmd import SBIN

_QUERIES = ("scontrol", "squeue", "sacct")
_NEEDS = {"slurm-gpud": ("slurmd",), "slurm-gpudbd": _QUERIES, "slurm-gpuctld": _QUERIES}


def found(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that each running daemon finds the Slurm commands that it needs on its PATH."""
    fine, has_findings = [], False
    for daemon in _NEEDS:
        for process in running(daemon):
            finding = _lacks(at, daemon, process)
            if finding is not None:
                has_findings = True
                yield finding
                break  # processes for simulated nodes have the same PATH
            fine.append(daemon)
    if fine:
        yield ok(f"{' and '.join(dict.fromkeys(fine))}: Slurm's commands are on the PATH")
    elif not has_findings:
        yield skipped("no daemon of slurm-gpu runs on this host")


def _lacks(at: DoctorContext, daemon: str, process: DaemonProcess) -> CheckResult | None:
    if "--no-slurm" in process.words:
        return None
    path = process.variable("PATH")
    if path is None:
        return None  # the process has ended
    where = f"{path}:{SBIN}" if daemon == "slurm-gpud" else path
    lacking = [name for name in _NEEDS[daemon] if shutil.which(name, path=where) is None]
    if not lacking:
        return None
    return fail(
        f"{daemon} does not find {' and '.join(lacking)} on its PATH: {path}",
        "set PATH=/opt/slurm/bin:/opt/slurm/sbin:/usr/sbin:/usr/bin (with the directories of Slurm's "
        "commands) "
        f"in {environment_of(at, daemon)}; then {restart(at, daemon)}",
    )
