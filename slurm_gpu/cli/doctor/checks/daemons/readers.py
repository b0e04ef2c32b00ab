"""Check that the processes that call NVML on the nodes stay alive."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.cli.doctor.checks.daemons.services import log_there
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire.live import READER_EXITS, READER_EXITS_IN_WIRE_1

# Exits of a reader within ten minutes; slurm-gpud waits longer before each restart of a failing reader.
_MANY = 3


def alive(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that NVML readers do not end repeatedly: without a reader, no GPU of the node is measured."""
    with at.site.database() as database:
        lives = database.live("none")
    exits = {
        node: live.host.get(READER_EXITS, live.host.get(READER_EXITS_IN_WIRE_1, 0))
        for node, live in lives.items()
    }
    failing = sorted(node for node, n in exits.items() if n >= _MANY)
    if not failing:
        yield ok("no NVML reader ended repeatedly within ten minutes")
        return
    most = max(exits[node] for node in failing)
    yield fail(
        f"slurm-gpud's NVML reader ended repeatedly on {compress(failing)} (at most {most:.0f} times "
        "within ten minutes), so the GPUs there are not measured",
        f"on {failing[0]}, see the lines with `reader` in {log_there(at, 'slurm-gpud')} for the cause; "
        "then run nvidia-smi and dmesg",
    )
