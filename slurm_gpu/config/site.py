"""slurm-gpu.yaml, the one site file, without secrets (docs/contracts.md, section 7)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slurm_gpu.config.checker import YamlCheck
from slurm_gpu.config.sections import (
    DEFAULT_MOST_POINTS,
    PLACEMENT_MODES,
    SCALES,
    Metrics,
    Operators,
    Placement,
    Priority,
    Rack,
    Reservations,
    Retention,
    Sampling,
    ServerType,
    Spool,
    Zone,
)
from slurm_gpu.config.yaml_source import Location, YamlSource, read_yaml
from slurm_gpu.text.units import parse_memory_mib

__all__ = [
    "DEFAULT_PATH",
    "PATH_VARIABLE",
    "Metrics",
    "Operators",
    "Placement",
    "Priority",
    "Rack",
    "Reservations",
    "Retention",
    "Sampling",
    "ServerType",
    "SiteConfig",
    "Spool",
    "Zone",
    "check_config",
    "default_path",
    "load_config",
    "page_address",
]

DEFAULT_PATH = Path("/etc/slurm-gpu/slurm-gpu.yaml")
PATH_VARIABLE = "SLURM_GPU_CONF"


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """The whole of slurm-gpu.yaml, checked.

    `database` is slurm-gpudbd's base URL; `database_socket` its Unix socket, used instead where it exists
    (on its own host); `munge_socket` is munged's where it is not the default; `web` is the address at which
    people reach slurm-gpuweb, without a slash at the end.
    """

    cluster: str
    database: str = "http://localhost:6829"
    database_socket: Path = Path("/run/slurm-gpu/slurm-gpudbd.sock")
    munge_socket: str | None = None
    web: str | None = None
    timezone: str = "UTC"
    import_interval_s: float = 60.0
    operators: Operators = field(default_factory=Operators)
    team: str | Mapping[str, str] = "account"
    server_types: Mapping[str, ServerType] = field(default_factory=dict)
    zones: Mapping[str, Zone] = field(default_factory=dict)
    racks: Mapping[str, Rack] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    retention: Retention = field(default_factory=Retention)
    spool: Spool = field(default_factory=Spool)
    metrics: Metrics = field(default_factory=Metrics)
    placement: Placement = field(default_factory=Placement)


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The site file: $SLURM_GPU_CONF, else /etc/slurm-gpu/slurm-gpu.yaml."""
    return Path(environ.get(PATH_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> SiteConfig:
    """Read and check slurm-gpu.yaml; raises InvalidFileError with every mistake and its place."""
    return check_config(read_yaml(path if path is not None else default_path()))


def check_config(source: YamlSource) -> SiteConfig:
    """Turn a parsed slurm-gpu.yaml into a SiteConfig; raises InvalidFileError with every mistake in it."""
    return _Check(source).site()


def page_address(value: Any) -> str | None:
    """The address of a page, perhaps with a path, without a slash at its end; None for what is none."""
    try:
        parts = urlsplit(value)
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if is_one and not (parts.query or parts.fragment or parts.username or parts.password):
            return str(value).rstrip("/")
    except (ValueError, AttributeError, TypeError):
        pass
    return None


_MOST_POINTS = 1_000_000
_LONGEST_S = 100 * 366 * 86400.0  # so far ahead there are dates


def _is_number(value: Any) -> bool:
    """YAML's yes and no are Python's numbers 1 and 0, but not a site's."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_DURATIONS = {name: f"{name}_s" for name in ("timelines", "windows", "events", "forecasts", "decisions")}


class _Check(YamlCheck):
    def site(self) -> SiteConfig:
        known = {f.name for f in fields(SiteConfig)} - {"import_interval_s"} | {"import_interval"}
        top = self.mapping((), self.source.value, sorted(known))
        values: dict[str, Any] = {}
        if "cluster" in top:
            # Slurm has every ClusterName in lower case, whatever slurm.conf says: scontrol, sacct, slurmdbd.
            values["cluster"] = self.text(("cluster",), top["cluster"], "neuron").lower()
        else:
            self.fail((), "cluster is missing; write the ClusterName of slurm.conf, such as cluster: neuron")
            values["cluster"] = ""
        if "database" in top:
            values["database"] = self.url(("database",), top["database"])
        if "database_socket" in top:
            values["database_socket"] = Path(
                self.text(("database_socket",), top["database_socket"], "/run/x.sock")
            )
        if "munge_socket" in top:
            values["munge_socket"] = self.text(
                ("munge_socket",), top["munge_socket"], "/run/munge/munge.socket.2"
            )
        if "web" in top:
            values["web"] = self.web(top["web"])
        if "timezone" in top:
            values["timezone"] = self.zone_name(("timezone",), top["timezone"])
        if "import_interval" in top:
            values["import_interval_s"] = self.duration(("import_interval",), top["import_interval"])
        if "operators" in top:
            values["operators"] = self.operators(top["operators"])
        if "team" in top:
            values["team"] = self.team(top["team"])
        if "server_types" in top:
            values["server_types"] = self.named("server_types", top["server_types"], self.server_type)
        if "zones" in top:
            values["zones"] = self.named("zones", top["zones"], self.zone)
        if "racks" in top:
            values["racks"] = self.named("racks", top["racks"], self.rack)
        if "sampling" in top:
            values["sampling"] = self.sampling(top["sampling"])
        if "retention" in top:
            values["retention"] = self.retention(top["retention"])
        if "spool" in top:
            values["spool"] = self.spool(top["spool"])
        if "metrics" in top:
            values["metrics"] = self.metrics(top["metrics"])
        if "placement" in top:
            values["placement"] = self.placement(top["placement"])
        self.finish()
        return SiteConfig(**values)

    def text(self, location: Location, value: Any, example: str) -> str:
        if isinstance(value, str) and value:
            return value
        self.fail(location, f"{location[-1]}: {value!r} must be a text such as {example}")
        return ""

    def url(self, location: Location, value: Any) -> str:
        try:
            parts = urlsplit(value)
            if parts.scheme == "http" and parts.hostname and parts.path in ("", "/") and parts.port != 0:
                return str(value).rstrip("/")
        except (ValueError, AttributeError, TypeError):
            pass
        self.fail(location, f"database: {value!r} must be slurm-gpudbd's address, such as http://dbhost:6829")
        return ""

    def web(self, value: Any) -> str | None:
        if (url := page_address(value)) is None:
            self.fail(
                ("web",), f"web: {value!r} must be slurm-gpuweb's address, such as https://gpu.example.org"
            )
        return url

    def zone_name(self, location: Location, value: Any) -> str:
        # Only here, since a daemon on each node reads this file, and its memory counts.
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(value)
        except (KeyError, ValueError, TypeError, OSError):
            self.fail(
                location, f"timezone: {value!r} is not a time zone; write one such as Asia/Seoul or UTC"
            )
            return "UTC"
        return str(value)

    def duration(self, location: Location, value: Any) -> float:
        seconds = self.seconds(location, value)
        if seconds is not None and 0 < seconds <= _LONGEST_S:
            return seconds
        self.fail(location, f"{location[-1]}: {value!r} must be a duration such as 1s, 10m or 90d")
        return 1.0

    def names(self, location: Location, value: Any) -> tuple[str, ...]:
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return tuple(value)
        self.fail(location, f"{location[-1]}: {value!r} must be a list of names, such as [carol, dave]")
        return ()

    def operators(self, value: Any) -> Operators:
        table = self.mapping(("operators",), value, ("users", "unix_groups"))
        return Operators(**{key: self.names(("operators", key), item) for key, item in table.items()})

    def team(self, value: Any) -> str | Mapping[str, str]:
        if value == "account":
            return "account"
        if isinstance(value, dict) and all(isinstance(v, str) for pair in value.items() for v in pair):
            return dict(value)
        self.fail(("team",), f"team: {value!r} must be the word account, or a map of account: team")
        return "account"

    def named(self, section: str, value: Any, build: Any) -> dict[str, Any]:
        table = self.mapping((section,), value, None)
        return {str(name): build((section, name), item) for name, item in table.items()}

    def server_type(self, location: Location, value: Any) -> ServerType:
        table = self.mapping(location, value, ("nodes", "rate_per_gpu_hour"))
        rate = table.get("rate_per_gpu_hour")
        if rate is not None and not (_is_number(rate) and 0 <= rate < math.inf):
            self.fail((*location, "rate_per_gpu_hour"), f"rate_per_gpu_hour: {rate!r} must be a number ≥ 0")
            rate = None
        return ServerType(self.nodes(location, table), rate)

    def zone(self, location: Location, value: Any) -> Zone:
        table = self.mapping(location, value, ("nodes", "role"))
        role = table.get("role")
        if role is not None:
            role = self.text((*location, "role"), role, "small, medium or large")
        return Zone(self.nodes(location, table), role)

    def rack(self, location: Location, value: Any) -> Rack:
        return Rack(self.nodes(location, self.mapping(location, value, ("nodes",))))

    def nodes(self, location: Location, table: dict[str, Any]) -> str:
        if "nodes" not in table:
            self.fail(location, f"{location[-1]} lacks nodes; write a hostlist such as nodes: n[1-4]")
            return ""
        return self.text((*location, "nodes"), table["nodes"], "n[1-4]")

    def sampling(self, value: Any) -> Sampling:
        table = self.mapping(("sampling",), value, ("interval", "min_coverage"))
        values: dict[str, float] = {}
        if "interval" in table:
            values["interval_s"] = self.duration(("sampling", "interval"), table["interval"])
        if "min_coverage" in table:
            share = table["min_coverage"]
            if not (_is_number(share) and 0 <= share <= 1):
                self.fail(
                    ("sampling", "min_coverage"), f"min_coverage: {share!r} must be a number from 0 to 1"
                )
            else:
                values["min_coverage"] = float(share)
        return Sampling(**values)

    def retention(self, value: Any) -> Retention:
        table = self.mapping(("retention",), value, tuple(_DURATIONS))
        return Retention(**{_DURATIONS[k]: self.duration(("retention", k), v) for k, v in table.items()})

    def spool(self, value: Any) -> Spool:
        table = self.mapping(("spool",), value, ("max_size",))
        if "max_size" not in table:
            return Spool()
        try:
            mib = parse_memory_mib(table["max_size"])
            if mib >= 1:
                return Spool(mib)
        except (ValueError, AttributeError, TypeError):
            pass
        self.fail(
            ("spool", "max_size"), f"max_size: {table['max_size']!r} must be 1M or more, such as 256M or 1G"
        )
        return Spool()

    def metrics(self, value: Any) -> Metrics:
        table = self.mapping(("metrics",), value, ("listen",))
        if "listen" not in table:
            return Metrics()
        try:
            parts = urlsplit(f"//{table['listen']}")
            if parts.hostname and parts.port and parts.netloc == table["listen"] and not parts.username:
                return Metrics((parts.hostname, parts.port))
        except (ValueError, AttributeError, TypeError):
            pass
        self.fail(
            ("metrics", "listen"), f"listen: {table['listen']!r} must be HOST:PORT, such as 127.0.0.1:9836"
        )
        return Metrics()

    def placement(self, value: Any) -> Placement:
        fields = ("mode", "partitions", "nodes", "zone_wait", "priority", "reservations")
        table = self.mapping(("placement",), value, fields)
        values: dict[str, Any] = {}
        if "mode" in table:
            if table["mode"] in PLACEMENT_MODES:
                values["mode"] = table["mode"]
            else:
                self.fail(
                    ("placement", "mode"), f"mode: {table['mode']!r} must be observe, advise or enforce"
                )
        if "partitions" in table:
            values["partitions"] = self.names(("placement", "partitions"), table["partitions"])
        if "nodes" in table:
            values["nodes"] = self.text(("placement", "nodes"), table["nodes"], "n[1-4]")
        if "zone_wait" in table:
            values["zone_wait_s"] = self.duration(("placement", "zone_wait"), table["zone_wait"])
        if "priority" in table:
            values["priority"] = self.priority(table["priority"])
        if "reservations" in table:
            values["reservations"] = self.reservations(table["reservations"])
        return Placement(**values)

    def priority(self, value: Any) -> Priority | None:
        at: Location = ("placement", "priority")
        table = self.mapping(at, value, ("per_hour", "most"))
        rates = self.mapping((*at, "per_hour"), table.get("per_hour", {}), SCALES)
        for scale, rate in rates.items():
            if not _is_number(rate) or not 0 <= rate <= _MOST_POINTS:
                self.fail(
                    (*at, "per_hour", scale),
                    f"{scale}: {rate!r} must be points for an hour's wait, 0 to {_MOST_POINTS}, such as 20",
                )
                return None
        most = table.get("most", DEFAULT_MOST_POINTS)
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= _MOST_POINTS:
            self.fail(
                (*at, "most"), f"most: {most!r} must be whole points, 1 to {_MOST_POINTS}, such as 1000"
            )
            return None
        return Priority(dict(rates), most)

    def reservations(self, value: Any) -> Reservations:
        at: Location = ("placement", "reservations")
        table = self.mapping(at, value, ("required_gpus", "release_unused", "horizon", "open_per_user"))
        values: dict[str, Any] = {}
        for key, item in table.items():
            if key in ("release_unused", "horizon"):
                values[f"{key}_s"] = self.duration((*at, key), item)
            elif isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= _MOST_POINTS:
                values[key] = item
            else:
                self.fail((*at, key), f"{key}: {item!r} must be a whole number from 1 on, such as 3")
        return Reservations(**values)
