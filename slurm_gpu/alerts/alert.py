"""Define the kinds of alerts on a running job's GPUs, and their thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slurm_gpu.wire.live import IDLE_PCT


class AlertKind(StrEnum):
    """Kinds of alerts, the most severe first."""

    XID = "xid"
    """A GPU reported an error."""
    UNHEALTHY = "unhealthy"
    """slurm-gpudbd has diagnosed a fault or a hang; see `Alert.diagnosis`."""
    NEVER_USED = "never_used"
    """No GPU of the job has been used since the job started."""
    USED_THEN_IDLE = "used_then_idle"
    """The GPUs were used earlier, but no GPU is used any more."""
    MEMORY_IDLE = "memory_idle"
    """A GPU is idle although its memory is full; a process may be waiting or hanging."""
    PARTLY_UNUSED = "partly_unused"
    """Some GPUs are used, and others have never been used."""
    THROTTLED = "throttled"
    """Heat or the power supply throttles a GPU."""


# Throttle reasons that indicate faults; the power cap and requested clocks do not.
BAD_THROTTLES = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)


# Maximum difference between the clocks of slurmctld and a node.
CLOCKS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertThresholds:
    """The thresholds at which a condition becomes an alert."""

    window_s: float = 240.0
    """Minimum duration of a condition. With values every 10 s, an alert appears within five minutes."""
    idle_pct: float = IDLE_PCT
    """A GPU whose utilisation is at most this value is idle."""
    min_coverage: float = 0.8
    """Minimum observed share of `window_s`; below it, no alert is reported."""
    value_for_s: float = 30.0
    """A value covers at most this many seconds before its sample."""
    memory_frac: float = 0.5
    """Memory counts as full if at least this fraction is used."""
    throttled_share: float = 0.5
    """Minimum share of the observed time for which a GPU must be throttled."""

    def __post_init__(self) -> None:
        for name in ("window_s", "value_for_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("min_coverage", "memory_frac", "throttled_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSummary:
    """The summary of a diagnosis (see docs/diagnose.md)."""

    cause: str
    kind: str
    confidence: float
    text: str
    """The culprits and the main evidence."""
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert about one job."""

    job_id: int
    kind: AlertKind
    devices: tuple[str, ...]
    """UUIDs of the affected devices."""
    since_s: float
    """Wall-clock time at which the condition began."""
    coverage: float
    """Observed share of the evaluated time; the minimum over the devices."""
    diagnosis: DiagnosisSummary | None = None
    """The diagnosis; None unless `kind` is UNHEALTHY."""


_WORDS = {
    AlertKind.XID: "{gpus} reported an error",
    AlertKind.UNHEALTHY: "{gpus} unhealthy",
    AlertKind.NEVER_USED: "{gpus} allocated and not used since the job started",
    AlertKind.USED_THEN_IDLE: "{gpus} no longer used",
    AlertKind.MEMORY_IDLE: "{gpus} idle with full memory",
    AlertKind.PARTLY_UNUSED: "{gpus} never used, unlike the others",
    AlertKind.THROTTLED: "{gpus} throttled by heat or power",
}


def in_words(alert: Alert) -> str:
    """Describe the condition in a few words, without the job's owner and start."""
    if (found := alert.diagnosis) is not None:
        kind = f" ({found.kind})" if found.kind else ""
        return f"{found.cause}{kind}: {found.text}, {found.confidence:.0%} confidence"
    n_gpus = len(alert.devices)
    return _WORDS[alert.kind].format(gpus="1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs")
