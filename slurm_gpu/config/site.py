"""Read slurm-gpu.yaml, the only site file, which contains no secrets (docs/configuration.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from slurm_gpu.config.decoder import decode
from slurm_gpu.config.value_types import (
    ADDRESS,
    NAME,
    PAGE,
    Address,
    InvalidValueError,
    ValueType,
    choice,
    duration,
    number,
    one_line,
    or_none,
    require,
    text,
    whole_number,
)
from slurm_gpu.config.yaml_source import YamlSource, read_yaml
from slurm_gpu.text.units import parse_memory_mib

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpu.yaml")
PATH_VARIABLE = "SLURM_GPU_CONF"
PLACEMENT_MODES = ("observe", "advise", "enforce")
# Scales of jobs: one node, at most half of the nodes of the largest zone, or more nodes.
SCALES = ("small", "medium", "large")
_MOST_POINTS = 1_000_000


def _parse_database(value: Any) -> str:
    parts = urlsplit(value)
    require(parts.scheme == "http" and parts.hostname and parts.path in ("", "/") and parts.port != 0, value)
    return str(value).rstrip("/")


def _parse_time_zone(value: Any) -> str:
    # Imported here to save memory in slurm-gpud, which reads the site file on each node.
    from zoneinfo import ZoneInfo

    return str(ZoneInfo(value))


def _parse_team(value: Any) -> str | Mapping[str, str]:
    if value == "account":
        return "account"
    pairs = value.items()
    return dict(require(all(isinstance(word, str) for pair in pairs for word in pair), pairs))


def _parse_size(value: Any) -> float:
    mib = parse_memory_mib(value)
    return require(mib >= 1, mib)


def _parse_cluster(value: Any) -> str:
    name = one_line(value).lower()  # Slurm (scontrol, sacct, slurmdbd) uses lower case, too
    if name == "change-me":
        raise InvalidValueError(
            "is the placeholder of the installed file; write the ClusterName of slurm.conf"
        )
    return name


_CLUSTER = ValueType("the ClusterName of slurm.conf", "neuron", _parse_cluster, {"type": "string"})
_DATABASE = ValueType("slurm-gpudbd's address", "http://dbhost:6829", _parse_database, {"type": "string"})
_TIME_ZONE = ValueType("a time zone", "Asia/Seoul or UTC", _parse_time_zone, {"type": "string"})
_TEAM = ValueType(
    "the word account, or a map of account: team", "", _parse_team, {"type": ["string", "object"]}
)
_SIZE = ValueType("1M or more", "256M or 1G", _parse_size, {"type": "string"}, suffix="_mib")
_HOSTLIST = text("n[1-4]", "a hostlist")
_DURATION = duration(example="10m")
_COUNT = whole_number(1, _MOST_POINTS, "3")


@dataclass(frozen=True, slots=True)
class Operators:
    """Users who see every job in full, like root and SlurmUser."""

    users: Annotated[tuple[Annotated[str, NAME], ...], "Users."] = ()
    unix_groups: Annotated[tuple[Annotated[str, NAME], ...], "Groups of such users."] = ()


@dataclass(frozen=True, slots=True)
class ServerType:
    """A kind of GPU server."""

    nodes: Annotated[str, _HOSTLIST, "Its nodes."]
    rate_per_gpu_hour: Annotated[float | None, or_none(number(0, example="1.2")), "Price of a GPU-hour."] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Zone:
    """A group of nodes with a role in placement."""

    nodes: Annotated[str, _HOSTLIST, "Its nodes."]
    role: Annotated[str | None, or_none(text("small, medium or large")), "Its role."] = None


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes that are displayed together."""

    nodes: Annotated[str, _HOSTLIST, "Its nodes."]


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling interval of a node, and the coverage below which jobs are not judged."""

    interval_s: Annotated[float, _DURATION, "Interval between samples."] = 1.0
    min_coverage: Annotated[float, number(0, 1, "0.8"), "A run with a lower coverage is not judged."] = 0.8


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention times of detailed data; totals are kept indefinitely."""

    timelines_s: Annotated[float, _DURATION, "Timelines."] = 90 * 86400.0
    windows_s: Annotated[float, _DURATION, "Windows."] = 7 * 86400.0
    events_s: Annotated[float, _DURATION, "Events."] = 365 * 86400.0
    forecasts_s: Annotated[float, _DURATION, "Forecasts."] = 90 * 86400.0
    decisions_s: Annotated[float, _DURATION, "Decisions."] = 14 * 86400.0


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Limits on the records that a node stores until slurm-gpudbd has stored them."""

    max_size_mib: Annotated[float, _SIZE, "Above this size, the oldest shipments are dropped."] = 256.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics for Prometheus."""

    listen: Annotated[Address | None, ADDRESS, "The address of slurm-gpud's metrics; by default none."] = None


