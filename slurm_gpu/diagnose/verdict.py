"""Define the result of a diagnosis: cause, culprits, time, evidence, confidence and next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from slurm_gpu.diagnose.series import JobWorker


class Cause(StrEnum):
    """The cause of a slow job, or the lack of one."""

    IMBALANCE = "workload imbalance"
    """Some workers have more to do than others; no GPU is at fault."""
    SLOW = "slow or failing"
    """GPUs or nodes, listed in the verdict, are slow or failing."""
    COMMUNICATION = "communication delay"
    STARVATION = "input starvation"
    """The GPUs wait for data from CPUs, file systems or the network."""
    HANG = "hang"
    HEALTHY = "healthy"
    INCONCLUSIVE = "inconclusive"


NEXT_STEPS: Mapping[Cause, str] = {
    Cause.IMBALANCE: "Give all workers of a stage equal work: balance sequence lengths, layers or "
    "shards. Running on other nodes will not help.",
    Cause.SLOW: "Exclude the node (sbatch --exclude), notify the operators, and run nvidia-smi -q -d "
    "PERFORMANCE,ECC,TEMPERATURE or dcgmi diag -r 3 there.",
    Cause.COMMUNICATION: "Run nccl-tests with NCCL_DEBUG=INFO between the listed nodes; check ibstat, "
    "nvidia-smi nvlink -s and nvidia-smi topo -m.",
    Cause.STARVATION: "Profile the data loader. Try more workers or CPUs per GPU, prefetching, "
    "or data on local disks.",
    Cause.HANG: "Record the stacks of the listed workers (py-spy dump), then cancel the job; "
    "with TORCH_NCCL_ASYNC_ERROR_HANDLING=1, such a job ends by itself.",
    Cause.HEALTHY: "No action is required.",
    Cause.INCONCLUSIVE: "Check the timelines; step timings (--steps) show what counters cannot.",
}
# Kind of Cause.INCONCLUSIVE for a job whose GPUs have had nothing to run.
NOTHING_RAN = "nothing ran"
# Kind of Cause.INCONCLUSIVE for a running job that has only just begun or stopped computing.
TOO_EARLY = "too early"
# Kind of Cause.INCONCLUSIVE for a job of one GPU.
NO_PEERS = "no peers"
# Kinds of Cause.INCONCLUSIVE for a job that loses time because of some workers, or for an unknown reason.
TWO_GROUPS, UNEXPLAINED = "two groups", "unexplained loss"
# Kind of Cause.INCONCLUSIVE for a job that did not compute for a while, because of an evaluation or a hang
# that ended.
LONG_PAUSE = "long pause"
# Kind of Cause.INCONCLUSIVE if no worker differs from its peers, but the data cannot show every slow GPU.
NO_DIFFERENCE = "no difference found"
_INCONCLUSIVE_NEXT: Mapping[str, str] = {
    NOTHING_RAN: "Check whether the program uses GPUs (nvidia-smi on its nodes). If not, submit it without "
    "GPUs.",
    TOO_EARLY: "Repeat the diagnosis in a minute.",
    TWO_GROUPS: "Compare the clocks (nvidia-smi -q -d PERFORMANCE,TEMPERATURE) and the amount of work of the "
    "named workers with those of the other workers.",
    NO_DIFFERENCE: "No action is required. If the job is slower than expected, record timings of its steps "
    "(--steps).",
    LONG_PAUSE: "Check what the job did during the pause: an evaluation, a checkpoint, or waiting for "
    "storage.",
    UNEXPLAINED: "Profile the job. Timings of steps (--steps) show which workers take longer.",
    NO_PEERS: "Check how much of its GPU the job uses (slurm-gpu job JOBID); a profiler shows why the job "
    "waits.",
}
_VERIFY_FIRST = (
    "Do not drain the node yet: run nvidia-smi -q -d PERFORMANCE,ECC,TEMPERATURE or dcgmi diag -r 3 there, "
    "and check whether the problem recurs on other nodes (sbatch --exclude)."
)
# A verdict of lower strength is a suspicion; no node should be drained because of a suspicion.
SUSPECT_BELOW = 0.6
# Maximum strength of a suspicion.
SUSPICION = SUSPECT_BELOW - 0.05
# Shares of correct verdicts, for suspicions and for other verdicts: 0.97 and 0.997 in bench/diagnose.py
# (seeds 71 to 75), 0.91 and 0.99 in the jobs of tests/diagnose/test_any_shape.py (seeds 100000 to 101999),
# rounded down here. The strength does not distinguish correct from wrong verdicts any further.
_SUSPICIONS_RIGHT, _OTHERS_RIGHT = 0.94, 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One finding: `metric` has `value` instead of `expected` for `workers` (empty if all)."""

    text: str
    metric: str
    value: float
    expected: float
    workers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as a dict for json.dumps."""
        return {
            "text": self.text,
            "metric": self.metric,
            "value": round(self.value, 4),
            "expected": round(self.expected, 4),
            "workers": list(self.workers),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The diagnosis of one job.

    `culprits` and `nodes` are at fault; both may be empty. `kind` specifies the cause (`pipeline stage`,
    `sequence`, `xid 79`, …). `since_s` is the wall-clock time at which the problem began; None if it is
    unknown or the start of the job. `until_s` is None unless the problem has ended.
    """

    cause: Cause
    kind: str = ""
    culprits: tuple[JobWorker, ...] = ()
    nodes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    """Stages or workers with the most work, for an imbalance; workers that differ, if inconclusive."""
    since_s: float | None = None
    until_s: float | None = None
    strength: float
    """Strength of the evidence from 0 to 1, not a probability; a suspicion if below SUSPECT_BELOW."""
    evidence: tuple[Evidence, ...] = ()
    why_not: tuple[str, ...] = ()
    """Reasons for Cause.INCONCLUSIVE; for other causes, limitations of the verdict."""
    excludes_faults: bool = False
    """Whether an inconclusive verdict is still evidence that the job has no present fault."""
    coverage: float | None = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the workers in each group of peers."""
    groups_by: str = ""

    @property
    def suspect(self) -> bool:
        """Return whether the verdict is only a suspicion."""
        return self.strength < SUSPECT_BELOW

    @property
    def confidence(self) -> float:
        """Return the probability that the cause is correct; 0 if the verdict is inconclusive.

        A healthy verdict claims that no fault costs the job a tenth of its time or more. The probability was
        measured on simulated jobs; half of them have a fault.
        """
        if self.cause is Cause.INCONCLUSIVE:
            return 0.0
        return _SUSPICIONS_RIGHT if self.suspect else _OTHERS_RIGHT

    @property
    def finds_nothing(self) -> bool:
        """Return whether the data show no present fault; some faults may not be visible in the data."""
        return self.cause is Cause.HEALTHY or self.excludes_faults

    @property
    def next_step(self) -> str:
        """Return the recommended next step."""
        if self.cause is Cause.SLOW and self.suspect:
            return _VERIFY_FIRST
        if self.cause is Cause.INCONCLUSIVE and self.kind in _INCONCLUSIVE_NEXT:
            return _INCONCLUSIVE_NEXT[self.kind]
        return NEXT_STEPS[self.cause]

    def limited(self, *why: str, most: float = 1.0) -> Verdict:
        """Return the verdict with these limitations added, and with a strength of at most `most`."""
        return replace(self, why_not=(*self.why_not, *why), strength=min(self.strength, most))

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a dict for json.dumps, with the keys in docs/diagnose.md."""
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
