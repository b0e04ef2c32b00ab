"""Suggest smaller requests for later runs of the same work: pure functions of one ended run.

Each suggestion names the measured use and an option of sbatch. Nothing is suggested if less than the site's
`min_coverage` of the run was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_gpu.reports.run_use.device_use import device_uses, idle_advice
from slurm_gpu.reports.run_use.host_use import HostUse
from slurm_gpu.reports.run_use.requested_use import all_host_uses
from slurm_gpu.text.cells import number, span
from slurm_gpu.text.units import format_memory_mib, format_slurm_time
from slurm_gpu.wire.answers.runs import Run

MOST = 3
# Only runs that completed show what the work needs: others may have been stopped before their peak.
_COMPLETED = "COMPLETED"
# A shorter run may not have reached the main part of its work.
_JUDGED_FROM_S = 600
# The margin over the highest memory use, because it is sampled, and inputs vary.
_MEMORY_MARGIN = 1.25
# A memory request is judged if the suggestion is at most this share of it, and saves this much on each node.
_MEMORY_SHARE, _LEAST_SAVED_MIB = 0.5, 4096
# CPUs are judged by their mean use, which may hide short peaks. The margin is therefore larger.
_CPU_MARGIN = 2.0
_CPU_SHARE, _LEAST_SAVED_CPUS = 0.5, 4
# The running time of the same work varies more than its memory.
_TIME_MARGIN = 2.0
_TIME_SHARE, _LEAST_SAVED_S = 0.5, 3600
_GIB, _HALF_HOUR_S, _HOUR_S = 1024, 1800, 3600


def suggestions(run: Run, min_coverage: float) -> Sequence[str]:
    """Return at most three suggestions for an ended run, those for GPUs first."""
    if not run.full or run.end_s is None:
        return ()
    found = [idle_advice(run, device_uses(run.devices or ()), min_coverage)]
    if run.state == _COMPLETED and run.elapsed_s is not None and run.elapsed_s >= _JUDGED_FROM_S:
        hosts = _measured_hosts(run, run.elapsed_s, min_coverage)
        found += [_less_memory(run, hosts), _fewer_cpus(run, hosts), _shorter(run, run.elapsed_s)]
    return [text for text in found if text is not None][:MOST]


def _measured_hosts(run: Run, elapsed_s: int, min_coverage: float) -> Sequence[HostUse]:
    """Return the host use of all nodes; nothing if one of them was measured for too little of the time."""
    hosts = all_host_uses(run) or ()
    return hosts if all(host.watched_s >= min_coverage * elapsed_s for host in hosts) else ()


def _less_memory(run: Run, hosts: Sequence[HostUse]) -> str | None:
    used = [host.rss_max_mib for host in hosts if host.rss_max_mib is not None]
    requested_mib = (run.tres_allocated or {}).get("mem")
    if requested_mib is None or not used or len(used) < len(hosts):
        return None
    # --mem applies to each node. Accounting contains only the sum over the nodes.
    requested_mib /= len(hosts)
    enough_mib = _rounded_up_mib(_MEMORY_MARGIN * max(used))
    if enough_mib > _MEMORY_SHARE * requested_mib or requested_mib - enough_mib < _LEAST_SAVED_MIB:
        return None
    where = "" if len(hosts) == 1 else " on each node"
    return (
        f"The run used at most {number(max(used) / _GIB, 1)} of {number(requested_mib / _GIB)} GiB "
        f"of memory{where}: --mem={format_memory_mib(enough_mib)}."
    )


def _rounded_up_mib(mib: float) -> int:
    """Round up to a whole GiB, or from 4 GiB to a multiple of half the largest power of two below."""
    gib = max(1.0, mib / _GIB)
    step = max(1, 1 << math.floor(math.log2(gib)) >> 1)
    return math.ceil(gib / step) * step * _GIB


def _fewer_cpus(run: Run, hosts: Sequence[HostUse]) -> str | None:
    busy = [host.cpus_busy for host in hosts if host.cpus_busy is not None]
    n_cpus, n_gpus = (run.tres_allocated or {}).get("cpu"), run.n_gpus
    if n_cpus is None or not n_gpus or not n_gpus.is_integer() or not busy or len(busy) < len(hosts):
        return None
    mean = math.fsum(busy)
    # The busiest node decides, because each GPU gets the same number of CPUs.
    each = max(1, math.ceil(_CPU_MARGIN * max(busy) * len(hosts) / n_gpus))
    enough = each * n_gpus
    if enough > _CPU_SHARE * n_cpus or n_cpus - enough < _LEAST_SAVED_CPUS:
        return None
    return (
        f"On average, {number(mean, 1)} of {number(n_cpus)} CPUs were busy: "
        f"--cpus-per-gpu={each}, unless the work needs more for a short time."
    )


def _shorter(run: Run, elapsed_s: int) -> str | None:
    limit_s = run.time_limit_s
    if limit_s is None:
        return None
    step_s = _HALF_HOUR_S if elapsed_s < _HOUR_S else _HOUR_S
    enough_s = math.ceil(_TIME_MARGIN * elapsed_s / step_s) * step_s
    if enough_s > _TIME_SHARE * limit_s or limit_s - enough_s < _LEAST_SAVED_S:
        return None
    return (
        f"The run took {span(round(elapsed_s / 60) * 60)} of its time limit of {span(limit_s)}: "
        f"--time={format_slurm_time(enough_s)}. Shorter jobs can start earlier."
    )
