"""What a diagnosis says: the cause, who, since when, by which evidence, how sure, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from slurm_gpu.diagnose.series import JobWorker


class Cause(StrEnum):
    """Why a job is slow."""

    IMBALANCE = "workload imbalance"
    """Some have more to do than others; no GPU is at fault."""
    SLOW = "slow or failing"
    """A GPU or a node: `Verdict.culprits` says which."""
    COMMUNICATION = "communication delay"
    STARVATION = "input starvation"
    """The GPUs wait for data: CPU, file system or network behind them."""
    HANG = "hang"
    HEALTHY = "healthy"
    UNKNOWN = "cannot tell"


NEXT_STEPS: Mapping[Cause, str] = {
    Cause.IMBALANCE: "Give every worker of a stage as much to do: balance sequence lengths, layers or "
    "shards. Changing nodes will not help.",
    Cause.SLOW: "Exclude the node (sbatch --exclude), tell the operators, and run nvidia-smi -q -d "
    "PERFORMANCE,ECC,TEMPERATURE or dcgmi diag -r 3 there.",
    Cause.COMMUNICATION: "Run nccl-tests between the nodes named, with NCCL_DEBUG=INFO; look at ibstat, "
    "nvidia-smi nvlink -s and nvidia-smi topo -m.",
    Cause.STARVATION: "Profile the data loader: more workers or CPUs per GPU, prefetching, "
    "data on local disks.",
    Cause.HANG: "Take the stacks (py-spy dump) on the workers named first, then cancel; "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 ends such a job by itself.",
    Cause.HEALTHY: "Nothing.",
    Cause.UNKNOWN: "Look at the timelines; per-step timings (--steps) tell what counters cannot.",
}
NOTHING_RAN = "nothing ran"
"""Kind of what cannot be told of a job whose GPUs have had nothing to run."""
TOO_EARLY = "too early"
"""The same of a running job that has just begun to compute."""
NO_PEERS = "no peers"
"""The same of a job of one GPU."""
_UNKNOWN_NEXT: Mapping[str, str] = {
    NOTHING_RAN: "Look whether the program uses GPUs at all (nvidia-smi on its nodes); if not, ask for none.",
    TOO_EARLY: "Ask again in a minute.",
    NO_PEERS: "Look how much of its GPU it uses (slurm-gpu job JOBID); a profiler tells what it waits for.",
}
_LOOK_FIRST = (
    "Drain nothing for it: run nvidia-smi -q -d PERFORMANCE,ECC,TEMPERATURE or dcgmi diag -r 3 there, and "
    "see whether it comes again on other nodes (sbatch --exclude)."
)
SUSPECT_BELOW = 0.6
"""A verdict less sure than this is a suspicion: nobody should be drained for it."""
SUSPICION = SUSPECT_BELOW - 0.05
"""How sure what may be so is at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One finding: `value` of `metric` where `expected` was, over `workers` (all where none are named)."""

    text: str
    metric: str
    value: float
    expected: float
    workers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {
            "text": self.text,
            "metric": self.metric,
            "value": round(self.value, 4),
            "expected": round(self.expected, 4),
            "workers": list(self.workers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The diagnosis of one job. `culprits` and `nodes` are accused; empty where nobody is.

    `kind` says more of the cause (`pipeline stage`, `sequence`, `xid 79`, …). `since_s` is wall clock, None
    where it was so from the beginning or cannot be told; `until_s` where it has ended since.
    """

    cause: Cause
    kind: str = ""
    culprits: tuple[JobWorker, ...] = ()
    nodes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    """Stages or roles that have most to do, of an imbalance."""
    since_s: float | None = None
    until_s: float | None = None
    confidence: float
    """0–1: how sure; below SUSPECT_BELOW it is a suspicion."""
    evidence: tuple[Evidence, ...] = ()
    why_not: tuple[str, ...] = ()
    """Of `cannot tell`: what is in the way; else what limits the verdict."""
    coverage: float | None = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the workers of each group that were compared with each other."""
    groups_by: str = ""

    @property
    def suspect(self) -> bool:
        """Whether it is only a suspicion."""
        return self.confidence < SUSPECT_BELOW

    @property
    def next_step(self) -> str:
        """What to do next."""
        if self.cause is Cause.SLOW and self.suspect:
            return _LOOK_FIRST
        if self.cause is Cause.UNKNOWN and self.kind in _UNKNOWN_NEXT:
            return _UNKNOWN_NEXT[self.kind]
        return NEXT_STEPS[self.cause]

    def limited(self, *why: str, most: float = 1.0) -> Verdict:
        """The same, told with what limits it."""
        return replace(self, why_not=(*self.why_not, *why), confidence=min(self.confidence, most))

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes: the keys of docs/diagnose.md."""
        return {
            "cause": self.cause.value,
            "kind": self.kind,
            "suspect": self.suspect,
            "confidence": round(self.confidence, 3),
            "culprits": [
                {"node": worker.node, "device": worker.device, "rank": worker.rank}
                for worker in self.culprits
            ],
            "nodes": list(self.nodes),
            "roles": list(self.roles),
            "since_s": self.since_s,
            "until_s": self.until_s,
            "evidence": [item.to_json() for item in self.evidence],
            "why_not": list(self.why_not),
            "next_step": self.next_step,
            "coverage": None if self.coverage is None else round(self.coverage, 4),
            "groups": {name: list(members) for name, members in self.groups.items()},
            "groups_by": self.groups_by,
        }
