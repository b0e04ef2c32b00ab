"""The counters of GPUs and hosts of an injected training run, as integrals over time.

Every counter is the sum of the times of each activity (compute, exchange, spin, idle) times its rate. The
value that a collector reads is therefore a difference of these integrals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.diagnose_injector_job import Floats, Job
from bench.diagnose_injector_steps import Condition, Steps, run_steps, slowness

UTIL, SM, TENSOR, DRAM, POWER, CLOCK, THROTTLE, NVLINK, PCIE = range(9)
"""Counters per worker. SM and tensor activity are integrals over cycles: divide by CLOCK."""
CPU, NETWORK, INFINIBAND = range(3)
"""Counters per node."""
_CHUNK = 1_500_000
_WRITES = 2e9

Single = NDArray[np.float32]
Draw = Callable[[int], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A period without training; `spins` (n_workers,) marks workers that spin in a collective, not idle."""

    seconds: float
    spins: NDArray[np.bool_]
    writes: NDArray[np.bool_] | None = None
    """Nodes that write a checkpoint or read data, over the network and with a few CPUs."""
    copies_s: float = 0.0
    """Seconds for which GPUs copy to their hosts, at the beginning."""
    cpu: float | None = None


@dataclass(slots=True)
class Play:
    """A training run in progress; `now` in seconds since `start`."""

    job: Job
    rng: np.random.Generator
    start: float
    now: float = field(init=False)
    steps: list[Steps] = field(default_factory=list)
    """All steps so far, in chunks."""
    _ends: list[Floats] = field(default_factory=list)
    _workers: list[Single] = field(default_factory=list)
    _nodes: list[Single] = field(default_factory=list)
    _clock: Floats | float = 1.0

    def __post_init__(self) -> None:
        self.now = self.start

    def train(self, until: float, condition: Condition, compute: Draw | None = None) -> None:
        """Run steps until that time; the last one is finished.

        `compute(n)` returns the work of the next n steps.
        """
        job = self.job
        most = max(4, _CHUNK // (job.n_workers * max(1, round(job.microbatches * condition.microbatches))))
        seconds = job.step_s
        while self.now < until:
            n = int(np.clip(np.ceil((until - self.now) / seconds) + 1, 1, most))
            steps = run_steps(job, condition, n, self.rng, None if compute is None else compute(n))
            begins = self.now + np.concatenate([[0.0], np.cumsum(steps.total_s)[:-1]])
            kept = int(np.count_nonzero(begins < until))
            self._add(condition, steps, kept)
            self.steps.append(steps)
            seconds = float(steps.total_s.mean())

    def pause(self, pause: Pause) -> None:
        """Advance while stalled."""
        job = self.job
        if pause.seconds <= 0:
            return
        parts = [min(pause.copies_s, pause.seconds), max(pause.seconds - pause.copies_s, 0.0)]
        busy = np.zeros(job.n_nodes) if pause.writes is None else pause.writes.astype(float)
        for seconds, copying in zip(parts, (True, False), strict=True):
            if seconds <= 0:
                continue
            worker = self._waiting(pause.spins.astype(float) * seconds, seconds)
            if copying:
                worker[:, PCIE] += 0.25 * seconds
                worker[:, UTIL] = np.maximum(worker[:, UTIL], 0.2 * seconds)
            node = np.zeros((job.n_nodes, 3))
            node[:, CPU] = (0.03 + busy * 0.1 if pause.cpu is None else pause.cpu) * seconds
            node[:, NETWORK] = busy * _WRITES * seconds
            self._put(np.array([self.now + seconds]), worker[None], node[None])

    def integrals(self) -> tuple[Floats, Floats, Floats]:
        """Return times (n,), and the sums of each counter: (n, n_workers, 9), (n, n_nodes, 3)."""
        times = np.concatenate([[self.start], *self._ends])
        summed = []
        for parts in (self._workers, self._nodes):
            whole = np.concatenate([np.zeros_like(parts[0][:1]), *parts])
            whole = np.cumsum(whole, axis=0, dtype=np.float64)
            summed.append(whole)
        return times, summed[0], summed[1]

    def _put(self, ends: Floats, workers: Floats, nodes: Floats) -> None:
        self._ends.append(ends)
        self._workers.append(workers.astype(np.float32))
        self._nodes.append(nodes.astype(np.float32))
        self.now = float(ends[-1])

    def _waiting(self, spin_s: Floats, seconds: Floats | float) -> Floats:
        """Return counters (…, n_workers, 9) of workers that spin for `spin_s`, and then idle."""
        job = self.job
        found = np.zeros((*np.shape(spin_s), 9))
        clock = np.minimum(job.clock * 1.03, 1.0) * self._clock
        found[..., UTIL] = spin_s
        found[..., SM] = spin_s * job.spin_sm * clock
        found[..., DRAM] = spin_s * 0.01
        found[..., POWER] = job.power_idle * seconds + spin_s * (job.power_spin * clock - job.power_idle)
        found[..., CLOCK] = clock * seconds
        return found

    def _add(self, condition: Condition, steps: Steps, n: int) -> None:
        """Add each step as four spans: some idle, all work, exchange, optimizer."""
        if n == 0:
            return
        job = self.job
        self._clock = condition.clock
        idle, busy = steps.idle_s[:n], steps.busy_s[:n]
        meet = steps.meet_s[:n, None]
        first = idle.max(axis=1, keepdims=True)
        at_work = np.maximum(meet - idle, 1e-9)
        spans = [(idle, first - idle), (0 * idle, meet - first)]
        parts = []
        for idle_s, rest_s in spans:
            share = rest_s / at_work
            parts.append(
                self._working(condition, busy * share, steps.work_s[:n] * share, idle_s + rest_s, idle_s)
            )
        comm_s, optimizer_s = (some[:n, None] + 0 * idle for some in (steps.comm_s, steps.optimizer_s))
        comm = self._waiting(comm_s, comm_s)
        comm[..., DRAM] += 0.04 * comm_s
        comm[..., POWER] += 0.06 * comm_s
        optimizer = self._waiting(0 * optimizer_s, optimizer_s)
        optimizer[..., UTIL] += optimizer_s
        optimizer[..., SM] += 0.9 * optimizer_s * job.clock * condition.clock
        optimizer[..., DRAM] += 0.8 * optimizer_s
        optimizer[..., POWER] += 0.5 * optimizer_s
        parts += [comm, optimizer]
        lengths = np.stack(
            [first[:, 0], (meet - first)[:, 0], steps.comm_s[:n], steps.optimizer_s[:n]], axis=1
        )
        self._links(condition, parts, lengths)
        for part, seconds in zip(parts, lengths.T, strict=True):
            part[..., THROTTLE] = np.asarray(condition.throttled) * seconds[:, None]
        ends = self.now + np.cumsum(lengths.ravel())
        workers = np.stack(parts, axis=1).reshape(4 * n, job.n_workers, 9)
        self._put(ends, workers, self._hosts(condition, lengths).reshape(4 * n, job.n_nodes, 3))

    def _working(
        self, condition: Condition, busy_s: Floats, work_s: Floats, seconds: Floats, idle_s: Floats
    ) -> Floats:
        job = self.job
        kernel_s = busy_s / (1 + job.gaps)
        found = self._waiting(np.maximum(seconds - idle_s - busy_s, 0.0), seconds)
        clock = job.clock * condition.clock
        # Rate of work relative to the rate that the clock allows: below 1 if memory limits the work.
        pace = 1 / (slowness(job, condition) * np.asarray(condition.clock, dtype=float))
        power = (job.power_work - job.power_idle) * np.asarray(condition.clock, dtype=float) ** 2.2
        found[..., UTIL] += kernel_s
        found[..., SM] += kernel_s * job.sm * clock
        found[..., TENSOR] += work_s * job.tensor_activity * job.clock
        found[..., DRAM] += work_s * job.dram
        found[..., POWER] += kernel_s * power * (0.4 + 0.6 * np.minimum(pace, 1.0))
        waiting = np.minimum(job.clock * 1.03, 1.0) * condition.clock
        found[..., CLOCK] += busy_s * (clock - waiting)
        return found

    def _links(self, condition: Condition, parts: list[Floats], lengths: Floats) -> None:
        """Distribute the constant traffic of each step over its time."""
        job = self.job
        meet, comm = (0.8, 0.2) if job.tensor > 1 else (0.1, 0.9)
        comm *= not condition.forward_only
        kept = np.broadcast_to(np.asarray(condition.nvlink, dtype=float), job.n_workers)
        nvlink = job.nvlink_use * job.step_s
        pcie = job.pcie_use * job.step_s + (1 - kept) * nvlink * (job.model.nvlink or 0.0) / job.model.pcie
        whole = np.maximum(lengths[:, :2].sum(axis=1), 1e-9)
        for part, seconds in zip(parts[:2], lengths.T[:2], strict=True):
            share = (seconds / whole)[:, None]
            part[..., NVLINK] += meet * share * nvlink * kept
            part[..., PCIE] += 0.2 * share * pcie
        parts[2][..., NVLINK] += comm * nvlink * kept
        parts[2][..., PCIE] += 0.8 * (not condition.forward_only) * pcie

    def _hosts(self, condition: Condition, lengths: Floats) -> Floats:
        job = self.job
        node = np.zeros((len(lengths), 4, job.n_nodes, 3))
        busy = np.minimum(job.cpu + np.broadcast_to(np.asarray(condition.cpu, dtype=float), job.n_nodes), 1.0)
        node[..., CPU] = lengths[..., None] * busy
        whole = np.maximum(lengths[:, :2].sum(axis=1, keepdims=True), 1e-9)
        node[:, :2, :, NETWORK] = (job.net_bytes * lengths[:, :2] / whole)[..., None]
        if not condition.forward_only:
            by_tcp = np.zeros(job.n_nodes, dtype=bool) if condition.by_tcp is None else condition.by_tcp
            node[:, 2, :, INFINIBAND] = np.where(by_tcp, 0.0, job.ib_bytes)
            node[:, 2, :, NETWORK] += np.where(by_tcp, job.ib_bytes, 0.0)
        return node
