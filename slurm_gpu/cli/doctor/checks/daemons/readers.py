"""Check that the processes that call NVML on the nodes stay alive."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import log_there
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire.live import READER_EXITS, READER_EXITS_IN_WIRE_1

# slurm-gpud restarts a failing reader with growing pauses; the value covers ten minutes.
_MANY = 3


def alive(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that no NVML reader keeps ending: meanwhile no GPU of its node is measured."""
    with at.site.database() as database:
        lives = database.live("none")
    exits = {
        node: live.host.get(READER_EXITS, live.host.get(READER_EXITS_IN_WIRE_1, 0))
        for node, live in lives.items()
    }
    failing = sorted(node for node, n in exits.items() if n >= _MANY)
    if not failing:
        yield ok("the readers of NVML stay alive on all nodes")
        return
    most = max(exits[node] for node in failing)
    yield fail(
        f"slurm-gpud's reader of NVML ended up to {most:.0f} times within ten minutes on "
        f"{compress(failing)}: its GPUs are not measured",
        f"ssh {failing[0]}: {log_there(at, 'slurm-gpud')} has the cause, in lines with `reader`; then "
        "nvidia-smi and dmesg there",
    )
