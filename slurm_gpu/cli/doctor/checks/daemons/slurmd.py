"""Check that slurmctld reaches the slurmd of each node with GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import continue_stopped, has_systemd, start_and_log
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, warn
from slurm_gpu.errors import OutsideError
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.text.hostlist import compress
from slurm_gpu.wire.live import IDLE_LIVE_INTERVAL_S

_SILENT = "not_responding"
# States of nodes out of service. Nodes are `unknown` after a start of slurmctld.
_PLANNED = frozenset(
    {"drain", "drained", "draining", "fail", "failing", "future", "maint", "maintenance", "unknown"}
    | {"power_down", "powered_down", "powering_down", "powering_up", "power_up"}
    | {"reboot", "reboot_issued", "reboot_requested"}
)
# Reasons that slurmctld sets itself. Any other reason comes from an admin who set state=down.
_NO_ANSWER, _REBOOTED = "Not responding", "Node unexpectedly rebooted"
# A node whose live values are not read posts every minute, ±10 %.
_REPORTS_WITHIN_S = 2 * IDLE_LIVE_INTERVAL_S


def reached(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that slurmctld reaches each slurmd, except on nodes that were taken out of service."""
    expected = [node for node in at.nodes if node.n_gpus and _PLANNED.isdisjoint(_words(node))]
    silent = [node for node in expected if _SILENT in _words(node) and not _is_down_on_purpose(node)]
    down = [node.name for node in silent if "down" in _words(node)]
    late = [node.name for node in silent if node.name not in down]
    back = [
        node.name
        for node in expected
        if "down" in _words(node) and _SILENT not in _words(node) and node.reason in (_NO_ANSWER, _REBOOTED)
    ]
    reporting = _reporting(at) if silent else None
    if down:
        yield fail(
            f"slurmd on {compress(down)} does not answer slurmctld, so no job starts there (state DOWN)"
            + _whether_reporting(down, reporting),
            _start(at, down, reporting),
        )
    if late:
        yield warn(
            f"slurmd on {compress(late)} does not answer slurmctld, so no job starts there (state DOWN after "
            "SlurmdTimeout)" + _whether_reporting(late, reporting),
            _start(at, late, reporting),
        )
    if back:
        yield fail(
            f"slurmd on {compress(back)} answers again, but no job starts there (state DOWN)",
            f"run scontrol update nodename={compress(back)} state=resume",
        )
    if not silent and not back:
        yield ok("slurmctld reaches the slurmd of each node with GPUs that is in service")


def _words(node: SlurmNode) -> list[str]:
    return node.state.split("+")


def _is_down_on_purpose(node: SlurmNode) -> bool:
    return "down" in _words(node) and node.reason not in (None, _NO_ANSWER, _REBOOTED)


def _reporting(at: DoctorContext) -> Collection[str] | None:
    """Return the nodes whose slurm-gpud has reported recently; None if slurm-gpudbd does not answer."""
    try:
        with at.site.database() as database:
            now_s = database.health().now_s
            reports = database.nodes()
    except OutsideError:
        return None
    return {
        one.node
        for one in reports
        if one.last_seen_s is not None and now_s - one.last_seen_s <= _REPORTS_WITHIN_S
    }


def _whether_reporting(names: Sequence[str], reporting: Collection[str] | None) -> str:
    if reporting is None:
        return ""
    if unreachable := [name for name in names if name not in reporting]:
        return f"; slurm-gpud on {compress(unreachable)} has not reported for two minutes either"
    return "; slurm-gpud there still reports, so the host and its network are up"


def _start(at: DoctorContext, names: Sequence[str], reporting: Collection[str] | None) -> str:
    """Return the remedy for one of the nodes, preferably the first whose host is up."""
    name = next((name for name in names if reporting and name in reporting), names[0])
    if name in at.gpu_nodes_here:
        return _start_here(at, name)
    remedy = (
        f"on {name}, run systemctl restart slurmd; see journalctl -u slurmd for the cause"
        if has_systemd(at)
        else f"on {name}, start slurmd again; see its log for the cause"
    )
    return remedy if reporting is None or name in reporting else f"run ping {name}; if it answers: {remedy}"


def _start_here(at: DoctorContext, name: str) -> str:
    if len(at.gpu_nodes_here) == 1:
        return start_and_log(at, "slurmd")
    # Where one host simulates several nodes, each slurmd is given the name of its node.
    here = [one for one in running("slurmd") if name in (one.option("-N"), *one.words)]
    return continue_stopped(here) or f"run slurmd -N {name} again; see its log for the cause"
