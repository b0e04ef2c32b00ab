"""What slurm-gpu.yaml is made of, section by section; slurm_gpu.config.site reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operators:
    """Who sees every job in full: users and members of UNIX groups, besides root and SlurmUser."""

    users: tuple[str, ...] = ()
    unix_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerType:
    """A kind of GPU server: its nodes as a Slurm hostlist, its price per GPU-hour."""

    nodes: str
    rate_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Zone:
    """A group of nodes with a role in placement."""

    nodes: str
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes that stand together, for the eye alone."""

    nodes: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How often the node looks (seconds), and the coverage below which nothing is judged."""

    interval_s: float = 1.0
    min_coverage: float = 0.8


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long detail is kept (seconds); aggregates are kept for ever."""

    timelines_s: float = 90 * 86400.0
    windows_s: float = 7 * 86400.0
    events_s: float = 365 * 86400.0
    forecasts_s: float = 90 * 86400.0
    decisions_s: float = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class Spool:
    """What a node keeps until slurm-gpudbd has taken it, in MiB at most."""

    max_size_mib: float = 256.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where slurm-gpud answers Prometheus; None: nowhere."""

    listen: tuple[str, int] | None = None


PLACEMENT_MODES = ("observe", "advise", "enforce")
SCALES = ("small", "medium", "large")
"""Of jobs: one node, up to half of the largest zone, more."""
DEFAULT_MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Priority:
    """Points that jobs earn by waiting, in units of Slurm's priority."""

    per_hour: Mapping[str, float]
    """By scale (SCALES)."""
    most: int = DEFAULT_MOST_POINTS


@dataclass(frozen=True, slots=True)
class Reservations:
    """Reservations for medium and large trainings (seconds)."""

    required_gpus: int | None = None
    """Jobs of so many GPUs need one; None: none does."""
    release_unused_s: float = 1800.0
    """One that nobody has used for so long, or waits for, is given up."""
    horizon_s: float = 60 * 86400.0
    """So far ahead one may begin, and for so long it may last."""
    open_per_user: int = 3
    """Of one user, that are not over, at most."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How slurm-gpuctld places jobs. Managed are nodes with GPUs, where nothing else is said all of them."""

    mode: str = "observe"
    """One of PLACEMENT_MODES: only `enforce` changes anything on the cluster."""
    partitions: tuple[str, ...] | None = None
    """Nodes of these alone."""
    nodes: str | None = None
    """These alone, as a Slurm hostlist."""
    zone_wait_s: float = 1800.0
    """For so long a distributed job waits for one zone, once it is its turn."""
    priority: Priority | None = None
    reservations: Reservations | None = None
    """None: there are none here."""
