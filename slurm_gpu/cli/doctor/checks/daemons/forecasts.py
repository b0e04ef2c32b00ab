"""Whether forecasts of waiting times stand on what was learned lately."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import has_systemd
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, ok, skipped, warn
from slurm_gpu.text.cells import span

OLD_S = 3 * 86400
"""Learned each day, as slurm-gpu-forecast.timer does it, nothing is older but after two failures."""


def learned(at: DoctorContext) -> Iterator[CheckResult]:
    """What `slurm-gpu forecast` stands on is of the last days."""
    with at.site.database() as database:
        health = database.health()
    if health.learned_s is None:
        yield skipped(
            "nothing has been learned of how long jobs wait, so slurm-gpu forecast has no answer "
            "(slurm-gpu-forecast.timer on slurm-gpudbd's host)"
        )
        return
    age_s = max(0.0, health.now_s - health.learned_s)
    message = f"how long jobs wait was learned {span(age_s)} ago"
    if age_s > OLD_S:
        yield warn(
            message,
            "on slurm-gpudbd's host: systemctl enable --now slurm-gpu-forecast.timer; "
            "journalctl -u slurm-gpu-forecast says why it failed"
            if has_systemd(at)
            else "on slurm-gpudbd's host: slurm-gpu forecast train, each day",
        )
    else:
        yield ok(message)
