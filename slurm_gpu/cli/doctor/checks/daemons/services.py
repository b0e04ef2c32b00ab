"""Build commands that start or restart a daemon on this host, or show its log.

Only packages install systemd units: an installation from a checkout, or a container, may have none.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu.cli.doctor.checks.daemons.processes import DaemonProcess, running
from slurm_gpu.cli.doctor.checks.finding import DATABASE_FILE, WEB_FILE, DoctorContext

# This unit is present wherever systemd runs.
_ALWAYS = "systemd-journald"
_PROGRAM = {"munge": "munged", "mariadb": "mariadbd"}
_AS_SLURM_USER = ("slurm-gpudbd", "slurm-gpuctld")
_OWN_FILE = {
    "slurm-gpudbd": ("--database-config", DATABASE_FILE),
    "slurm-gpuweb": ("--web-config", WEB_FILE),
}
_OURS = ("slurm-gpud", "slurm-gpudbd", "slurm-gpuctld", "slurm-gpuweb")


def program(daemon: str) -> str:
    """Return the name of the process of a unit."""
    return _PROGRAM.get(daemon, daemon)


def start(at: DoctorContext, daemon: str) -> str:
    """Return how to start a daemon on this host."""
    if at.has_unit(daemon):
        return f"run systemctl start {daemon}"
    command = _command(at, daemon)
    more = "" if command is None else f"{_user(daemon)}: {command}"
    return f"start {program(daemon)} (it has no systemd unit){more}"


def restart(at: DoctorContext, daemon: str) -> str:
    """Return how to restart a daemon that runs on this host."""
    if at.has_unit(daemon):
        return f"run systemctl restart {daemon}"
    processes = running(program(daemon))
    if not processes:
        return f"restart {program(daemon)}"
    ids = " ".join(sorted(str(process.pid) for process in processes))
    again = shlex.join(word for word in processes[0].words if word)
    return f"kill {ids}, then start it again{_user(daemon)}: {again}" + (" …" if len(processes) > 1 else "")


def revive(at: DoctorContext, daemon: str) -> str:
    """Return how to start a daemon, or how to restart it if its process exists but does not answer."""
    processes = running(program(daemon))
    if stopped := continue_stopped(processes):
        return stopped
    return (restart if processes else start)(at, daemon)


def continue_stopped(processes: Sequence[DaemonProcess]) -> str | None:
    """Return how to continue the processes that a signal stopped; None if no process was stopped."""
    stopped = [str(process.pid) for process in processes if process.is_stopped]
    return f"run kill -CONT {' '.join(stopped)} (a signal stopped it)" if stopped else None


def log(at: DoctorContext, daemon: str) -> str:
    """Return where to find the log of a daemon on this host."""
    return f"journalctl -u {daemon}" if at.has_unit(daemon) else f"the log of {program(daemon)}"


def start_and_log(at: DoctorContext, daemon: str) -> str:
    """Return how to start or restart a daemon on this host, and where to find its log."""
    return f"{revive(at, daemon)}; see {log(at, daemon)} for the cause"


def start_there(at: DoctorContext, daemon: str, where: str) -> str:
    """Return how to start a daemon that may run on another host; `where` names that host."""
    if at.has_unit(daemon) or at.has_unit(_ALWAYS):
        return f"run systemctl start {daemon} {where}; see {log_there(at, daemon)} there for the cause"
    return f"start {program(daemon)} {where}; see its log there for the cause"


def log_there(at: DoctorContext, daemon: str) -> str:
    """Return where to find the log of a daemon that may run on another host."""
    return f"journalctl -u {daemon}" if at.has_unit(_ALWAYS) else f"the log of {program(daemon)}"


def environment_of(at: DoctorContext, daemon: str) -> str:
    """Return where the environment of a slurm-gpu daemon is set."""
    return (
        "/etc/sysconfig/slurm-gpu" if at.has_unit(daemon) else f"the environment in which {daemon} is started"
    )


def has_systemd(at: DoctorContext) -> bool:
    """Return whether systemd runs on this host."""
    return at.has_unit(_ALWAYS)


def _command(at: DoctorContext, daemon: str) -> str | None:
    """Return the command line of a slurm-gpu daemon installed next to this command, or on the PATH."""
    if daemon not in _OURS:
        return None
    neighbour = Path(sys.executable).with_name(daemon)
    found = str(neighbour) if neighbour.exists() else shutil.which(daemon)
    if found is None:
        return None
    config = at.site.config_path.absolute()
    words = [found, f"--config={config}"]
    if daemon in _OWN_FILE:
        option, name = _OWN_FILE[daemon]
        own = config.with_name(name)
        words += [f"{option}={own}"] if own.exists() else []
    return shlex.join(words)


def _user(daemon: str) -> str:
    """Return " as SlurmUser" for a daemon that SlurmUser must start; root starts the others."""
    return " as SlurmUser" if daemon in _AS_SLURM_USER else ""
