"""Convert a training run of bench/diagnose_injector*.py to schedules of lab/simgpu, one for each rank.

The activities of the GPUs are integrals over time. A schedule has the same integrals: utilisation for each
second, other metrics for intervals of STRETCH_S, as fractions of the utilisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench import diagnose_injector_gpus as gpus
from bench import diagnose_injector_waits as waits
from bench.diagnose_injector import Case, generator, perform
from bench.diagnose_injector_fault import Fault
from bench.diagnose_injector_faults import Kind
from bench.diagnose_injector_job import Floats, Job, draw_job
from bench.diagnose_injector_play import (
    CLOCK,
    DRAM,
    NVLINK,
    PCIE,
    POWER,
    SM,
    TENSOR,
    THROTTLE,
    UTIL,
    Play,
)
from bench.diagnose_injector_record import (
    EDGE_S,
    NOISE,
    draw_collector,
    record_window,
    temperature,
    values_at,
)
from lab.simgpu.load import Activity, Footprint
from lab.simgpu.schedule import Phase
from lab.simgpu.specs import GpuSpec

FAULTS: dict[str, Kind | None] = {
    "healthy": None,
    "shard": gpus.shard,
    "sequence": gpus.sequence,
    "heat": gpus.slow_by_heat,
    "power supply": gpus.slow_node,
    "clock": gpus.slow_clock,
    "same clock": gpus.slow_memory,
    "congestion": waits.congestion,
    "nvlink": waits.nvlink,
    "starved by storage": waits.starved_all,
    "starved node": waits.starved_node,
    "starved worker": waits.starved_worker,
    "stuck worker": waits.stuck,
    "deadlock": waits.deadlock,
    "no data": waits.no_data,
}
"""Faults by their name in options; None: healthy."""
STRETCH_S = 2
_DETAILS_S = 10.0
"""The interval in seconds to which NOISE applies: one reading of counters."""
_HEADROOM = 0.92
"""A GPU of simgpu cannot exceed its power limit, so varying power must stay below it."""
_REASONS = {"heat": 0x40, "power supply": 0x80}
"""NVML's bits: the hardware is too hot; the power supply throttles it."""


def draw_training(rng: np.random.Generator, n_nodes: int, per_node: int) -> Job:
    """Draw a data-parallel training run on this number of H100s, with steps shorter than a stretch."""
    while True:
        job = draw_job(rng, n_gpus=n_nodes * per_node, pipeline=False, step_s=(0.3, 1.0))
        if job.model.name == "H100" and job.per_node in (4, 8):
            break
    between = float(n_nodes > 1)
    return replace(
        job,
        n_nodes=n_nodes,
        per_node=per_node,
        ib_bytes=(job.ib_bytes or 2e9 * job.step_s) * between,
        power_work=job.power_work * _HEADROOM,
    )


def draw_case(
    seed: int, name: str, *, size: float, well_s: int, ill_s: int, n_nodes: int = 2, per_node: int = 4
) -> Case:
    """Return a training run with a fault that starts after `well_s`; equal seeds give equal cases."""
    rng = generator(seed, name, 0)
    length_s = well_s + ill_s
    job = draw_training(rng, n_nodes, per_node)
    draw = FAULTS[name]
    fault: Fault | None = None
    if draw is not None:
        fault = draw(job, size, float(length_s), rng)
        # Unequal sequences always exist from the start, and slow loaders in some cases.
        fault = replace(fault, since_s=None if name == "sequence" else float(well_s), before=None)
    play = Play(job=job, rng=rng, start=-EDGE_S)
    perform(play, length_s + EDGE_S, fault, [])
    collector = draw_collector(job, rng, float(length_s), gaps=False)
    return Case(
        name=name,
        kind=name,
        fault=fault,
        recording=record_window(play, replace(collector, hosts=False), length_s, rng),
        groups=None,
        running=True,
        length_s=float(length_s),
        timeline=False,
        play=play,
    )


def schedules(case: Case, gpu: GpuSpec, rng: np.random.Generator) -> list[list[Phase]]:
    """Return the schedule of each rank's GPU from second 0 to the end of the case, with sampling noise."""
    play, job = case.play, case.job
    assert play is not None
    length = int(case.length_s)
    times, workers, _ = play.integrals()
    util = np.clip(np.diff(values_at(times, workers[..., UTIL], np.arange(length + 1.0)), axis=0), 0, 1)
    edges = np.minimum(np.arange(0.0, length + STRETCH_S, STRETCH_S), length)
    edges = np.unique(edges)
    means = np.diff(values_at(times, workers, edges), axis=0) / np.diff(edges)[:, None, None]
    for channel, spread in NOISE.items():
        root_n_samples = 1.0 if channel == CLOCK else np.sqrt(_DETAILS_S / STRETCH_S)
        means[..., channel] *= 1 + rng.normal(0, spread * root_n_samples, means.shape[:2])
    if not (job.clock > 0.965).all():  # under a power cap, clocks follow the temperature
        means[..., [CLOCK, POWER]] *= temperature(job, rng, (edges[:-1] + edges[1:]) / 2).T[..., None]
    bits = _REASONS.get(case.kind, _REASONS["heat"])
    reasons = np.where(rng.random(means.shape[:2]) < means[..., THROTTLE], bits, 0)
    idle = gpu.idle_w / gpu.power_limit_w
    found = []
    for row in range(job.n_workers):
        memory = min(float(job.memory[row]) * gpu.memory_mib, gpu.memory_mib - gpu.reserved_mib - 1.0)
        phases: list[Phase] = []
        for number, (first, last) in enumerate(
            zip(edges[:-1].astype(int), edges[1:].astype(int), strict=True)
        ):
            used = float(util[first:last, row].mean())
            activity, footprint = _shown(means[number, row], used, idle, int(reasons[number, row]))
            for second in range(first, last):
                pct = round(100 * float(util[second, row]), 3)
                phases.append(Phase(1.0, (pct, pct), (memory, memory), activity, footprint))
        found.append(phases)
    return found


def _shown(mean: Floats, used: float, idle: float, reasons: int) -> tuple[Activity, Footprint]:
    """Return factors of the utilisation, limited to the maximum."""

    def share(value: float) -> float:
        return round(float(np.clip(value / used, 0, 1)), 5) if used > 1e-4 else 0.0

    clock = float(mean[CLOCK])
    sm, tensor = (float(mean[channel]) / max(clock, 1e-9) for channel in (SM, TENSOR))
    return (
        Activity(
            sm_active=share(sm),
            sm_occupancy=share(sm / 2),
            tensor=share(tensor),
            dram=share(float(mean[DRAM])),
        ),
        Footprint(
            power=share((float(mean[POWER]) - idle) / (1 - idle)),
            pcie=share(float(mean[PCIE])),
            nvlink=share(float(mean[NVLINK])),
            clock=round(float(np.clip(clock, 0, 1)), 4),
            reasons=reasons,
        ),
    )


def text_of(phases: Sequence[Phase]) -> str:
    """Return the schedule in the format of `simgpu --phases`."""
    return ";\n".join(_phase_text(phase) for phase in phases) + "\n"


def _phase_text(phase: Phase) -> str:
    parts = [f"util={phase.util_pct[0]:g}", f"mem={phase.memory_mib[0]:.0f}", f"s={phase.seconds:g}"]
    parts += [f"{name}={value:.5f}" for name, value in phase.activity._asdict().items()]
    shown = phase.footprint
    parts += [f"{name}={getattr(shown, name):.5f}" for name in ("power", "pcie", "nvlink", "clock")]
    return ",".join([*parts, f"reasons={shown.reasons:#x}"])
