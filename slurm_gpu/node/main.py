"""Provide the command line of slurm-gpud."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from slurm_gpu import __version__
from slurm_gpu.clock import SystemClock
from slurm_gpu.config.site import SiteConfig, default_path, load_config
from slurm_gpu.daemon.log import log_to_stderr
from slurm_gpu.daemon.systemd import Notifier
from slurm_gpu.errors import SlurmGpuError
from slurm_gpu.node.one_shot import observer_summary
from slurm_gpu.node.service import AlreadyRunningError, Service, ServiceOptions
from slurm_gpu.wire import HOST_CLUSTER

log = logging.getLogger("slurm_gpu.node")

_NICE = -10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run slurm-gpud and return the exit code: 2 for invalid usage, 3 for an external failure."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["applications"]:
        # Imported here, since the daemon does not use it.
        from slurm_gpu.node.application import command as applications_command

        return _piped(lambda: applications_command.main(arguments[1:]))
    parsed = make_parser().parse_args(arguments)
    log_to_stderr(for_people=parsed.foreground or parsed.once, line="%(message)s")
    if parsed.once and not parsed.foreground:
        # The table shows a dash for missing values, so their reasons are not logged.
        logging.getLogger("slurm_gpu").setLevel(logging.WARNING)
    del parsed.foreground
    try:
        options = ServiceOptions(**vars(parsed))
        _run(options, _site(options))
    except SlurmGpuError as error:
        log.error("%s", error)  # noqa: TRY400 - a message for the admin, without a traceback
        return error.exit_code
    return 0


def _piped(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, or 0 if the program that reads its output has exited."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def make_parser() -> argparse.ArgumentParser:
    """Return the command-line parser, which does not include the command `applications`."""
    parser = argparse.ArgumentParser(
        prog="slurm-gpud",
        description="Sample the GPUs of this node and send records of jobs to slurm-gpudbd.",
        epilog="See `slurm-gpud applications --help` for the recognition of applications.",
    )
    add = parser.add_argument
    add("--config", type=Path, default=default_path(), metavar="FILE", help="site file (default %(default)s)")
    add("--node", metavar="NAME", help="this node's name in Slurm (default: the host's short name)")
    add(
        "--run-dir",
        type=Path,
        default=Path("/run/slurm-gpu"),
        metavar="DIR",
        help="directory of the hook files (default %(default)s)",
    )
    add(
        "--state-dir",
        type=Path,
        default=Path("/var/lib/slurm-gpu"),
        metavar="DIR",
        help="directory of the spool (default %(default)s)",
    )
    add("--source-address", type=_address, metavar="IP", help="local address for connections to slurm-gpudbd")
    add(
        "--no-slurm",
        action="store_true",
        help="run on a machine without Slurm: record users' processes on GPUs as jobs",
    )
    add("--once", action="store_true", help="take one sample, send pending records, print a table and exit")
    add(
        "--foreground",
        action="store_true",
        help="log for a terminal instead of the journal; with --once, also log why values are missing",
    )
    add(
        "--print",
        dest="printing",
        action="store_true",
        help="print records as JSON lines instead of sending them",
    )
    add("--version", action="version", version=f"slurm-gpud {__version__}")
    return parser


def _address(text: str) -> str:
    """Parse an IP address strictly, unlike the C library, which interprets 1.2.3 as 1.2.0.3."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as 192.0.2.17") from None
    return text


def _site(options: ServiceOptions) -> SiteConfig:
    """Read the site file, which is optional on a machine without Slurm."""
    if options.no_slurm and options.config == default_path() and not options.config.exists():
        return SiteConfig(cluster=HOST_CLUSTER + os.uname().nodename.partition(".")[0])
    return load_config(options.config)


def _run(options: ServiceOptions, config: SiteConfig) -> None:
    try:
        service = Service(options, config, SystemClock(), Notifier(os.environ))
    except AlreadyRunningError as error:
        if not options.once or options.printing or options.no_slurm:
            raise
        reason = str(error).partition(";")[0]
        print(
            f"{reason}; it sends the pending records. Only jobs with processes on a GPU are shown.",
            file=sys.stderr,
        )
        print(observer_summary(SystemClock()))
        return
    stopping = _StopSignal(service)
    _raise_priority()
    service.start()
    try:
        if options.once:
            service.once()
        else:
            while not stopping.asked:
                service.run_once()
    finally:
        service.stop()


def _raise_priority() -> None:
    """Raise the priority, so that samples are not delayed when jobs use all cores."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    except PermissionError:
        log.debug("slurm-gpud keeps its priority, because it is not running as root")


class _StopSignal:
    """Ends the loop after the current step on SIGTERM and SIGINT."""

    def __init__(self, service: Service) -> None:
        self.asked = False
        self._service = service
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._service.wake()


if __name__ == "__main__":
    sys.exit(main())
