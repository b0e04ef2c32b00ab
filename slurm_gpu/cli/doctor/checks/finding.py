"""Findings of checks, and the context that checks read."""

from __future__ import annotations

import enum
import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.node.allocation.slurmd import CACHED_CONF, RunSlurmd, run_slurmd
from slurm_gpu.policy.lua.bundle import RUN_DIRECTORY
from slurm_gpu.policy.lua.install import STATE_DIRECTORY
from slurm_gpu.policy.lua.peers import controllers
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings

_LOOPBACK = re.compile(r"127\.|::1$")
DATABASE_FILE = "slurm-gpudbd.yaml"
WEB_FILE = "slurm-gpuweb.yaml"
_SYSTEMD = Path("/run/systemd/system")
_PACKAGED = Path("/usr/lib64/slurm-gpu")
_UNITS = tuple(
    Path(directory, "systemd/system") for directory in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)


class Level(enum.Enum):
    """How bad it is; SKIPPED where another failed check, or this host, leaves nothing to look at."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result; `remedy` is what to type or write, for anything that is not fine."""

    level: Level
    message: str
    remedy: str | None = None


def ok(message: str) -> CheckResult:
    """All is well here."""
    return CheckResult(Level.OK, message)


def warn(message: str, remedy: str) -> CheckResult:
    """It works, but not as well as it should."""
    return CheckResult(Level.WARN, message, remedy)


def fail(message: str, remedy: str) -> CheckResult:
    """Something that slurm-gpu promises does not work."""
    return CheckResult(Level.FAIL, message, remedy)


def skipped(message: str) -> CheckResult:
    """There is nothing to look at."""
    return CheckResult(Level.SKIPPED, message)


def unit_is_here(daemon: str) -> bool:
    """Return whether systemd runs on this host and has a unit of this name."""
    return _SYSTEMD.is_dir() and any((directory / f"{daemon}.service").exists() for directory in _UNITS)


def packages_are_here() -> bool:
    """Return whether packages installed slurm-gpu on this host."""
    return _PACKAGED.is_dir()


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is each host itself."""
    return host == "localhost" or _LOOPBACK.match(host) is not None


def may_read(directory: Path) -> bool:
    """Whether it is there, and the caller may look into it."""
    return os.access(directory, os.R_OK | os.X_OK)


@dataclass
class DoctorContext:
    """The context of checks, with the directories of the daemons and of `policy apply` on this host."""

    site: CommandSite
    run_dir: Path = Path("/run/slurm-gpu")
    state_dir: Path = Path("/var/lib/slurm-gpu")
    policy_state: Path = STATE_DIRECTORY
    policy_file: Path | None = None
    controller_run: Path = RUN_DIRECTORY
    """Where slurm-gpuctld writes."""
    host: str = os.uname().nodename.partition(".")[0]
    proc: Path = Path("/proc")
    devices: Path = Path("/dev")
    systemd: Path = _SYSTEMD
    """A directory that is there where systemd runs."""
    has_unit: Callable[[str], bool] = unit_is_here
    """Returns whether systemd can start and stop a daemon of this host."""
    has_packages: Callable[[], bool] = packages_are_here
    """True if slurm-gpu is installed on this host from packages, not from a checkout."""
    slurmd: RunSlurmd = run_slurmd
    """Run `slurmd -G`, which prints how slurmd reads gres.conf."""
    conf_cache: Path = CACHED_CONF
    """Where a node without a slurm.conf of its own has what slurmctld sent it."""

    @functools.cached_property
    def settings(self) -> SlurmSettings:
        """The configuration of slurmctld; raises SlurmError."""
        return self.site.slurm.settings()

    @functools.cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """The nodes of slurmctld; raises SlurmError."""
        return self.site.slurm.nodes()

    @property
    def slurm_conf(self) -> Path:
        """The slurm.conf on this host: what slurmctld names is its own, which a node need not have."""
        path = Path(self.settings.conf_path)
        return self.conf_cache if not path.exists() and may_read(self.conf_cache.parent) else path

    @property
    def nodes_here(self) -> Sequence[SlurmNode]:
        """The nodes that this host is, or simulates: slurmd runs here."""
        return [
            node
            for node in self.nodes
            if self.host in (name.partition(".")[0] for name in (node.name, node.host, node.address))
            or node.name == "localhost"
            or is_loopback(node.address)
        ]

    @property
    def gpu_nodes_here(self) -> Sequence[str]:
        """Those with GPUs."""
        return [node.name for node in self.nodes_here if node.n_gpus]

    @property
    def is_gpu_node(self) -> bool:
        """Whether this host is (or simulates) a node with GPUs."""
        return bool(self.gpu_nodes_here)

    @property
    def is_controller(self) -> bool:
        """Whether slurmctld runs, or may run, on this host."""
        return self.host in controllers(self.settings)


@dataclass(frozen=True, slots=True)
class Check:
    """A named check; `needs` are names of checks without which it makes no sense."""

    name: str
    look: Callable[[DoctorContext], Iterable[CheckResult]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the name of its check."""

    check: str
    finding: CheckResult

    def to_json(self) -> dict[str, Any]:
        """A dict that json.dumps takes."""
        return {
            "check": self.check,
            "level": self.finding.level.value,
            "message": self.finding.message,
            "remedy": self.finding.remedy,
        }
