"""Check that forecasts of waiting times use a recent model."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import has_systemd
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, ok, skipped, warn
from slurm_gpu.text.cells import span

# slurm-gpu-forecast.timer trains the model daily, so an older model means that two training runs failed.
OLD_S = 3 * 86400


def learned(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that the model of `slurm-gpu forecast` was trained within the last three days."""
    with at.site.database() as database:
        health = database.health()
    if health.learned_s is None:
        yield skipped(
            "no model of waiting times has been trained, so slurm-gpu forecast cannot answer "
            "(slurm-gpu-forecast.timer on slurm-gpudbd's host trains it)"
        )
        return
    age_s = max(0.0, health.now_s - health.learned_s)
    message = f"the model of waiting times was trained {span(age_s)} ago"
    if age_s > OLD_S:
        yield warn(
            message,
            "on slurm-gpudbd's host, run systemctl enable --now slurm-gpu-forecast.timer; see "
            "journalctl -u slurm-gpu-forecast for the cause of failures"
            if has_systemd(at)
            else "on slurm-gpudbd's host, run slurm-gpu forecast train every day",
        )
    else:
        yield ok(message)