@dataclass(frozen=True, slots=True)
class Priority:
    """Points that jobs receive for waiting, in units of Slurm's priority."""

    per_hour: Annotated[
        Mapping[Annotated[str, choice(SCALES)], Annotated[float, number(0, _MOST_POINTS, "20")]],
        "Points per hour of waiting, by scale of the job.",
    ] = field(default_factory=dict)
    max_points: Annotated[int, whole_number(1, _MOST_POINTS, "1000"), "Maximum points of a job."] = 1000


@dataclass(frozen=True, slots=True)
class Reservations:
    """Reservations for medium and large training jobs."""

    required_gpus: Annotated[
        int | None, _COUNT, "Jobs with at least this many GPUs require a reservation; default: none."
    ] = None
    release_unused_s: Annotated[float, _DURATION, "Unused reservations are released after this time."] = (
        1800.0
    )
    horizon_s: Annotated[float, _DURATION, "Maximum lead time and duration."] = 60 * 86400.0
    open_per_user: Annotated[int, _COUNT, "Maximum number of open reservations per user."] = 3


@dataclass(frozen=True, slots=True)
class Placement:
    """Settings of job placement by slurm-gpuctld; by default it manages all nodes with GPUs."""

    mode: Annotated[str, choice(PLACEMENT_MODES), "Only `enforce` changes the cluster."] = "observe"
    partitions: Annotated[
        tuple[Annotated[str, text("gpu", "a name", "names")], ...] | None,
        "Manage only nodes in these partitions; by default all.",
    ] = None
    nodes: Annotated[str | None, _HOSTLIST, "Manage only these nodes."] = None
    zone_wait_s: Annotated[float, _DURATION, "The longest wait of a distributed job for one zone."] = 1800.0
    priority: Annotated[Priority | None, "Points for waiting time."] = None
    reservations: Annotated[Reservations | None, "Allows reservations."] = None
    features: Annotated[
        tuple[Annotated[str, text("a100", "a name", "names")], ...],
        "Slurm features of node types; each job on one node tries these types in its own order.",
    ] = ()


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """The settings in slurm-gpu.yaml."""

    cluster: Annotated[str, _CLUSTER, "The cluster."]
    database: Annotated[str, _DATABASE, "The address of slurm-gpudbd."] = "http://localhost:6829"
    database_socket: Annotated[
        Path, text("/run/x.sock", make=Path), "slurm-gpudbd's Unix socket, used on its host."
    ] = Path("/run/slurm-gpu/slurm-gpudbd.sock")
    munge_socket: Annotated[
        str | None, text("/run/munge/munge.socket.2"), "munged's socket, if not MUNGE's default."
    ] = None
    web: Annotated[str | None, PAGE, "The address of slurm-gpuweb, for `slurm-gpu web`."] = None
    timezone: Annotated[str, _TIME_ZONE, "The time zone of days and times."] = "UTC"
    import_interval_s: Annotated[float, _DURATION, "Interval between reads of Slurm's accounting."] = 60.0
    operators: Annotated[Operators, "Users who see every job in full, like root and SlurmUser."] = field(
        default_factory=Operators
    )
    team: Annotated[str | Mapping[str, str], _TEAM, "The team of a run."] = "account"
    server_types: Annotated[Mapping[str, ServerType], "Kinds of GPU servers."] = field(default_factory=dict)
    currency: Annotated[str, text("EUR", "a name"), "The currency of prices."] = ""
    zones: Annotated[Mapping[str, Zone], "Groups of nodes with a role in placement."] = field(
        default_factory=dict
    )
    racks: Annotated[Mapping[str, Rack], "Groups of nodes that slurm-gpuweb draws together."] = field(
        default_factory=dict
    )
    sampling: Annotated[Sampling, "Sampling on nodes."] = field(default_factory=Sampling)
    retention: Annotated[Retention, "How long details are kept; totals are kept indefinitely."] = field(
        default_factory=Retention
    )
    spool: Annotated[SpoolSettings, "Limits on the records that a node stores."] = field(
        default_factory=SpoolSettings
    )
    metrics: Annotated[Metrics, "Metrics for Prometheus."] = field(default_factory=Metrics)
    placement: Annotated[Placement, "Placement by slurm-gpuctld."] = field(default_factory=Placement)


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the site file: $SLURM_GPU_CONF, or /etc/slurm-gpu/slurm-gpu.yaml."""
    return Path(environ.get(PATH_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> SiteConfig:
    """Read and check slurm-gpu.yaml; raise InvalidFileError with all errors and their positions."""
    return check_config(read_yaml(path if path is not None else default_path()))


def check_config(source: YamlSource) -> SiteConfig:
    """Convert a parsed slurm-gpu.yaml to a SiteConfig; raise InvalidFileError with all errors if invalid."""
    return decode(source, SiteConfig)
