"""What can be wrong with a running job's GPUs, and by which thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.wire.live import IDLE_PCT


class Concern(StrEnum):
    """Kinds of concern, the worst first."""

    XID = "xid"
    """A GPU reported an error."""
    UNHEALTHY = "unhealthy"
    """slurm-gpudbd's watch found trouble: `Flag.said` says which."""
    HELD_IDLE = "held_idle"
    """No GPU of the job has computed anything since it began."""
    USED_THEN_IDLE = "used_then_idle"
    """They have, and none does any more."""
    MEMORY_IDLE = "memory_idle"
    """A GPU whose memory is full does nothing: something waits or hangs there."""
    PARTLY_UNUSED = "partly_unused"
    """One of N GPUs is used, the others never were."""
    THROTTLED = "throttled"
    """A GPU's clocks are held down by heat or by its power supply."""


BAD_THROTTLES = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
"""Reasons that are faults; the power cap and clocks that were asked for are none."""


CLOCKS_S = 5.0
"""So much may Slurm's clock and a node's differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """When something is a concern."""

    window_s: float = 240.0
    """It has lasted so long. With values each 10 s, it is told within five minutes."""
    idle_pct: float = IDLE_PCT
    """Utilisation up to this is idle."""
    min_coverage: float = 0.8
    """Of that time, so much has been seen; below it nothing is judged."""
    value_for_s: float = 30.0
    """A value tells of at most so long before it."""
    memory_frac: float = 0.5
    """Memory in use that counts as full."""
    throttled_share: float = 0.5
    """Of the time."""

    def __post_init__(self) -> None:
        for name in ("window_s", "value_for_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("min_coverage", "memory_frac", "throttled_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a diagnosis says, as docs/diagnose.md has it."""

    cause: str
    kind: str
    confidence: float
    text: str
    """Who, and by which evidence."""
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One concern about one job."""

    job_id: int
    concern: Concern
    devices: tuple[str, ...]
    """UUIDs of those that it is about."""
    since_s: float
    """Wall clock: since when it is so."""
    coverage: float
    """How much was seen of the time that it is judged by; the least of the devices."""
    said: Said | None = None
    """Of UNHEALTHY alone."""


_WORDS = {
    Concern.XID: "{gpus} reported an error",
    Concern.UNHEALTHY: "{gpus} in trouble",
    Concern.HELD_IDLE: "{gpus} held and not used since it began",
    Concern.USED_THEN_IDLE: "{gpus} no longer used",
    Concern.MEMORY_IDLE: "{gpus} idle with full memory",
    Concern.PARTLY_UNUSED: "{gpus} never used, others are",
    Concern.THROTTLED: "{gpus} slowed down by heat or power",
}


def in_words(flag: Flag) -> str:
    """Describe the condition in a few words, without the owner and the beginning."""
    if flag.said is not None:
        kind = f" ({flag.said.kind})" if flag.said.kind else ""
        return f"{flag.said.cause}{kind}: {flag.said.text}, {flag.said.confidence:.0%} sure"
    n_gpus = len(flag.devices)
    return _WORDS[flag.concern].format(gpus="1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs")
