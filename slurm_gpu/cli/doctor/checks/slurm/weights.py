"""Check that node weights are the site's own, or managed by a running slurm-gpuctld."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from slurm_gpu.cli.doctor.checks.daemons.processes import running
from slurm_gpu.cli.doctor.checks.daemons.services import log, restart, revive, start
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok, skipped, warn
from slurm_gpu.controller.placement import original_weights as weightmemory
from slurm_gpu.controller.placement import table as placementtable
from slurm_gpu.controller.placement.original_weights import (
    OriginalWeights,
    RecordedWeights,
    as_known,
    set_by_hand,
)
from slurm_gpu.controller.placement.table import PlacementTable
from slurm_gpu.controller.placement.weight_plan import Managed
from slurm_gpu.controller.placement.weights import written_weights
from slurm_gpu.text.hostlist import compress
from slurm_gpu.text.units import counted

_RELEASE = "run slurm-gpu placement release"
_DAEMON = "slurm-gpuctld"


def weights(at: DoctorContext) -> Iterator[CheckResult]:
    """Check that every Weight of a managed node is the site's, or is managed by a running slurm-gpuctld."""
    if not at.is_controller:
        yield skipped("slurm-gpuctld manages weights on the hosts of slurmctld, and this host is not one")
        return
    path, mode = weightmemory.path_of(at.settings), at.site.config.placement.mode
    if not os.access(path.parent.parent, os.R_OK | os.X_OK):
        yield skipped(f"only SlurmUser may read {path.parent.parent}; run doctor as root")
        return
    table = _renewed_table(at)
    if table is not None and table.mode != mode:
        yield fail(
            f"placement's mode is {mode}, but slurm-gpuctld was started with {table.mode}",
            restart(at, _DAEMON),
        )
        return
    memory = weightmemory.read(path)
    if mode != "enforce" and not memory.nodes:
        yield ok(f"placement's mode is {mode}: every Weight is the site's own")
        return
    managed = {node.name for node in Managed(at.site.config.placement).of(at.nodes)}
    now = {node.name: node.weight for node in at.nodes if node.name in managed or node.name in memory.nodes}
    known = as_known(memory, now, written_weights(at.settings))
    found = [*_by_hand(memory, known, now), *_unattended(at, memory, known, now, mode)]
    yield from found
    if not found:
        n = sum(now[name] in one.ours for name, one in known.items())
        yield ok(f"slurm-gpuctld manages the Weight of {counted(n, 'node')}")


def _renewed_table(at: DoctorContext) -> PlacementTable | None:
    """Return the placement table if slurm-gpuctld on this host renews it, or None."""
    table = placementtable.read(at.controller_run / placementtable.FILE_NAME)
    renewed = table is not None and not table.is_stale(at.site.wall()) and running("slurm-gpuctld")
    return table if renewed else None


def _by_hand(
    memory: OriginalWeights, known: Mapping[str, RecordedWeights], now: Mapping[str, int]
) -> Iterator[CheckResult]:
    by_weights: dict[tuple[int, int], list[str]] = {}
    for name, weight in set_by_hand(memory, known, now).items():
        by_weights.setdefault((weight, known[name].site), []).append(name)
    for (weight, site), names in by_weights.items():
        nodes = compress(names)
        yield warn(
            f"Weight {weight} of {nodes} was set by hand (original: {site}); slurm-gpuctld does not "
            "change "
            "it",
            f"to let slurm-gpuctld manage it, run scontrol update NodeName={nodes} Weight={site}; to keep "
            f"{weight}, set it in slurm.conf, then run scontrol reconfigure",
        )


def _unattended(
    at: DoctorContext,
    memory: OriginalWeights,
    known: Mapping[str, RecordedWeights],
    now: Mapping[str, int],
    mode: str,
) -> Iterator[CheckResult]:
    n = sum(now[name] in one.ours and now[name] != one.site for name, one in known.items())
    n_ours, have = counted(n, "node"), "has" if n == 1 else "have"
    if mode != "enforce":
        yield fail(
            f"placement's mode is {mode}, but {n_ours} still {have} a Weight that slurm-gpuctld set",
            f"{_RELEASE}, or {start(at, _DAEMON)}, which has the same effect",
        )
        return
    table = placementtable.read(at.controller_run / placementtable.FILE_NAME)
    if table is None or table.is_stale(at.site.wall()) or not running("slurm-gpuctld"):
        age = "it does not exist" if table is None else f"it is {table.age_s(at.site.wall()):.0f} s old"
        message = (
            f"placement's mode is enforce, but slurm-gpuctld does not renew its table on this host ({age})"
        )
        if memory.nodes:
            yield fail(
                f"{message}: {n_ours} still {have} a Weight that slurm-gpuctld set",
                f"{revive(at, _DAEMON)} (see {log(at, _DAEMON)} for the cause), or {_RELEASE}",
            )
        else:
            yield fail(f"{message}: no Weight is set", f"{revive(at, _DAEMON)}; see {log(at, _DAEMON)}")
    elif not table.in_charge:
        yield skipped(
            "slurmctld on another host is in charge, so slurm-gpuctld there sets weights: run doctor there"
        )
