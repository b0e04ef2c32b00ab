"""Check that the processes that call NVML on the nodes stay alive."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import log_there
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire.live import READER_DEATHS

# slurm-gpud restarts a failing reader with growing pauses; the value covers ten minutes.
_MANY = 3


def alive(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that no NVML reader keeps ending: meanwhile no GPU of its node is measured."""
    with at.site.database() as database:
        lives = database.live("none")
    deaths = {node: live.host.get(READER_DEATHS, 0) for node, live in lives.items()}
    dying = sorted(node for node, n in deaths.items() if n >= _MANY)
    if not dying:
        yield ok("the readers of NVML stay alive on all nodes")
        return
    most = max(deaths[node] for node in dying)
    yield fail(
        f"slurm-gpud's reader of NVML ended up to {most:.0f} times within ten minutes on {compress(dying)}: "
        "its GPUs are not measured",
        f"ssh {dying[0]}: {log_there(at, 'slurm-gpud')} has the cause, in lines with `reader`; then "
        "nvidia-smi and dmesg there",
    )
