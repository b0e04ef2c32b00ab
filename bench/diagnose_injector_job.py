"""Synchronous training runs into which bench/diagnose.py injects faults: GPUs and their shares of the work.

The model is independent of slurm_gpu.diagnose. These figures were published or measured:
- forward to backward 1:2.1, GPUs of a stage apart by 0.2–0.9 %, microbatches by 2–3 %, gradients' exchange
  3–6 % of a step: the two traces of "Understanding Stragglers in Large Model Training Using What-if
  Analysis" (arXiv 2505.05713);
- GPUs under a power cap apart by 2–8 % from end to end: Sinha et al., "Not All GPUs Are Created
  Equal" (SC'22);
- power of GPUs that exchange or wait, 35–60 % of their power at work: Patel et al., "POLCA" (ASPLOS'24);
- SMs that a spinning NCCL kernel occupies, 8–32, at a utilisation of 100 %: NVIDIA's documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FORWARD = 0.32
"""The fraction of a microbatch's time in the forward pass; the rest is the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GPU model and its metrics. Link speeds in bytes/s, both directions together."""

    name: str
    gpm: bool
    """Whether SM, tensor and DRAM activity are recorded."""
    nvlink: float | None
    pcie: float
    sms: int


MODELS = (
    Model(name="H100", gpm=True, nvlink=900e9, pcie=128e9, sms=132),
    Model(name="H200", gpm=True, nvlink=900e9, pcie=128e9, sms=132),
    Model(name="A100", gpm=False, nvlink=600e9, pcie=64e9, sms=108),
    Model(name="V100", gpm=False, nvlink=None, pcie=32e9, sms=80),
)
MODEL_SHARES = (0.35, 0.15, 0.35, 0.15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run. Worker w = (stage × data + replica) × tensor + t, as in Megatron and DeepSpeed.

    Times are those of one GPU at its usual clock; `spread` (n_workers,) is each worker's relative excess.
    """

    model: Model
    n_nodes: int
    per_node: int
    data: int
    pipeline: int
    tensor: int
    microbatches: int
    microbatch_s: float
    """Forward and backward time of one microbatch in one stage."""
    stage_work: Floats
    spread: Floats
    jitter: float
    """Coefficient of variation of a microbatch's time."""
    tensor_comm: float
    """All-reduces within the tensor-parallel group, as a fraction of the computing time."""
    comm_s: float
    """Time of the exchange of gradients and parameters, once per step."""
    overlap: float
    """The fraction of the backward pass that can overlap with the exchange."""
    optimizer_s: float
    gaps: float
    """The fraction of the computing time without a kernel: launches, the interpreter."""
    collections: float
    """The number of garbage collections of one worker's interpreter per step."""
    clock: Floats
    """The clock of each computing worker relative to the maximum: below 1 under a power cap."""
    clock_bound: float
    """The fraction of the computing time that depends on the clock; the rest is bound by memory."""
    memory: Floats
    """The fraction of each worker's memory that is in use."""
    sm: float
    tensor_activity: float
    dram: float
    power_idle: float
    power_spin: float
    power_work: Floats
    spin_sm: float
    nvlink_use: float
    """Mean fraction of NVLink's capacity in use over a step."""
    pcie_use: float
    ib_bytes: float
    """Bytes over the network per node and step; 0 on one node."""
    broadcast: bool
    """Whether the first worker of a tensor-parallel group reads for the whole group, as in Megatron."""
    cpu: float
    net_bytes: float
    """Bytes of data that each node loads per step."""

    @property
    def n_workers(self) -> int:
        """Return the number of GPUs."""
        return self.n_nodes * self.per_node

    def place(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Return stage, replica and tensor-parallel rank of each worker."""
        rank = np.arange(self.n_workers)
        return (
            rank // (self.data * self.tensor),
            rank // self.tensor % self.data,
            rank % self.tensor,
        )

    def readers(self) -> NDArray[np.bool_]:
        """Return the workers that load data: the first stage (labels of the last stage are not critical)."""
        stage, _, tensor = self.place()
        return np.asarray((stage == 0) & ((tensor == 0) | (not self.broadcast)))

    def node(self) -> NDArray[np.intp]:
        """Return the index of each worker's node."""
        return np.arange(self.n_workers) // self.per_node

    @property
    def step_s(self) -> float:
        """Return the approximate time of a step without faults."""
        work_s = self.microbatch_s * (1 + self.tensor_comm) * (1 + self.gaps)
        longest = float(self.stage_work.max())
        busy_s = (
            work_s
            * (self.microbatches * longest + self.pipeline - 1)
            * (1 + 0.8 * self.jitter * (self.n_workers > 1))
        )
        return busy_s + self.exposed_s(1.0) + self.optimizer_s

    def exposed_s(self, factor: float) -> float:
        """Return the part of an exchange, `factor` times as long, that does not overlap with computing."""
        comm_s = self.comm_s * factor
        hidden_s = self.overlap * (1 - FORWARD) * self.microbatch_s * self.microbatches
        return max(comm_s - hidden_s, 0.1 * comm_s)


def draw_job(
    rng: np.random.Generator,
    *,
    n_gpus: int | None = None,
    pipeline: bool | None = None,
    step_s: tuple[float, float] = (0.4, 10.0),
) -> Job:
    """Draw a training run on 8 to 128 GPUs, with or without `pipeline` stages; `step_s` is in this range."""
    model = MODELS[rng.choice(len(MODELS), p=MODEL_SHARES)]
    n_gpus = n_gpus or int(rng.choice([8, 16, 32, 64, 96, 128], p=[0.2, 0.22, 0.22, 0.18, 0.06, 0.12]))
    per_node = 4 if model.name == "V100" or rng.random() < 0.15 else 8
    staged = rng.random() < 0.45 if pipeline is None else pipeline
    stages = int(rng.choice([s for s in (2, 4, 8) if n_gpus // s >= 4])) if staged else 1
    each = n_gpus // stages
    tensor = int(
        rng.choice([t for t in (1, 1, 2, 4, 8) if t <= per_node and each % t == 0 and each // t >= 2])
    )
    data = each // tensor
    microbatches = int(rng.choice([2, 4])) * stages if stages > 1 else int(rng.choice([1, 1, 2, 4]))
    a_step_s = float(np.exp(rng.uniform(*np.log(step_s))))
    capped = rng.random() < 0.6
    spread = rng.normal(0, rng.uniform(0.002, 0.009), n_gpus)
    clock = np.full(n_gpus, rng.uniform(0.97, 1.0))
    bound = float(rng.uniform(0.7, 0.95))
    if capped:
        own = np.clip(rng.normal(0, rng.uniform(0.004, 0.014), n_gpus), -0.035, 0.035)
        clock = rng.uniform(0.72, 0.92) * (1 - own)
        spread = spread + bound * own
    stage_work = 1 + rng.uniform(-0.02, 0.02, stages) * (stages > 1)
    lengths = microbatches + stages - 1
    comm = float(rng.uniform(0.03, 0.3)) if data > 1 else 0.02
    tensor_comm = float(rng.uniform(0.05, 0.22)) if tensor > 1 else 0.0
    gaps = float(rng.uniform(0.0, 0.05))
    stage = np.arange(n_gpus) // each
    filled = np.clip(rng.uniform(0.45, 0.85) + 0.08 * (stages - 1 - stage) / max(stages - 1, 1), 0, 0.96)
    filled = filled + 0.04 * (stage == stages - 1) * (stages > 1)
    n_nodes = n_gpus // per_node
    between = n_nodes > 1
    limit = 1.0 if capped else rng.uniform(0.7, 0.95)
    power = np.clip(limit * (1 + rng.normal(0, 0.008 if capped else 0.025, n_gpus)), 0, 1.02)
    spin_sm = float(rng.choice([8, 16, 24, 32])) / model.sms
    pcie = float(rng.uniform(0.005, 0.06)) + (float(rng.uniform(0.02, 0.15)) if between else 0.0)
    return Job(
        model=model,
        n_nodes=n_nodes,
        per_node=per_node,
        data=data,
        pipeline=stages,
        tensor=tensor,
        microbatches=microbatches,
        microbatch_s=a_step_s * (1 - comm) / lengths / (1 + tensor_comm) / (1 + gaps),
        stage_work=stage_work,
        spread=np.maximum(1 + spread, 0.9),
        jitter=float(rng.uniform(0.01, 0.03)),
        tensor_comm=tensor_comm,
        comm_s=comm * a_step_s,
        overlap=float(rng.choice([0.0, rng.uniform(0.1, 0.6)])),
        optimizer_s=float(rng.uniform(0.01, 0.04)) * a_step_s,
        gaps=gaps,
        collections=float(rng.choice([0.0, 0.002, 0.01])),
        clock=clock,
        clock_bound=bound,
        memory=np.clip(filled + rng.normal(0, 0.004, n_gpus), 0.05, 0.99),
        sm=float(rng.uniform(0.75, 0.96)),
        tensor_activity=float(rng.uniform(0.2, 0.6)),
        dram=float(rng.uniform(0.2, 0.6)),
        power_idle=float(rng.uniform(0.10, 0.18)),
        power_spin=float(rng.uniform(0.35, 0.55)),
        power_work=power,
        spin_sm=spin_sm,
        nvlink_use=float(rng.uniform(0.02, 0.2)) * (1 + (tensor > 1)),
        pcie_use=pcie,
        ib_bytes=float(rng.uniform(0.5, 8)) * 1e9 * a_step_s * between,
        broadcast=bool(rng.random() < 0.5),
        cpu=float(rng.uniform(0.05, 0.5)),
        net_bytes=float(rng.uniform(0.01, 1)) * 1e9 * a_step_s,
    )
