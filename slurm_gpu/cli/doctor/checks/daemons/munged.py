"""Check that munged authenticates users of this host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu import munge
from slurm_gpu.cli.doctor.checks.daemons.processes import DaemonProcess, running
from slurm_gpu.cli.doctor.checks.daemons.services import log, restart, revive, start
from slurm_gpu.cli.doctor.checks.finding import CheckResult, DoctorContext, fail, ok
from slurm_gpu.config.site import SiteConfig
from slurm_gpu.errors import MungedUnavailableError, MungeError

DEFAULT_SOCKET = Path("/run/munge/munge.socket.2")


def round_trip(at: DoctorContext) -> Iterator[CheckResult]:
    """Encode and decode a credential; report a munged that is down, hangs or listens on another socket."""
    socket_path, path = at.site.config.munge_socket, socket_of(at.site.config)
    try:
        uid = munge.decode(at.site.encode(b"slurm-gpu doctor", socket_path), socket_path).uid
    except MungedUnavailableError as error:
        yield _unavailable(at, path, str(error))
        return
    except MungeError as error:
        yield fail(str(error), f"{restart(at, 'munge')}; see {log(at, 'munge')} for the cause")
        return
    if uid != os.geteuid():
        yield fail(f"a credential of uid {os.geteuid()} was decoded as uid {uid}", restart(at, "munge"))
        return
    yield ok("munged encodes and decodes a credential")


def socket_of(config: SiteConfig) -> Path:
    """Return the path of the munged socket that slurm-gpu uses."""
    return DEFAULT_SOCKET if config.munge_socket is None else Path(config.munge_socket).absolute()


def _unavailable(at: DoctorContext, path: Path, error: str) -> CheckResult:
    """Return a finding on why munged does not answer: it is down, hangs or listens on another socket."""
    processes = running("munged")
    named = at.site.config.munge_socket is not None
    here = f"munge_socket in {at.site.config_path}" if named else "the default if munge_socket is not set"
    if not processes:
        if named and not path.exists() and DEFAULT_SOCKET.exists():
            # munged may be invisible in /proc, for example in a container.
            return fail(
                f"{path} ({here}) does not exist",
                f"set munge_socket: {DEFAULT_SOCKET} in {at.site.config_path}",
            )
        return fail(error, f"{start(at, 'munge')}; see {log(at, 'munge')} for the cause")
    sockets = [own for process in processes if (own := _socket_of(process)) != path]
    if sockets and not _accepts(path):
        return fail(
            f"munged on this host listens at {sockets[0]}, not at {path} ({here})",
            f"set munge_socket: {sockets[0]} in {at.site.config_path}",
        )
    ids = ", ".join(str(process.pid) for process in processes)
    return fail(
        f"munged runs on this host (process {ids}), but does not answer at {path}: {error}",
        revive(at, "munge"),
    )


def _socket_of(process: DaemonProcess) -> Path:
    given = process.option("--socket") or process.option("-S")
    return DEFAULT_SOCKET if given is None else Path(given)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # the backlog is full: munged listens, but hangs
        except OSError:
            return False
    return True
