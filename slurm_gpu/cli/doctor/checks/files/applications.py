"""Check that slurm-gpud on this node can recognise applications."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import restart
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, unreadable
from slurm_gpu.errors import InputError
from slurm_gpu.node.application.rules import load_rules, rules_path
from slurm_gpu.text.units import counted


def rules(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the rules for recognising applications are valid."""
    if not at.is_gpu_node:
        yield skipped("this host is not a GPU node")
        return
    path = rules_path(at.site.config_path)
    try:
        known = load_rules(path)
    except InputError as error:
        yield unreadable(error) or fail(str(error), f"fix {path}, then {restart(at, 'slurm-gpud')}")
        return
    yield ok(f"{path}: {counted(len(known.rules), 'application')}")
