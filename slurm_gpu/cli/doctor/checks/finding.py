"""Define the findings of checks, and the context that checks read."""

from __future__ import annotations

import enum
import functools
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_gpu.cli.site import CommandSite
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.node.allocation.slurmd import CACHED_CONF, RunSlurmd, run_slurmd
from slurm_gpu.policy.lua.install import STATE_DIRECTORY
from slurm_gpu.policy.lua.peers import controllers
from slurm_gpu.policy.lua.run_directory import RUN_DIRECTORY
from slurm_gpu.slurm.client import SlurmNode, SlurmSettings
from slurm_gpu.slurm.conf_file import ConfLine

_LOOPBACK = re.compile(r"127\.|::1$")
DATABASE_FILE = "slurm-gpudbd.yaml"
WEB_FILE = "slurm-gpuweb.yaml"
_SYSTEMD = Path("/run/systemd/system")
_PACKAGED = Path("/usr/lib64/slurm-gpu")
_UNITS = tuple(
    Path(directory, "systemd/system") for directory in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)


class Level(enum.Enum):
    """The severity of a finding; SKIPPED means that the check does not apply to this host or cannot run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check; `remedy` is the command or setting that fixes a problem."""

    level: Level
    message: str
    remedy: str | None = None


def ok(message: str) -> CheckResult:
    """Return a finding without a problem."""
    return CheckResult(Level.OK, message)


def warn(message: str, remedy: str) -> CheckResult:
    """Return a finding about a function that works, but not as well as it should."""
    return CheckResult(Level.WARN, message, remedy)


def fail(message: str, remedy: str) -> CheckResult:
    """Return a finding about a function that does not work."""
    return CheckResult(Level.FAIL, message, remedy)


def skipped(message: str) -> CheckResult:
    """Return a finding whose message is the reason why a check was skipped."""
    return CheckResult(Level.SKIPPED, message)


def unreadable(error: Exception) -> CheckResult | None:
    """Return a skipped check if an error means that this user may not read a file; None otherwise.

    Return None for root, who may read every file: something other than permissions denied access.
    """
    errors = error.errors if isinstance(error, InvalidFileError) else (error,)
    causes = [one if isinstance(one, PermissionError) else one.__cause__ for one in errors]
    denied = [one.filename for one in causes if isinstance(one, PermissionError) and one.filename]
    if os.geteuid() == 0 or len(denied) < len(causes):
        return None
    return skipped(f"this user may not read {denied[0]}; run doctor as root")


def unit_is_here(daemon: str) -> bool:
    """Return whether systemd runs on this host and has a unit of this name."""
    return _SYSTEMD.is_dir() and any((directory / f"{daemon}.service").exists() for directory in _UNITS)


def packages_are_here() -> bool:
    """Return whether packages installed slurm-gpu on this host."""
    return _PACKAGED.is_dir()


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address refers to the local host."""
    return host == "localhost" or _LOOPBACK.match(host) is not None


def has_address(host: str) -> bool:
    """Return whether this host finds an address for a host name."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def _is_own(family: int, address: tuple[object, ...]) -> bool:
    """Return whether an address belongs to this host: if so, packets to it have the same source address."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address[0], 9, *address[2:]))  # sends nothing
        except OSError:
            return False
        return bool(sock.getsockname()[0] == address[0])


def may_read(directory: Path) -> bool:
    """Return whether a directory exists and the caller may list it."""
    return os.access(directory, os.R_OK | os.X_OK)


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """The files that users need to run this command."""

    executables: Sequence[Path]
    modules: Sequence[Path]
    venv: Path | None
    """The virtual environment that contains the command; None if it is in none."""


def running_program() -> RunningProgram:
    """Return the files of the running command: its script, the interpreter, and the loaded modules."""
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    script = shutil.which(sys.argv[0])
    return RunningProgram(
        executables=[Path(name) for name in (script, sys.executable) if name],
        modules=[Path(name) for name in loaded if name],
        venv=None if sys.prefix == sys.base_prefix else Path(sys.prefix),
    )


@dataclass
class DoctorContext:
    """The context of checks, with the directories of the daemons and of `policy apply` on this host."""

    site: CommandSite
    run_dir: Path = Path("/run/slurm-gpu")
    state_dir: Path = Path("/var/lib/slurm-gpu")
    policy_state: Path = STATE_DIRECTORY
    policy_file: Path | None = None
    controller_run: Path = RUN_DIRECTORY
    """The directory of slurm-gpuctld's files."""
    host: str = os.uname().nodename.partition(".")[0]
    proc: Path = Path("/proc")
    devices: Path = Path("/dev")
    systemd: Path = _SYSTEMD
    """A directory that exists if systemd is running."""
    has_unit: Callable[[str], bool] = unit_is_here
    """Returns whether systemd can start and stop a daemon on this host."""
    has_packages: Callable[[], bool] = packages_are_here
    """Returns whether packages installed slurm-gpu on this host."""
    slurmd: RunSlurmd = run_slurmd
    """Runs `slurmd -G`, which prints how slurmd reads gres.conf."""
    conf_cache: Path = CACHED_CONF
    """The slurm.conf that slurmctld sends to a node that has no such file itself."""
    slurm_etc: Path = Path("/etc/slurm")
    """The directory where slurm-gpu's hooks are installed by default."""
    read_later: Mapping[str, ConfLine] = field(default_factory=dict)
    """The partitions of slurm.conf, for a check that assumes that Slurm has read the file; otherwise none."""
    program: Callable[[], RunningProgram] = running_program
    """Returns the files of this command."""

    @functools.cached_property
    def settings(self) -> SlurmSettings:
        """Return the configuration of slurmctld; raise SlurmError if it cannot be read."""
        return self.site.slurm.settings()

    @functools.cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """Return the nodes of slurmctld; raise SlurmError if they cannot be read."""
        return self.site.slurm.nodes()

    @property
    def slurm_conf(self) -> Path:
        """Return the path of slurm.conf on this host, which can differ from slurmctld's path."""
        path = Path(self.settings.conf_path)
        return self.conf_cache if not path.exists() and may_read(self.conf_cache.parent) else path

    @property
    def nodes_here(self) -> Sequence[SlurmNode]:
        """Return the nodes whose slurmd runs on this host: the host itself, or nodes that it simulates."""
        return [
            node
            for node in self.nodes
            if self.host in (name.partition(".")[0] for name in (node.name, node.host, node.address))
            or node.name == "localhost"
            or is_loopback(node.address)
        ]

    @property
    def gpu_nodes_here(self) -> Sequence[str]:
        """Return the names of the nodes on this host that have GPUs."""
        return [node.name for node in self.nodes_here if node.n_gpus]

    @property
    def is_gpu_node(self) -> bool:
        """Return whether this host is (or simulates) a node with GPUs."""
        return bool(self.gpu_nodes_here)

    def is_this_host(self, name: str) -> bool:
        """Return whether a host name or an address belongs to this host."""
        if is_loopback(name) or name.partition(".")[0] == self.host:
            return True
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            return False
        return any(_is_own(family, address) for family, _, _, _, address in found)

    @property
    def is_controller(self) -> bool:
        """Return whether slurmctld runs, or may run, on this host."""
        return self.host in controllers(self.settings)


@dataclass(frozen=True, slots=True)
class Check:
    """A named check; `needs` are the names of checks that must succeed first."""

    name: str
    run: Callable[[DoctorContext], Iterable[CheckResult]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with the name of its check."""

    check: str
    finding: CheckResult

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return {
            "check": self.check,
            "level": self.finding.level.value,
            "message": self.finding.message,
            "remedy": self.finding.remedy,
        }
